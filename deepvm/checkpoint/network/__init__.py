"""Trainers and memory nodes talking: protocol, endpoints, tokens."""
