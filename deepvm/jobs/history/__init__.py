"""What happened to all jobs, and what follows from it: pools, time and money, the final document."""
