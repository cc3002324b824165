"""Public catalogs of prices, which need no account: downloaded, checked row by row, turned into signals."""
