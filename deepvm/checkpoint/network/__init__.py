"""The network between trainers and memory nodes: protocol, connections, tokens."""
