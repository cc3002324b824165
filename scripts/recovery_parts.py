"""Parts of scripts/bench_recovery.py without a job: the cost of a step, and takeovers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from deepvm.io.agent_board import AGENT, BOARD, Board
from deepvm.jobs.agent.backups import TrainerSocket

_STEPS = """
import time
import deepvm.training as dt
n, best = 20000, 1.0
for _ in range(5):
    began = time.perf_counter()
    for _ in range(n):
        with dt.step_context():
            pass
        dt.check_save()
    best = min(best, (time.perf_counter() - began) / n)
print(best)
"""

_WRITER = """
import sys, time, torch
from deepvm.checkpoint import Checkpointer
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
began = time.perf_counter()
checkpointer = Checkpointer(model=model, optimizer=optimizer, tiers=sys.argv[1], job="bench")
checkpointer.restore_latest()
model(torch.ones(1, 64)).sum().backward()
optimizer.step()
checkpointer.save(block=True)
print(time.perf_counter() - began, flush=True)
sys.stdin.read()
"""


def _python(code: str, *words: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *words]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("DEEPVM_")} | {
        "OMP_NUM_THREADS": "1"
    }
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command,
        env={**clean, **(env or {})},
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _said(process: subprocess.Popen[str]) -> float:
    source: IO[str] | None = process.stdout
    assert source is not None
    return float(source.readline())


def lone_step_s(folder: Path) -> float:
    """A step of ``deepvm.training`` where no agent is."""
    process = _python(_STEPS)
    seconds = _said(process)
    process.communicate()
    return seconds


def agent_step_s(folder: Path) -> float:
    """The same beside an agent's board and socket."""
    folder.mkdir()
    board = Board.create(folder / BOARD)
    trainers = TrainerSocket(folder, lambda message: {})
    try:
        process = _python(_STEPS, env={AGENT: str(folder)})
        seconds = _said(process)
        process.communicate()
    finally:
        trainers.close()
        board.close()
    return seconds


def _takeover_s(url: str, env: Mapping[str, str]) -> float:
    """From a newer generation's start to its first safe checkpoint, while an older one hangs."""
    older = _python(_WRITER, url, env={**env, "DEEPVM_EPOCH": "1"})
    try:
        _said(older)
        older.send_signal(signal.SIGSTOP)
        newer = _python(_WRITER, url, env={**env, "DEEPVM_EPOCH": "2"})
        seconds = _said(newer)
        newer.communicate()
    finally:
        older.kill()
        older.communicate()
    return seconds


def folder_takeover_s(folder: Path) -> float:
    """In a folder."""
    return _takeover_s(folder.as_uri(), {})


def node_takeover_s(folder: Path) -> float:
    """At a memory node."""
    folder.mkdir()
    token = folder / "token"
    token.write_text("a token of the bench, long enough\n")
    token.chmod(0o600)
    words = [
        "memory-node",
        "serve",
        "--token-file",
        str(token),
        "--memory",
        "64MiB",
        "--listen",
        "127.0.0.1:0",
    ]
    with tempfile.TemporaryFile() as said:
        node = subprocess.Popen(
            [sys.executable, "-m", "deepvm.cli.main", *words],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
        try:
            assert node.stdout is not None
            line = next(text for text in node.stdout if text.startswith("listening on "))
            url = f"tcp://{line.removeprefix('listening on ').strip()}"
            return _takeover_s(url, {"DEEPVM_TOKEN_FILE": str(token)})
        finally:
            node.terminate()
            node.communicate()
