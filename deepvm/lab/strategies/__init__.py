"""Ways to checkpoint a training, those of others too: each is one file here and one line in the registry."""
