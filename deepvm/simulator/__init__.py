"""Training under preemption: what a job will take and cost before it starts."""
