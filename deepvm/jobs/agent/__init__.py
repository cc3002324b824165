"""The agent: one per machine.

It hears of preemptions, starts and ends trainers, and has them save in time.
"""
