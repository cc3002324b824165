"""Checkpointing strategies, including others': one file here and one line in the registry."""
