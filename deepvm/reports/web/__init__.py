"""The web application of ``deepvm jobs serve``: jobs, live and read-only, with a token."""
