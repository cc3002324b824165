"""``deepvm recommend``, ``explain``, ``sweep``, ``gpus`` and ``export``."""
