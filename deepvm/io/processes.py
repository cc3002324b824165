"""What Linux says of other processes of this user, and the end of descendants, orphans too."""

import ctypes
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

_DEATH_SIGNAL, _SUBREAPER = 1, 36  # PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER
_PAUSE_S = 0.005
_TAIL_BYTES = 20_000


def processes() -> list[int]:
    """All of this machine, or of this process's namespace."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def environment_of(pid: int) -> list[bytes]:
    """A process's initial environment, such as ``b"HOME=/root"``; empty while it starts."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def open_files(pid: int, *, for_writing: bool = False) -> list[str]:
    """The files that a process has open, or those of them that it can write to."""
    found = []
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                flags = os.O_RDWR
                if for_writing:
                    words = Path(f"/proc/{pid}/fdinfo/{link.name}").read_text().split()
                    flags = int(words[words.index("flags:") + 1], 8)
                if flags & (os.O_WRONLY | os.O_RDWR):
                    found.append(os.readlink(link))
            except OSError:  # it has been closed
                continue
    except OSError:
        return []
    return found


def become_subreaper() -> None:
    """Be the parent of descendants that lose theirs: none can leave the tree. Raises OSError."""
    _prctl(_SUBREAPER, 1)


def follow_parent(parent: int, number: signal.Signals) -> None:
    """Have this process sent a signal when the process ``parent``, which has started it, ends."""
    _prctl(_DEATH_SIGNAL, number)
    if os.getppid() != parent:  # it has ended before
        os.kill(os.getpid(), number)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def end_descendants(limit_s: float = 10.0) -> bool:
    """End all descendants, stopped from the top first; False if some live after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    stopped = set[int]()
    while time.monotonic() < deadline:
        # A process that forks and exits leaves one zombie after another. Each makes the search
        # slower, until the next process is never found in time.
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        before = len(stopped)
        for pid in _descendants(os.getpid()):
            if pid not in stopped:
                send_signal(signal.SIGSTOP, [pid])
                stopped.add(pid)
        if not stopped:
            return True
        if len(stopped) == before:
            send_signal(signal.SIGKILL, stopped & descendants(os.getpid()))
            stopped.clear()
            time.sleep(_PAUSE_S)
    return False


def send_signal(number: signal.Signals, pids: Iterable[int]) -> None:
    """Send a signal to those of these processes that are still there."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def is_alive(pid: int) -> bool:
    """Whether a process is there; an exit code that is not collected yet does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def descendants(pid: int) -> set[int]:
    """The processes below a process, zombies included."""
    return set(_descendants(pid))


def _descendants(pid: int) -> Iterator[int]:
    rest = [pid]
    while rest:
        for child in children_of(rest.pop()):
            yield child
            rest.append(child)


def children_of(pid: int) -> list[int]:
    """The processes that one has started; none once it has ended."""
    found: list[int] = []
    with suppress(OSError):  # it has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def last_lines(path: Path, most: int) -> list[str]:
    """The end of a text that processes have printed; nothing where it cannot be read."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()[-most:]
    return []
