"""Another process that holds a file lock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HOLDER = """
import sys
from pathlib import Path
from deepvm.io.file_lock import FileLock
lock = FileLock(Path(sys.argv[1]))
assert lock.take(shared=sys.argv[2] == "shared")
print("held", flush=True)
sys.stdin.read()
"""


def holder(path: Path, how: str) -> subprocess.Popen[str]:
    """Lock the file ``shared`` or alone, until its stdin is closed or it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process
