"""``deepvm simulate`` and ``deepvm traces``."""
