"""Models of the files that users write."""
