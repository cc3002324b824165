"""Instance types, prices and speeds: embedded catalogs, clouds, and the user's own files and measurements."""
