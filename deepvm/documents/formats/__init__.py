"""Loaders that keep the line of every value."""
