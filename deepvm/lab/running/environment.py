"""What a run depends on beside its configuration: the code and the machine. Runs elsewhere are made anew."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Mapping
from pathlib import Path

import deepvm
from deepvm.io.host_info import cores, machine_memory, processor

ENVIRONMENT = "environment.json"
"""Its file in the folder of a matrix."""
_ROOMS = ("lab", "checkpoint")


def environment() -> Mapping[str, str]:
    """ECRL's Table 2 for this machine; nothing in it changes while the machine stays as it is."""
    memory = machine_memory()
    return {
        "processor": processor(),
        "cores": str(cores()),
        "memory": "unknown" if memory is None else f"{memory / 2**30:.1f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "backend": "gloo",
        "threads": f"{os.environ.get('OMP_NUM_THREADS', '1')} a rank",
        "deepvm": deepvm.__version__,
        "code": code_version(),
    }


@functools.cache
def code_version() -> str:
    """12 hex digits of what trains and makes checkpoints: a checkout changes without a new version number."""
    found = hashlib.sha256()
    home = Path(deepvm.__file__).parent
    for room in _ROOMS:
        for path in sorted((home / room).rglob("*.py")):
            found.update(path.relative_to(home).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:12]
