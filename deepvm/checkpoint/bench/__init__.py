"""How long training stands still for a checkpoint, and how long until it is safe: deepvm against what torch brings."""
