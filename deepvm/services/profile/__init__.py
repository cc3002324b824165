"""Run the measurements of ``deepvm profile``, save them, and read measurements from files."""
