"""Checkpoints for Hugging Face's Trainer, Lightning and Accelerate, and for plain loops."""
