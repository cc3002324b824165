"""The memory node's process: it listens, gives each peer a thread, and shuts down in order."""

import contextlib
import logging
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any

from deepvm.checkpoint.network.endpoint import Address, Endpoint, Listener
from deepvm.checkpoint.network.protocol import PROOF_S, Body, Channel, RequestRefused, tune
from deepvm.checkpoint.node.connection import Connection, Refusals
from deepvm.checkpoint.node.flusher import Flusher
from deepvm.checkpoint.node.version_registry import VersionRegistry
from deepvm.checkpoint.node.versions import State
from deepvm.checkpoint.tiers.base import kept
from deepvm.checkpoint.tiers.registry import open_store
from deepvm.errors import CheckpointError, RequestError
from deepvm.io.threads import start_thread
from deepvm.records import dataclass, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_MOST = 8  # Requests at a time; with more of them, the oldest is closed
_SILENT_S = 5.0


class MetricsServer(ThreadingMixIn, HTTPServer):
    """Answers HTTP requests from a status; ``address``: where, with the port."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listen: Address, status: Callable[[], Body]) -> None:
        self.status = status
        self._lock = threading.Lock()
        self._open = dict[socket.socket, None]()
        try:
            self.address_family, _, _, _, where = socket.getaddrinfo(
                listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            super().__init__(where[:2], _Handler)  # type: ignore[arg-type]
        except OSError as error:
            problem = f"cannot listen there for --metrics: {error.strerror or error}"
            raise CheckpointError(f"{listen}: {problem}") from error
        host, port, *_ = self.socket.getsockname()
        self.address = Address(host, port)
        start_thread(self.serve_forever, name="deepvm-metrics")

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def server_bind(self) -> None:
        """Bind without looking up this machine's name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)

    def process_request(self, request: Any, client_address: Any) -> None:
        oldest = None
        with self._lock:
            if len(self._open) >= _MOST:
                oldest = next(iter(self._open))
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
        if not isinstance(sys.exc_info()[1], OSError):
            _LOG.exception("the metrics cannot be rendered")


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
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
        """Log nothing."""


def metrics_text(status: Body) -> str:
    """A node's status (``deepvm.memory-node/1``) in Prometheus's text format."""
    return str(_template().render(status))


@cache
def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=False,  # noqa: S701  the text is no HTML
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(escaped=lambda text: text.translate(_ESCAPES), number=_number)
    return environment.get_template("metrics.txt.j2")


def _number(value: float | str) -> str:
    if isinstance(value, str):
        value = datetime.fromisoformat(value).timestamp()
    if value == int(value):
        return str(int(value))
    return repr(float(value))


_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class NodeSettings:
    """How a node runs."""

    listen: Endpoint  # port 0 picks one
    token: bytes = field(repr=False)
    memory_bytes: int
    persist: str = ""  # URL of the place for complete checkpoints; empty: memory only
    keep: int = 2  # checkpoints of each job that stay there
    keep_every: int = 0
    # And as many unproven ones; with more, the oldest is closed: silent ones keep no others out
    connections: int = 512
    drain_s: float = 60.0  # the longest wait for the disk at the end
    lease_s: float = 30.0  # how long a silent run keeps its name
    certificate: Path | None = None
    key: Path | None = None
    shared: bool = False  # other such nodes may write there, checkpoints of other jobs
    metrics: Address | None = None  # for Prometheus, without the token

    def __post_init__(self) -> None:
        if not self.token:
            raise RequestError("token", "", "a token; the node never runs without")
        if self.memory_bytes < 1:
            raise RequestError("memory", self.memory_bytes, "bytes of memory, at least 1")
        kept((), self.keep, self.keep_every)
        if self.connections < 1:
            raise RequestError("connections", self.connections, "at least 1")
        if not 0 <= self.drain_s < float("inf"):
            raise RequestError("drain_timeout", self.drain_s, "seconds from 0")
        if (self.certificate is None) != (self.key is None):
            raise RequestError("tls_key", self.key, "both --tls-cert and --tls-key, or none")


class Node:
    """A memory node. ``start`` returns when it listens; ``stop`` when all is safe."""

    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings
        self.store = open_store(settings.persist)
        lacks = ""
        if self.store is None:
            lacks = "start it with --persist to have checkpoints on its disk too"
        elif self.store.volatile:
            lacks = (
                f"{self.store.url} lies in that machine's memory too; start it with --persist on a"
                " disk"
            )
        self.registry = VersionRegistry(
            settings.memory_bytes,
            persists=self.store is not None,
            lacks=lacks,
            lease_s=settings.lease_s,
        )
        self.flusher = None
        if self.store is not None:
            self.flusher = Flusher(
                self.registry, self.store, keep=settings.keep, every=settings.keep_every
            )
        self.refusals = Refusals()
        self._lock = threading.Lock()
        self._strangers: dict[Connection, None] = {}
        self._connections: dict[Connection, None] = {}
        self._refused: Counter[str] = Counter()
        self._begin = time.monotonic()
        self._listener: Listener | None = None
        self._context: ssl.SSLContext | None = None
        self.metrics_server: MetricsServer | None = None
        self._served = 0
        self._ended = False

    def start(self) -> Endpoint:
        """Open everything; returns where it listens. Raises CheckpointError."""
        try:
            self._context = self._tls()
            if self.store is not None:
                self.store.open_for_writing(shared=self.settings.shared)
                if self.store.volatile:
                    _LOG.warning(
                        "%s lies in this machine's memory, and is lost with it", self.store.url
                    )
            else:  # a node started later cannot know that there were some
                _LOG.info(
                    "checkpoints are in memory only: when this node ends they are lost, and"
                    " training"
                    " starts at 0"
                )
            self._listener = self.settings.listen.listen(secure=self._context is not None)
            if self.settings.metrics is not None:
                self.metrics_server = MetricsServer(self.settings.metrics, self.metrics)
                _LOG.info("metrics are at http://%s/metrics", self.metrics_server.address)
        except BaseException:
            self._close()
            raise
        if self.flusher is not None:
            self.flusher.start()
        start_thread(self._accept, self._listener, name="deepvm-accept")
        return self._listener.endpoint

    def deserted(self) -> bool:
        return self._listener is not None and self._listener.deserted()

    def stop(self, hurry: Callable[[], bool] = lambda: False) -> int:
        """Flush what is complete, unless ``hurry`` (polled); returns how many are not on disk."""
        with self.registry.changed:
            self.registry.stopping = True
            self.registry.changed.notify_all()
        if self._listener is not None:
            self._listener.shut()
        left = self.registry.drained(self.settings.drain_s, hurry)
        if self.flusher is not None and not left:
            self.flusher.join(5.0)
        with self._lock:
            self._ended = True
            peers = list(self._connections)
        for peer in peers:
            peer.abort()
        self._close()
        return left

    def metrics(self) -> Body:
        with self._lock:
            network = {
                "connections": len(self._connections),
                "connections_limit": self.settings.connections,
                "unproven": len(self._strangers),
                "served": self._served,
                "refused": dict(self._refused),
            }
        registry = self.registry
        with registry.changed:
            jobs = registry.jobs.values()
            held = [v for j in jobs for v in (*j.partial.values(), *j.complete.values())]
            versions = [
                {
                    "job": v.job,
                    "version": v.number,
                    "state": v.state.value,
                    "bytes": v.index.layout.size,
                    "received_bytes": sum(
                        end - start for ranges in v.received.values() for start, end in ranges
                    ),
                    "durable": v.flushed and not registry.lacks,
                    "created_at": v.manifest.created if v.state is State.COMPLETE else None,
                }
                for v in held
            ]
            memory = {
                "limit_bytes": registry.pool.limit,
                "allocated_bytes": registry.pool.allocated,
                "free_slots": len(registry.pool.free),
                "used_slots": sum(v.slot is not None for v in held),
            }
            counts = dict(registry.counts)
            flush: dict[str, Any] = {"waiting": len(registry.queue)}
        if self.flusher is not None:
            flush |= self.flusher.times
        return {
            "schema_version": "deepvm.memory-node/1",
            "uptime_s": round(time.monotonic() - self._begin, 3),
            "stopping": registry.stopping,
            "memory": memory,
            "versions": versions,
            "counts": counts,
            "flush": flush,
            "persist": self.store.url if self.store is not None else "",
            "volatile": self.store is None or self.store.volatile,
            **network,
        }

    def _tls(self) -> ssl.SSLContext | None:
        settings = self.settings
        if settings.certificate is None or settings.key is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(settings.certificate, settings.key)
        except OSError as error:
            raise RequestError(
                "tls_cert", str(settings.certificate), f"a certificate and its key ({error})"
            ) from None
        return context

    def _accept(self, listener: Listener) -> None:
        while not self.registry.stopping:
            try:
                sock, peer = listener.accept()
            except OSError as error:
                if self.registry.stopping:
                    return
                self.refusals.tell("accept", "a peer", f"cannot accept connections: {error}")
                time.sleep(0.2)  # out of file descriptors, most likely: some will come back
                continue
            try:
                self._welcome(sock, peer)
            except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: no more threads
                self.refusals.tell("unwelcome", peer, str(error))
                sock.close()

    def _welcome(self, sock: socket.socket, peer: str) -> None:
        tune(sock)
        sock.settimeout(PROOF_S)
        if self._context is not None:
            sock = self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        connection = Connection(
            Channel(sock),
            self.settings.token,
            peer,
            self.registry,
            self.store,
            self.refusals,
            self.metrics,
        )
        with self._lock:
            self._strangers[connection] = None
            full = len(self._strangers) > self.settings.connections
            oldest = None
            if full:
                oldest = next(iter(self._strangers))
        if oldest is not None:
            self._forget(oldest)
            oldest.abort()
        try:
            start_thread(self._serve, connection, sock, name=f"deepvm-{peer}")
        except RuntimeError:  # no more threads
            self._forget(connection)
            sock.close()  # with TLS another one than the caller's
            raise

    def _serve(self, connection: Connection, sock: socket.socket) -> None:
        try:
            if isinstance(sock, ssl.SSLSocket):
                sock.do_handshake()
        except (OSError, ValueError) as error:
            self.refusals.tell("unproven", connection.peer, str(error))
            sock.close()
        else:
            connection.run(lambda: self._admit(connection))
        finally:
            self._forget(connection)

    def _admit(self, connection: Connection) -> None:
        with self._lock:
            self._strangers.pop(connection, None)
            if self._ended:
                raise RequestRefused("stopping", "the node is stopping")
            if len(self._connections) >= self.settings.connections:
                self._refused["full"] += 1
                advice = "start it with --connections N, 3 for each rank"
                raise RequestRefused(
                    "full",
                    f"the node has {self.settings.connections} connections already; {advice}",
                )
            self._connections[connection] = None
            self._served += 1

    def _forget(self, connection: Connection) -> None:
        with self._lock:
            if connection in self._strangers:
                del self._strangers[connection]
                self._refused["unproven"] += 1
            self._connections.pop(connection, None)

    def _close(self) -> None:
        self.refusals.sum_up()
        if self.metrics_server is not None:
            self.metrics_server.close()
        if self._listener is not None:
            self._listener.close()
        if self.store is not None:
            self.store.close()
