"""``deepvm lab``: prove that failed trainings resume correctly; and ``deepvm audit``."""
