"""The command line: one folder per group of commands.

Each command imports what it needs when it runs.
"""
