"""The engine: many trainings under preemption at once, event by event."""
