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

import pytest

from deepvm.jobs.agent.warm import READY, await_first

SCRIPT = """
import gc, os, sys
print(sys.argv[1:], gc.get_freeze_count() > 0, os.environ["MINE"], os.getcwd())
"""


def test_a_waiting_trainer_becomes_a_command(tmp_path: Path) -> None:
    """Its end does not look at all of torch for garbage: what was loaded before is frozen."""
    (tmp_path / "own.py").write_text(SCRIPT)
    told, tells = os.pipe()
    words = [sys.executable, "-m", "deepvm.jobs.agent.warm", str(tells)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, stdin=pipe, stdout=pipe, pass_fds=(tells,), text=True)
    os.close(tells)
    with open(told, "rb") as source:
        assert source.read() == READY
    order = {"env": {**os.environ, "MINE": "yes"}, "folder": str(tmp_path), "words": ["python", "own.py", "a b"]}
    said, _ = process.communicate(json.dumps(order) + "\n", timeout=60)
    assert process.returncode == 0 and said == f"['a b'] True yes {tmp_path}\n"


@pytest.mark.parametrize(
    ("rank", "listens_after_s", "least_s", "most_s"),
    [(1, 0.2, 0.2, 0.4), (1, None, 0.4, 10.0), (0, None, 0.0, 0.2)],
)
def test_ranks_begin_when_rank_0_listens(
    rank: int, listens_after_s: float | None, least_s: float, most_s: float
) -> None:
    """Torch tries again half a second after a connection was refused; nobody waits for long, or for itself."""
    took_s = []
    for _ in range(3):
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            timer = threading.Timer(listens_after_s or 0.0, first.listen)
            began = time.monotonic()
            if listens_after_s is not None:
                timer.start()
            port = str(first.getsockname()[1])
            await_first({"RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
            took_s.append(time.monotonic() - began)
            timer.cancel()
    assert min(took_s) >= least_s
    assert min(took_s) <= most_s  # the fastest: others use this machine
