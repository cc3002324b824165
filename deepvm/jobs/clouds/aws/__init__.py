"""Machines of jobs on EC2: launched as instant fleets, with their settings in a bucket."""
