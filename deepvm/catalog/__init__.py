"""Instance types, prices and speeds.

They come from embedded catalogs, clouds, and the user's own files and measurements.
"""
