"""Training jobs on machines that vanish: the controller, its agents, clouds, the history."""
