"""Formulas and what they are about: clusters, prices, preemption, units. Pure: no I/O, no clock."""
