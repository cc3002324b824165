"""Measurements: tables, documents, pictures."""
