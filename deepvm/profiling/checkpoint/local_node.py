"""A memory node of its own for a measurement: a process on this machine that ends with it."""

from __future__ import annotations

import secrets
import subprocess
import sys
import threading
from pathlib import Path

from deepvm.checkpoint.tiers.tcp import TcpTier
from deepvm.errors import CheckpointError

START_S = 60.0
"""Seconds within which a node must say where it listens."""
_END_S = 30.0


class Node:
    """``deepvm memory-node serve`` on a free port of the loopback interface."""

    def __init__(self, folder: Path, memory_bytes: int, *, persist: bool) -> None:
        """Start it.

        Args:
            folder: for its token, its messages, and what it persists.
            memory_bytes: for versions.
            persist: whether it writes versions to ``folder / "persisted"``.

        Raises:
            CheckpointError: it does not start.
        """
        self._token = secrets.token_hex(16).encode()
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_bytes(self._token)
        words = [sys.executable, "-m", "deepvm.cli.main", "memory-node", "serve", "--listen", "127.0.0.1:0"]
        words += ["--memory", f"{memory_bytes // 2**20 + 1}MiB", "--token-file", str(token)]
        words += ["--persist", (folder / "persisted").resolve().as_uri()] if persist else []
        messages = folder / "messages"
        with messages.open("wb") as log:
            self._process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True)
        line = self._first_line()
        address = line.rpartition("listening on ")[2].strip()
        if not line.startswith("listening on ") or not address:
            self.close()
            said = messages.read_text(errors="replace").strip()[-500:]
            raise CheckpointError(f"a memory node could not be started: {said or 'it said nothing'}")
        self._url = f"tcp://{address}"

    def _first_line(self) -> str:
        assert self._process.stdout is not None
        watch = threading.Timer(START_S, self._process.kill)
        watch.start()
        try:
            return self._process.stdout.readline()
        finally:
            watch.cancel()

    def tier(self) -> TcpTier:
        """A way to it for one trainer."""
        return TcpTier(self._url, secrets.token_hex(8), self._token)

    def close(self) -> None:
        """End it, and wait until it has."""
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
