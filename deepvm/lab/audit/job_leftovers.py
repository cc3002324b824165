"""Processes that the job of a run has left behind, by what their environment says."""

from __future__ import annotations

import os
from pathlib import Path

from deepvm.io.processes import environment_of, processes

STATE = "job-state"
"""The subfolder of a run with all that a job has (history, folder, machines), removed last."""


def left_by(run: Path) -> list[int]:
    """The processes whose environment names the state folder of a run's job."""
    name = b"XDG_DATA_HOME=" + os.fsencode(run.resolve() / STATE) + b"/"
    return [
        pid for pid in processes() if any(word.startswith(name) for word in environment_of(pid))
    ]
