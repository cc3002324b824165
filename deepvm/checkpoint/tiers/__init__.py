"""Where versions go: one file for each kind of place, behind :class:`deepvm.checkpoint.tiers.base.Tier`."""
