"""One folder for each cloud."""
