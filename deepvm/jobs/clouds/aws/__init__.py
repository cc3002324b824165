"""EC2: machines by launch templates and instant fleets, what they must know by a bucket."""
