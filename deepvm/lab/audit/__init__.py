"""Audit of a run that failed and recovered, without the trainer's code: one gate per promise."""
