"""The formulas and the things they are about: clusters and their prices, preemption, units.

Pure: no I/O, no clock.
"""
