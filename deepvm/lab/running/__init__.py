"""Run one training of a matrix: launch it, watch it, make it fail, and resume it."""
