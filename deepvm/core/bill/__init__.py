"""Costs of a cluster besides its VMs: disks, addresses, traffic, and their known prices."""
