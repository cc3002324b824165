"""``deepvm reproduce``: the papers' figures next to ours."""
