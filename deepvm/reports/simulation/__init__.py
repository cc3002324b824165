"""Simulated trainings and traces: tables, documents, pictures."""
