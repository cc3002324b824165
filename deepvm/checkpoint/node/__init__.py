"""The memory node: keeps versions in memory on a VM that is not preempted, and writes them to disk behind.

It moves and checks bytes without knowing what they mean: no torch, no numpy, no pickle.
"""
