"""Storage tiers, where checkpoints are kept: folders, memory nodes, buckets; see ``registry``."""
