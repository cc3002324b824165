"""Documents: what programs read of deepvm, and one reader for the files that users write."""
