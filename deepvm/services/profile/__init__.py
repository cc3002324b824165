"""Measure as ``deepvm profile`` is asked to, save it, and read what users bring."""
