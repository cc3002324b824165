"""What the controller knows and decides: states, events, rules.

Pure: no clock, no files, no cloud.
"""
