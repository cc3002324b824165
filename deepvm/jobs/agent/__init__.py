"""The agent: one per machine. It starts and ends trainers, and has them save before preemptions."""
