"""``deepvm recommend``, ``explain``, ``sweep`` and ``export``."""
