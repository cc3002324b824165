"""The training job: its state, hooks, ranks, save requests and handles; layerwise updates.

Unseen steps.
"""
