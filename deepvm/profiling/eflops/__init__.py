"""eFLOPS of a machine (DeepVM III-B2)."""
