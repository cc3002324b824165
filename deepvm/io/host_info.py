"""What this machine has."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The processor's name, or its architecture where the system does not tell."""
    try:
        rows = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        rows = []
    return next((r.partition(":")[2].strip() for r in rows if r.startswith("model name")), platform.machine())
