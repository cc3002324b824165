"""Runs as jobs of ``deepvm run --cloud local``, judged by the same gates."""
