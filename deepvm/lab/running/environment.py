"""On what a run was made (ECRL, Table 2): measured figures mean nothing without it."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
import re
from pathlib import Path

import deepvm
from deepvm.io.host_info import cores, machine_memory, processor

_ROOMS = ("lab", "checkpoint")
_MOUNTS = Path("/proc/self/mountinfo")


def environment(folder: Path) -> dict[str, str]:
    """Items and values, for people; ``folder``: where the runs are written."""
    memory = machine_memory()
    return {
        "OS": f"{_system()}, kernel {platform.release()}, {platform.machine()}",
        "CPU": processor(),
        "cores": f"{cores()} usable, {os.cpu_count()} logical CPUs",
        "memory": f"{memory / 2**30:.1f} GiB" if memory else "not known",
        "disk": f"{file_system(folder)} file system",
        "Python": platform.python_version(),
        "PyTorch": _version("torch"),
        "NumPy": _version("numpy"),
        "backend": "gloo, CPU, one thread a rank",
        "deepvm": f"{deepvm.__version__}, code {code_version()}",
    }


def file_system(folder: Path, mounts: Path = _MOUNTS) -> str:
    """The kind of file system that a folder lies on, such as ``ext4``; ``mounts`` is for tests."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return "unknown"
    path, longest, kind = folder.resolve(), -1, "unknown"
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4]))
        # Of equal ones the last hides the others
        if path.is_relative_to(point) and len(point.parts) >= longest:
            longest, kind = len(point.parts), after.split(" ")[0]
    return kind


@functools.cache
def code_version() -> str:
    """12 hex digits of the code that trains and saves: checkouts change without a version."""
    found = hashlib.sha256()
    home = Path(deepvm.__file__).parent
    for room in _ROOMS:
        for path in sorted((home / room).rglob("*.py")):
            found.update(path.relative_to(home).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:12]


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
