"""Commands of the recovery lab."""
