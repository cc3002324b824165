"""The controller, one per job: requests machines, receives heartbeats, decides what comes next."""
