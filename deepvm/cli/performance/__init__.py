"""``deepvm performance``: how fast GPUs train a model, and how good that prediction is."""
