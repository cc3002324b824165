"""``http://HOST:PORT/metrics`` of a node for Prometheus: numbers and job names, without the token.

Few threads serve it, each for a short time, so that whoever finds the port can at most keep others
from the metrics.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any

from deepvm.checkpoint.network.endpoint import Address
from deepvm.checkpoint.node.metrics_text import CONTENT_TYPE, metrics_text
from deepvm.errors import CheckpointError

log = logging.getLogger("deepvm.checkpoint")

_MOST = 8
"""Requests at a time; with more of them, the oldest is closed."""
_SILENT_S = 5.0


class MetricsServer:
    """Answers HTTP requests from a status; ``address``: where, with the port."""

    def __init__(self, listen: Address, status: Callable[[], Mapping[str, Any]]) -> None:
        """Listen and serve; port 0 picks one. Raises CheckpointError."""
        try:
            self._server = _Server(listen, status)
        except OSError as error:
            problem = f"cannot listen there for --metrics: {error.strerror or error}"
            raise CheckpointError(f"{listen}: {problem}") from error
        host, port, *_ = self._server.socket.getsockname()
        self.address = Address(host, port)
        threading.Thread(
            target=self._server.serve_forever, name="deepvm-metrics", daemon=True
        ).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingMixIn, HTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, listen: Address, status: Callable[[], Mapping[str, Any]]) -> None:
        self.status = status
        self._lock = threading.Lock()
        self._open = dict[socket.socket, None]()
        self.address_family, _, _, _, where = socket.getaddrinfo(
            listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        super().__init__(where[:2], _Handler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        """Bind without asking for this machine's name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            oldest = None
            if len(self._open) >= _MOST:
                oldest = next(iter(self._open))
            if oldest is not None:
                del self._open[oldest]
            self._open[request] = None
        if oldest is not None:
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread ends, and closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that breaks off is no event; anything else is a bug."""
        if not isinstance(sys.exc_info()[1], OSError):
            log.exception("the metrics cannot be rendered")


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SILENT_S
    server_version = "deepvm"
    sys_version = ""

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "the metrics are at /metrics")
            return
        body = metrics_text(self.server.status()).encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class calls it so
        """Log nothing: one line for each request would fill the node's log."""
