"""A command in its own process group, and signals caught for it or for a controller."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from deepvm.errors import RequestError

# Signals that others may send to this process and means for the command
PASSED_ON = tuple(
    getattr(signal, f"SIG{name}")
    for name in ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "CONT", "WINCH")
)


def exit_code(returned: int) -> int:
    """What :mod:`subprocess` returns, as a shell gives it: 128 and more for a signal."""
    if returned < 0:
        return 128 - returned
    return returned


class ProcessGroup:
    """A running command, with all that it starts."""

    def __init__(self, words: Sequence[str], environ: Mapping[str, str]) -> None:
        try:
            self._process = subprocess.Popen(words, env=environ, start_new_session=True)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise RequestError(
                "COMMAND", words[0], f"a command that can be started ({why})"
            ) from None

    def wait(self, limit_s: float) -> int | None:
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

    # What is ignored, as under nohup, stays ignored: the command has inherited that
    wanted = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, on_signal) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: it was installed by non-Python code, such as faulthandler.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


class StopSignals:
    """In its context these signals end nothing; ``numbers`` has those received, in their order."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._caught = caught((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), self.numbers.append)

    def __enter__(self) -> "StopSignals":
        self._caught.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._caught.__exit__(None, None, None)

    @property
    def reason(self) -> str:
        first = self.numbers[0]
        if first == signal.SIGINT:
            return "interrupted"
        return f"interrupted by {signal.Signals(first).name}"

    @property
    def exit_code(self) -> int:
        return 128 + self.numbers[0]
