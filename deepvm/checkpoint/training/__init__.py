"""How a checkpointer follows a training job: its state, hooks, ranks, and save requests."""
