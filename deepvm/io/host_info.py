"""Processor, memory and ports of this machine."""

import os
import platform
import socket
from collections.abc import Iterator
from pathlib import Path


def cores() -> int:
    """Processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor() -> str:
    """The processor's name, or its architecture where the system does not tell."""
    for line in _lines(Path("/proc/cpuinfo")):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def machine_memory(root: Path = Path("/")) -> int | None:
    """Bytes of memory available to this process (machine or control group); None if unknown."""
    return min(_limits(root), default=None)


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes of free or reclaimable memory; None if unknown."""
    free = _meminfo(root, "MemAvailable")
    if free:
        return min([*free, *_limits(root)])
    return None


def free_port(address: str = "") -> int:
    """A free port; another process may take it before it is used."""
    with socket.socket() as found:
        found.bind((address, 0))
        return int(found.getsockname()[1])


def _meminfo(root: Path, name: str) -> list[int]:
    rows = (line.partition(":") for line in _lines(root / "proc/meminfo"))
    return [int(size.split()[0]) * 1024 for key, _, size in rows if key == name]


def _limits(root: Path) -> Iterator[int]:
    yield from _meminfo(root, "MemTotal")
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top = root / "sys/fs/cgroup" / controllers
        group = top / path.strip("/")
        # A container may see its own group as the top, under a path that only the host knows.
        for folder in (group, *group.parents):
            if folder == top.parent:
                break
            for text in _lines(folder / ("memory.limit_in_bytes" if controllers else "memory.max")):
                if text.isdecimal():  # else "max"
                    yield int(text)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
