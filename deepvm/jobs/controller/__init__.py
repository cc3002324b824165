"""The controller: one per job.

It asks for machines, hears their agents, and decides what happens next.
"""
