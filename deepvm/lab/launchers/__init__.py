"""Launchers: each is one file here and one line in the registry."""
