"""Runs whose files are written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.lab.made_runs import make_calm, make_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with an undisturbed run, and one that failed twice; both right."""
    make_calm(tmp_path / "calm")
    make_run(tmp_path / "run")
    return tmp_path
