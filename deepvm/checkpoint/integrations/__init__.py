"""Checkpointing for training loops that are other people's, and for plain ones."""
