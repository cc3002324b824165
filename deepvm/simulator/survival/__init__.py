"""Whether spot VMs are available and survive: learned from traces, tested on held-out ones."""
