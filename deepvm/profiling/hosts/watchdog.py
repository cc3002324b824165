"""Processes on other machines that end with their input, which closes when their starter ends."""

import contextlib
import json
import os
import queue
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NoReturn

from deepvm.core.json_types import JsonDict
from deepvm.errors import EXTRA_SOURCE, DeepVMError
from deepvm.io.processes import children_of
from deepvm.io.threads import start_thread

# Starts the lines for the process that started this one; all others are for people
MARK = "@deepvm "
# Characters of a reason: a line below the 4096 bytes of PIPE_BUF is written in one piece
MOST_REASON = 600
ENDED = 143
_LOOK_S = 0.25


def hold(limit_s: float, tidy: Callable[[], None] = lambda: None) -> queue.SimpleQueue[str]:
    """End this process and its children at end of input, without a parent, or after ``limit_s``.

    ``tidy`` is called after the children are killed; what it raises is ignored. Returns the lines
    of input; only one of the processes that share it may wait for them.
    """
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    start_thread(_watch, os.getppid(), time.monotonic() + limit_s, lines, tidy, name="watchdog")
    return lines


def agent(
    work: Callable[[JsonDict, queue.SimpleQueue[str]], None], *, folder: bool = True
) -> NoReturn:
    """The program of a host: its argument is an order in JSON with a ``limit_s``.

    An error is the event ``failed``. Temporary files are in a folder that is removed at the end; a
    killed program would leave that behind: without ``folder`` it has none.
    """
    order = json.loads(sys.argv[1])
    temporary = tempfile.tempdir = tempfile.mkdtemp(prefix="deepvm-host-") if folder else None

    def tidy() -> None:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)

    try:
        work(order, hold(order["limit_s"], tidy))
    except Exception as error:  # whatever it is, the coordinator must know the reason
        emit("failed", reason=reason_of(error))
        sys.exit(1)
    finally:
        tidy()
    leave()


def leave() -> NoReturn:
    """End this process at once: threads of gloo (torch 2.13) may abort an ordinary exit."""
    os._exit(0)


def emit(event: str, **facts: Any) -> None:
    """Send a message to the parent process, in one write so that concurrent lines stay whole."""
    text = json.dumps({"event": event, **facts})
    # The first line break ends a line that another process of this host has written in part.
    with contextlib.suppress(OSError):
        os.write(1, f"\n{MARK}{text}\n".encode())


def reason_of(error: BaseException) -> str:
    """An error in one short line."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return (
            f"{sys.executable} has no torch: install {EXTRA_SOURCE.format('train')} for it on this"
            " host"
        )
    text = " ".join(str(error).split())
    # Our own are written for people
    kind = "" if isinstance(error, DeepVMError) else type(error).__name__
    return ": ".join(filter(None, (kind, text)))[:MOST_REASON]


def _watch(
    parent: int, deadline: float, lines: queue.SimpleQueue[str], tidy: Callable[[], None]
) -> None:
    rest = b""
    while True:
        ready = select.select([0], [], [], _LOOK_S)[0]
        if ready:
            try:
                data = os.read(0, 65536)
            except OSError:
                data = b""
            if not data:
                _end(
                    "standard input was closed: the starting process is gone, or does not pass its"
                    " input on",
                    tidy,
                )
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                lines.put(line.decode(errors="replace"))
        if os.getppid() != parent:
            _end("the process that started this is gone", tidy)
        if time.monotonic() > deadline:
            _end("its time is over", tidy)


def _end(why: str, tidy: Callable[[], None]) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, f"deepvm: ended: {why}\n".encode())
    # Children would see the same end of file, unless they are stopped.
    for child in children_of(os.getpid()):
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGKILL)
    with contextlib.suppress(Exception):
        tidy()
    os._exit(ENDED)
