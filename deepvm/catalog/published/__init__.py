"""Published measurements in ``data/performance``: models, GPUs, networks and steps."""
