"""Help topics and shell completion."""
