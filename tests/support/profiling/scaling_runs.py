"""Shared by the tests of scaling."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent


TINY = ("--model", "tiny_models:build", "--batch", "4", "--resolution", "8", "--device", "cpu")


def environment(**more: str) -> dict[str, str]:
    """What processes need to import this checkout and the tests' models."""
    # One thread: several training runs share the few cores of a machine for tests.
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]),
        **more,
    }
