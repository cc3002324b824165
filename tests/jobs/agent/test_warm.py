"""Trainers that wait: what they become, and when."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from deepvm.jobs.agent.warm import READY

SCRIPT = """
import gc, os, sys, time
print(sys.argv[1:], gc.get_freeze_count() > 0, os.environ["MINE"], os.getcwd(), time.time(), flush=True)
"""


def began_s(folder: Path, rank: int, port: int, listens_after_s: float | None) -> tuple[float, str]:
    """For how long after its order a script of a rank has not begun, and what it printed."""
    (folder / "own.py").write_text(SCRIPT)
    told, tells = os.pipe()
    words = [sys.executable, "-m", "deepvm.jobs.agent.warm", str(tells)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, stdin=pipe, stdout=pipe, pass_fds=(tells,), text=True, cwd=Path.cwd())
    os.close(tells)
    with open(told, "rb") as source:
        assert source.read() == READY
    env = {"RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "MINE": "yes"}
    with socket.socket() as first:
        first.bind(("127.0.0.1", port))
        timer = threading.Timer(listens_after_s or 0.0, first.listen)
        if listens_after_s is not None:
            timer.start()
        sent_s = time.time()
        order = {"env": {**os.environ, **env}, "folder": str(folder), "words": ["python", "own.py", "a b"]}
        said, _ = process.communicate(json.dumps(order) + "\n", timeout=60)
        timer.cancel()
    assert process.returncode == 0 and said.startswith(f"['a b'] True yes {folder} ")
    return float(said.split()[-1]) - sent_s, said


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_ranks_begin_when_rank_0_listens(tmp_path: Path) -> None:
    """Torch tries again half a second after a connection was refused; nobody waits for long, or for itself."""
    assert began_s(tmp_path, 1, free_port(), 0.2)[0] >= 0.2
    assert began_s(tmp_path, 1, free_port(), None)[0] >= 0.4  # a script that never connects, or later
    first_s = min(began_s(tmp_path, 0, free_port(), None)[0] for _ in range(3))
    assert first_s < 0.4
