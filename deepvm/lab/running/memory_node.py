"""The memory node of a run whose strategy needs one: another machine's memory."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from deepvm.errors import DataError
from deepvm.io.atomic_write import write_private
from deepvm.io.free_port import free_port
from deepvm.io.process_tree import follow_parent

TOKEN = "token"
"""Its file in the run's folder."""
_START_S = 30.0
_LOOK_S = 0.02


class MemoryNode:
    """A process with a port of its own, the same after each start."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._port = free_port("127.0.0.1")

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self._port}"

    @property
    def up(self) -> bool:
        """Whether it was started, and not killed since."""
        return self._process is not None

    def start(self) -> None:
        """Start it, empty. Raises DataError: it does not listen."""
        token = self._folder / TOKEN
        parent = os.getpid()
        if not token.exists():
            write_private(token, secrets.token_hex(32))
        words = [sys.executable, "-m", "deepvm", "memory-node", "serve", "--memory", "256MiB"]
        words += ["--token-file", str(token), "--listen", f"127.0.0.1:{self._port}"]
        with (self._folder / "memory-node.log").open("ab") as log:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: follow_parent(parent, signal.SIGKILL),
            )
        until_s = time.monotonic() + _START_S
        while time.monotonic() < until_s and self._process.poll() is None:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self._port), 1.0),
            ):
                return
            time.sleep(_LOOK_S)
        raise DataError(f"{self._folder / 'memory-node.log'}: the memory node did not start")

    def kill(self) -> None:
        """As if its machine were lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End it for good: its token must not stay in a folder that others look at."""
        self.kill()
        (self._folder / TOKEN).unlink(missing_ok=True)
