"""Signals: facts about a region."""
