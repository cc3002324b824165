"""What others have measured, from ``data/performance``: models, GPUs, networks and steps."""
