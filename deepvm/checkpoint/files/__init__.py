"""Versions on a disk: durable writes, commit records, locks, retention."""
