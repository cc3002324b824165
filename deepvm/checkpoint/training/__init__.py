"""The training job: its state, hooks, ranks, save requests and schedule."""
