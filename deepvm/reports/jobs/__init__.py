"""Jobs of ``deepvm run``: what the command line shows of them."""
