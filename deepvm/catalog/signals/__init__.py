"""Signals: facts about a region, each from a cloud (interface: cloud.py), the cache or the embedded snapshot."""
