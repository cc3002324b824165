"""Runs: launched, watched, made to fail, resumed; and the matrix that they are of."""
