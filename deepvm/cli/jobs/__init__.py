"""``deepvm run``, ``jobs``, ``history``, ``inject`` and ``agent``."""
