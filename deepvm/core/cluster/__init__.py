"""What can be rented and its value: types, clusters, plans, memory nodes, prices, speed-up."""
