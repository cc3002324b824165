"""Jobs in a browser, live: read only, and nothing without the token."""
