"""Measure how many VMs one memory node can receive from at once (DeepVM III-C2)."""
