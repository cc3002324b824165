"""Simulated training runs and traces: tables, documents, pictures."""
