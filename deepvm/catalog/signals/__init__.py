"""Signals: one kind of fact about one region each, from its source, the cache or the embedded snapshot."""
