"""Measure eFLOPS: the operations a second that a machine does in training (DeepVM III-B2)."""
