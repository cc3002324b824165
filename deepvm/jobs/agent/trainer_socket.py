"""The agent's socket for trainers: a line of JSON each way (:mod:`deepvm.io.agent_link`)."""

from __future__ import annotations

import json
import logging
import os
import socketserver
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from deepvm.core.json_types import JsonObject
from deepvm.io.agent_board import SOCKET

_LONGEST = 1_000_000

log = logging.getLogger("deepvm.agent")

Answer = Callable[[JsonObject], JsonObject]


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        answer: Answer = self.server.answer  # type: ignore[attr-defined]
        with suppress(OSError):  # a trainer that was killed
            for line in iter(lambda: self.rfile.readline(_LONGEST), b""):
                try:
                    message = json.loads(line)
                    if isinstance(message, dict):
                        found = answer(message)
                    else:
                        found = {"error": "not an object"}
                except ValueError:
                    found = {"error": "not JSON"}
                except Exception as error:
                    # One trainer's message must not end the others' connection
                    log.exception("a trainer's message failed")
                    found = {"error": f"{type(error).__name__}: {error}"}
                self.wfile.write(json.dumps(found).encode() + b"\n")


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 256


class TrainerSocket:
    """Listens in the agent's folder; ``answer`` is called in threads."""

    def __init__(self, folder: Path, answer: Answer) -> None:
        path = folder / SOCKET
        path.unlink(missing_ok=True)
        # The name of a Unix socket has at most 107 bytes: go by the open folder.
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._server = _Server(f"/proc/self/fd/{opened}/{SOCKET}", _Handler)
        finally:
            os.close(opened)
        path.chmod(0o600)
        self._server.answer = answer  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
