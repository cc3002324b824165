"""What can be rented and what it is worth: types, clusters, plans, memory nodes, prices, speed-up, provenance."""
