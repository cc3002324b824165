"""What tests call the command line in this process with."""

from __future__ import annotations

from collections.abc import Callable

Run = Callable[..., tuple[int, str, str]]
"""The words of a command to its exit code, stdout and stderr."""
