"""Measured tables: what was profiled on the user's own machines, and how it enters a catalog."""
