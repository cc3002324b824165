"""Predicted speeds, and how good predictions are."""
