"""Signals: facts about a region.

Each comes from a cloud (interface: cloud.py), the cache or the embedded snapshot.
"""
