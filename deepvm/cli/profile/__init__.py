"""``deepvm profile`` and ``deepvm tables``."""
