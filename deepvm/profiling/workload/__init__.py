"""What is trained to measure a machine."""
