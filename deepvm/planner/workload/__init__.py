"""What is trained, as the planner sees it: speeds of each type, and what preemptions cost."""
