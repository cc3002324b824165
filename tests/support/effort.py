"""How hard a suite tries: `make test` must be done in minutes, `make test-slow` need not."""

import os

THOROUGH = "THOROUGH_TESTS" in os.environ


def examples(count: int) -> int:
    """This many examples in the thorough suite, a twelfth of them in the quick one, but not fewer than eight."""
    return count if THOROUGH else max(min(count, 8), count // 12)
