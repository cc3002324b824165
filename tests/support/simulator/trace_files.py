"""Small made-up traces, and where the real ones may be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from deepvm.simulator.traces.trace import TraceLives
from support.places import SHARED

REAL = SHARED / "data" / "spot-traces"
needs_traces = pytest.mark.skipif(not REAL.is_dir(), reason="the shared traces are not here")


def write(path: Path, counts: object, gap: object = 60) -> Path:
    """A trace file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"metadata": {"gap_seconds": gap}, "data": counts}))
    return path


def pool(lives: list[tuple[float, bool]], gap_s: float = 1e-6, name: str = "made up") -> TraceLives:
    """Lives that are known to the second, unless a gap is given."""
    life, ended = zip(*lives, strict=True)
    return TraceLives(name, gap_s, np.array(life, dtype=float), np.array(ended, dtype=bool))
