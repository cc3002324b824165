"""What comes before the first trainers of a machine, and how far that is: heartbeats say it meanwhile."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

_LAST_LINES = 40

Doing = Callable[[str], None]


def run_setup(command: str, folder: Path, environ: Mapping[str, str], doing: Doing) -> tuple[int, list[str]]:
    """Run a job's setup in a shell; returns its exit code and its last lines. Raises OSError.

    ``doing`` is called with each line: a setup that prints nothing for ``Terms.start_s`` hangs, as far as anybody sees.
    """
    doing("runs setup")
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    last, lines = list[str](), 0
    with process.stdout as said:
        for line in said:
            lines += 1
            last = [*last[1 - _LAST_LINES :], line.decode("utf-8", "replace").rstrip("\n")]
            doing(f"runs setup, {lines} lines so far")
    return process.wait(), last
