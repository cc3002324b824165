"""The memory node: keeps checkpoints in memory on an on-demand VM, and flushes them to disk.

It moves and checks bytes without knowing what they mean: no torch, no numpy, no pickle.
"""
