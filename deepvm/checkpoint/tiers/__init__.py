"""Storage tiers, one module each, behind :class:`deepvm.checkpoint.tiers.base.Tier`."""
