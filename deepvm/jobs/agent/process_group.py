"""A command in its own process group, so that signals reach its children and not this process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from deepvm.errors import RequestError

PASSED_ON = tuple(
    getattr(signal, name)
    for name in (
        "SIGTERM",
        "SIGINT",
        "SIGHUP",
        "SIGQUIT",
        "SIGUSR1",
        "SIGUSR2",
        "SIGCONT",
        "SIGWINCH",
    )
)
"""Signals that others may send to this process and means for the command."""


def exit_code(returned: int) -> int:
    """What :mod:`subprocess` returns, as a shell gives it: 128 and more for a signal."""
    if returned < 0:
        return 128 - returned
    return returned


class ProcessGroup:
    """A running command, with all that it starts."""

    def __init__(self, words: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start it. Raises RequestError: it cannot be started."""
        try:
            self._process = subprocess.Popen(words, env=environ, start_new_session=True)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise RequestError(
                "COMMAND", words[0], f"a command that can be started ({why})"
            ) from None

    def wait(self, limit_s: float) -> int | None:
        """Its exit code as a shell gives it; None if it still runs after ``limit_s``."""
        with suppress(subprocess.TimeoutExpired):
            return exit_code(self._process.wait(limit_s))
        return None

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


@contextmanager
def caught(numbers: Iterable[int], receive: Callable[[int], object]) -> Iterator[None]:
    """Call ``receive`` with each signal that is caught, until the end of the context."""

    def on_signal(number: int, _: FrameType | None) -> None:
        receive(number)

    # What is ignored, as under nohup or behind `&` in a script, stays ignored: the command has
    # inherited that.
    wanted = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, on_signal) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: it was installed by non-Python code, such as faulthandler.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
