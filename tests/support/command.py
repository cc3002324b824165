"""What tests call the command line in this process with."""

from __future__ import annotations

import os
from collections.abc import Callable

Run = Callable[..., tuple[int, str, str]]
"""The words of a command to its exit code, stdout and stderr."""

COUNTED = {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}
"""What a child with an environment of its own needs for ``make coverage`` to count it."""
