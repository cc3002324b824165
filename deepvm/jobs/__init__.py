"""Training jobs on preemptible machines: the controller, its agents, clouds, the history."""
