"""Storage tiers behind :class:`~deepvm.checkpoint.tiers.base.Tier`.

Registry.py says which one a URL opens.
"""
