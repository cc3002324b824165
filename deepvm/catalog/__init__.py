"""Instance types, prices and speeds."""
