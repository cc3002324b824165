"""``deepvm ckpt`` and ``deepvm memory-node``."""
