"""Cloud adapters for jobs, which launch, list and terminate machines: local, ssh, EC2."""
