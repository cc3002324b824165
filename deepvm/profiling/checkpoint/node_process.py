"""A memory node on this machine, for as long as it is measured or trained with."""

import contextlib
import os
import platform
import secrets
import signal
import socket
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

from deepvm.checkpoint.files.durable_write import medium
from deepvm.core.json_types import JsonDict
from deepvm.core.units import format_time
from deepvm.errors import CheckpointError
from deepvm.io.atomic_write import write_private
from deepvm.io.host_info import cores, free_port, processor
from deepvm.io.processes import follow_parent

TOKEN = "token"  # Its file in the node's folder
_START_S = 60.0
_LOOK_S = 0.02


class MemoryNode(contextlib.AbstractContextManager["MemoryNode"]):
    """``deepvm memory-node serve`` on a loopback port, the same after each start."""

    def __init__(self, folder: Path, memory_bytes: int = 2**28, persist: str = "") -> None:
        self._token = folder / TOKEN
        self._log = folder / "memory-node.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._port = free_port("127.0.0.1")
        words = [sys.executable, "-m", "deepvm", "memory-node", "serve"]
        words += ["--memory", f"{memory_bytes // 2**20 + 1}MiB", "--token-file", str(self._token)]
        words += ["--listen", f"127.0.0.1:{self._port}"]
        self._words = [*words, "--persist", persist] if persist else words

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self._port}"

    @property
    def secret(self) -> bytes:
        return self._token.read_bytes()

    @property
    def up(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Start it, empty. Raises CheckpointError: it does not listen."""
        parent = os.getpid()
        if not self._token.exists():
            write_private(self._token, secrets.token_hex(32))
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: follow_parent(parent, signal.SIGKILL),
            )
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self._port), 1.0),
            ):
                return
            time.sleep(_LOOK_S)
        self.kill()
        reason = self._log.read_text(errors="replace").strip()[-500:]
        raise CheckpointError(
            f"{self._log}: a memory node could not be started: {reason or 'it printed nothing'}"
        )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End it for good: its token must not stay in a folder that others look at."""
        self.kill()
        self._token.unlink(missing_ok=True)

    def __enter__(self) -> "MemoryNode":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def machine_of(folder: Path, began: datetime) -> JsonDict:
    """This machine, and the disk of a folder, for documents."""
    return {
        "processor": processor(),
        "cores": cores(),
        "file_system": medium(folder).kind or "unknown",
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "measured_at": format_time(began),
    }
