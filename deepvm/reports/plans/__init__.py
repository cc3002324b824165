"""Recommendations and sweeps: reports, documents, pictures."""
