"""What helps people who do not know the commands yet.

Topics, other names of things, and shell completion.
"""
