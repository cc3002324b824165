"""Public catalogs of prices, which need no account."""
