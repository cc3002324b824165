"""What long commands share."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deepvm.cli.output import note, say
from deepvm.errors import RequestError
from deepvm.io.file_lock import FileLock
from deepvm.jobs.agent.process_group import caught

_QUICK_S = 0.7
_LINE_S = 15.0


def cleaning_up() -> contextlib.AbstractContextManager[None]:
    """Turn SIGTERM and SIGHUP into an exception."""

    def end(number: int) -> None:
        raise SystemExit(128 + number)

    return caught((signal.SIGTERM, signal.SIGHUP), end)


@contextlib.contextmanager
def filling(path: Path | None, command: str) -> Iterator[None]:
    """Lock the file or folder that a command fills, if any."""
    lock = None
    if path is not None and path.parent.is_dir():  # else writing the result reports the error
        # A file is replaced after each measurement, so the lock is on a hidden one, removed at the
        # end.
        lock = FileLock(path / ".lock" if path.is_dir() else path.with_name(f".{path.name}.lock"))
        try:
            if not lock.take(shared=False):
                raise RequestError("out", str(path), f"one that no other '{command}' writes to now")
        except OSError as error:  # some network file systems have no locks
            advice = "start no second command that writes there"
            note(f"{path} cannot be locked ({error.strerror}): {advice}")
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if path is not None and path.exists():
            say(f"{path} keeps what was measured; the same command continues with the rest")
        raise
    finally:
        if lock is not None:
            lock.release(remove=True)


class Progress:
    """Shows progress on stderr: a bar on a terminal, else a line now and then."""

    def __init__(self, total: int, unit: str) -> None:
        """Args: total: 0 if it is not known yet. unit: in the plural, such as ``runs``."""
        self._total = total
        self._unit = unit
        self._done = 0
        self._started = time.monotonic()
        self._over = threading.Event()
        self._reporter = threading.Thread(target=self._report, name="progress", daemon=True)
        self._bar: Any = None

    def __enter__(self) -> "Progress":
        self._reporter.start()
        return self

    def advance(self, count: int, total: int = 0) -> None:
        """Count so many more as done; ``total``: where it was not known before."""
        self._done += count
        self._total = total or self._total

    def _report(self) -> None:
        terminal = sys.stderr.isatty()
        while not self._over.wait((0.1 if self._bar else _QUICK_S) if terminal else _LINE_S):
            done = self._done
            if not self._total:
                continue
            took_s = time.monotonic() - self._started
            if self._bar is not None:
                self._bar.update(0, completed=done)
            elif terminal:
                from rich.console import Console
                from rich.progress import Progress as Bar

                self._bar = Bar(console=Console(stderr=True), transient=True)
                self._bar.add_task(self._unit, total=self._total, completed=done)
                self._bar.start()
            else:
                say(f"{done} of {self._total} {self._unit} after {took_s:.0f} s")

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._reporter.join()
        if self._bar is not None:
            self._bar.stop()
