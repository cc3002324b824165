"""Benchmark of checkpointing: deepvm against what torch brings, in one run."""
