"""Real benchmarks of real machines, and what is fitted to them: eFLOPS, speed-up curves, network saturation."""
