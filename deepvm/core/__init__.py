"""What the equations are about: instances, performance, speed-up, saturation, clusters. Pure: no I/O, no clock."""
