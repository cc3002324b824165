"""What is trained, and how long a step takes: workloads, the step-time law, GPU memory."""
