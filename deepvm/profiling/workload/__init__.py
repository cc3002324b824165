"""The models, data and training steps with which machines are measured."""
