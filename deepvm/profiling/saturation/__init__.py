"""Network saturation of a memory node (DeepVM III-C2)."""
