"""Jobs of ``deepvm run`` for people: tables, live progress, pages for a browser."""
