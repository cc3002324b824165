"""Traces of spot machines: lives, fitted lifetimes, replays."""
