"""``deepvm reproduce``: the papers' figures beside ours."""
