"""What others have measured: models, GPUs, networks and published steps, from ``data/performance``."""
