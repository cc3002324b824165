"""Shared by the tests of version folders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

PIECE = 65536


# A trainer in small: it keeps two versions and says which are acknowledged.
WRITER = """
import mmap, random, sys
from pathlib import Path
from deepvm.checkpoint.files import durable_write
from deepvm.checkpoint.format.layout import Layout, Segment
from deepvm.checkpoint.format.manifest import Shard
from deepvm.checkpoint.tiers.file import FileTier
durable_write.PIECE = 65536
folder, first, count, size = Path(sys.argv[1]), *map(int, sys.argv[2:5])
tier = FileTier(folder, keep=2)
print("ready", flush=True)
for version in range(first, first + count):
    data = mmap.mmap(-1, size)
    data[:] = random.Random(version).randbytes(size)
    layout = Layout(size, ((Segment(0, size),),))
    tier.put(Shard("job", version, 0, layout, memoryview(data)), lambda level: print(version, flush=True))
"""  # noqa: E501


def killed_writer(folder: Path, at: str, first: int, count: int, size: int) -> list[int]:
    """Acknowledged versions of a writer that was killed at a point."""
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(folder), str(first), str(count), str(size)],
        env=os.environ | {"DEEPVM_CHECKPOINT_KILL_AT": at},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode in (-signal.SIGKILL, 0), done.stderr
    lines = done.stdout.split()
    assert lines[0] == "ready"
    return [int(line) for line in lines[1:]]
