"""Launchers start the ranks of a run: each is one file here and one line in the registry."""
