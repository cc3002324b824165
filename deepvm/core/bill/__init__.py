"""What a cluster costs besides its VMs: disks, addresses, traffic, and what is known of their prices."""
