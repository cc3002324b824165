"""The history of all jobs and what follows from it: pools, time, money, final document."""
