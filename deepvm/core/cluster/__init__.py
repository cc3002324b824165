"""What can be rented and what it is worth: instances, performance, speed-up, saturation, clusters, prices."""
