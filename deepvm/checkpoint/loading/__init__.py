"""Data loaders that a checkpoint can put back in the middle of an epoch."""
