"""Catalogs and price signals: differences and freshness."""
