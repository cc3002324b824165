"""Fit speed-up curves and step times to measured points (DeepVM III-C1)."""
