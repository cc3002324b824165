"""Public catalogs of prices, which need no account.

They are downloaded, checked row by row, and turned into signals.
"""
