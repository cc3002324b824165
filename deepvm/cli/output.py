"""Messages for people, on stderr: stdout has the data."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Print a message, after what was already written to stdout."""
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")


def note(text: str) -> None:
    """Print something worth knowing."""
    say(f"Note: {text}")
