"""What may be wrong with how a script is audited, where the script alone does not show it."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from deepvm.lab.certify.logs import AttemptLog

_NO_MODULE = re.compile(r"No module named '(torch|lightning|transformers|accelerate)\b")
_MAX_NAMES = 3


def earlier_checkpoints(files: Sequence[Path], logged: AttemptLog) -> str:
    """Warn of files copied with the script; empty if its samples show a fresh start."""
    if not files:
        return ""
    names = ", ".join(map(str, files[:_MAX_NAMES])) + (", ..." if len(files) > _MAX_NAMES else "")
    samples = [row for rows in logged.samples.values() for row in rows]
    first = min((row["global_step"] for row in samples), default=None)
    if first is None:
        return (
            "files that lay in the current folder may be checkpoints of an earlier training:"
            f" {names}. If so, all runs began there: move them away, or let the script write to"
            " {out}"
        )
    if first <= 1:  # some count from 1
        return ""
    return (
        f"the undisturbed run found files of earlier trainings and began at step {first}: {names}"
    )


def failure(lines: str, files: Sequence[Path], logged: AttemptLog) -> str:
    """Why an undisturbed script may have failed, by its last lines and the files it found."""
    return _missing_module(lines) or _abort(lines) or earlier_checkpoints(files, logged)


def _abort(lines: str) -> str:
    """Gloo threads outlive their group and may abort an exiting interpreter (torch 2.13)."""
    if "SIGABRT" not in lines and "terminate called without an active exception" not in lines:
        return ""
    return (
        "if training was over, the process aborted as it ended, as torch's gloo does now and then"
        " on a busy machine: end the script with ck.close(), or what else waits for its saves,"
        " destroy_process_group() and os._exit(0)"
    )


def _missing_module(lines: str) -> str:
    """Name a missing library by a script's last lines; empty if deepvm brings it."""
    match = _NO_MODULE.search(lines)
    if match is None:
        return ""
    name = match[1]
    return (
        f"the script runs in deepvm's own Python; install {name} there: {sys.executable} -m pip"
        f" install {name}"
    )
