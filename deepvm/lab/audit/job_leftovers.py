"""Processes that the job of a run has left behind, by what their environment says."""

from __future__ import annotations

import os
from pathlib import Path

STATE = "job-state"
"""The folder, within that of the run, that holds all a job has: its history, its folder, its machines. It goes last."""


def left_by(run: Path) -> list[int]:
    """The processes whose environment names the state folder of a run's job."""
    name, found = b"XDG_DATA_HOME=" + os.fsencode(run.resolve() / STATE) + b"/", []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:  # it has ended, or is another user's
                continue
            if any(word.startswith(name) for word in environ.split(b"\0")):
                found.append(int(entry.name))
    return found
