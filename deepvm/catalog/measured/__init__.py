"""Measured tables: profiling results from the user's machines, and how they enter a catalog."""
