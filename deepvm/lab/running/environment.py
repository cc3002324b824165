"""On what a run was made (ECRL, Table 2): measured figures mean nothing without it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import deepvm
from deepvm.io.host_info import cores, machine_memory, processor

_PACKAGES = ("lab", "checkpoint", "profiling/workload")  # the last has the blocks of models


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


def file_system(folder: Path) -> str:
    """The kind of file system that a folder lies on, such as ``ext4``."""
    words = ["findmnt", "-n", "-o", "FSTYPE", "-T", str(folder)]
    with contextlib.suppress(OSError):
        kinds = subprocess.run(words, capture_output=True, text=True).stdout.split()
        if kinds:
            return kinds[-1]
        return "unknown"
    return "unknown"


@functools.cache
def code_version() -> str:
    """12 hex digits of the code that trains and saves: checkouts change without a version."""
    digest = hashlib.sha256()
    home = Path(deepvm.__file__).parent
    for package in _PACKAGES:
        for path in sorted((home / package).rglob("*.py")):
            digest.update(path.relative_to(home).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


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
