"""A memory node on this machine, for as long as it is measured."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deepvm.errors import CheckpointError

_START_S = 60.0
_END_S = 30.0


@contextmanager
def memory_node(folder: Path, memory_bytes: int, secret: bytes, persist: str = "") -> Iterator[str]:
    """``deepvm memory-node serve`` on a free loopback port, with token and log in the folder.

    Yields its URL. Raises CheckpointError: it does not start.
    """
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_bytes(secret)
    words = [
        sys.executable,
        "-m",
        "deepvm.cli.main",
        "memory-node",
        "serve",
        "--listen",
        "127.0.0.1:0",
    ]
    words += ["--memory", f"{memory_bytes // 2**20 + 1}MiB", "--token-file", str(token)]
    words += ["--persist", persist] if persist else []
    messages = folder / "messages"
    with messages.open("wb") as log:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    with process:
        try:
            watch = threading.Timer(_START_S, process.kill)
            watch.start()
            line = process.stdout.readline()
            watch.cancel()
            before, _, address = line.strip().partition("listening on ")
            if address and not before:
                yield f"tcp://{address}"
                return
        finally:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
    said = messages.read_text(errors="replace").strip()[-500:]
    raise CheckpointError(f"a memory node could not be started: {said or 'it said nothing'}")
