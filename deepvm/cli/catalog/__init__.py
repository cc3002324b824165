"""``deepvm catalog`` and ``deepvm doctor``."""
