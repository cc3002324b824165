"""Storage tiers: :class:`~deepvm.checkpoint.tiers.base.Tier`; ``registry`` opens URLs."""
