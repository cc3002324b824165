"""What the controller knows and decides: states, events, rules. Pure: no clock, files or cloud."""
