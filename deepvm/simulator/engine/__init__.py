"""The engine: many training runs under preemption at once, event by event."""
