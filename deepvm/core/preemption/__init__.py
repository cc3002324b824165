"""What preemptions cost: jobs, save policies, deadlines, expected makespans."""
