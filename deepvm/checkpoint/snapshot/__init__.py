"""From the training's memory to a host buffer, and on to the tiers."""
