"""The default model; a module of its own, because commands need its name at once."""

USUAL_MODEL = "resnet50"
"""That of the paper's experiments."""
