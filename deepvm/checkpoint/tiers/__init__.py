"""Storage tiers behind :class:`~deepvm.checkpoint.tiers.base.Tier`; registry.py says which one a URL opens."""
