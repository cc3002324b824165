"""Speed-up curves fitted to measured points (DeepVM III-C1)."""
