"""Threads that never keep a process from ending."""

import threading
from collections.abc import Callable
from typing import Any


def start_thread(
    work: Callable[..., object], *arguments: Any, name: str | None = None
) -> threading.Thread:
    """Start a daemon thread. Raises RuntimeError: none can be started, as at a process's end."""
    thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
    thread.start()
    return thread
