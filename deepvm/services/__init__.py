"""Use cases: what a command and the Python function of the same name both do."""
