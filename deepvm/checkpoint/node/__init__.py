"""The memory node keeps checkpoints and flushes them to disk, without torch, NumPy or pickle."""
