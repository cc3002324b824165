"""``deepvm performance`` and ``gpus``: how fast GPUs train models, and how good predictions are."""
