"""The memory node: a process on the VM that stays, which keeps versions in its memory and writes them to disk behind.

It moves bytes, checks them and never knows what they mean: no torch, no numpy, no pickle.
"""
