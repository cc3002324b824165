"""Benchmarks of real machines and fits to them: eFLOPS, speed-up curves, network saturation."""
