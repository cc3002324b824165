"""The memory node's process: it listens, gives each peer a thread, and shuts down in order."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepvm.checkpoint.files.retention import kept
from deepvm.checkpoint.network.endpoint import Address, Endpoint, Listener
from deepvm.checkpoint.network.protocol import PROOF_S, Channel, RequestRefused, tune
from deepvm.checkpoint.node.connection import Connection
from deepvm.checkpoint.node.flusher import Flusher
from deepvm.checkpoint.node.metrics_server import MetricsServer
from deepvm.checkpoint.node.refusals import Refusals
from deepvm.checkpoint.node.version_registry import VersionRegistry
from deepvm.checkpoint.node.versions import State
from deepvm.checkpoint.tiers.registry import open_store
from deepvm.errors import RequestError

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class NodeSettings:
    """How a node runs.

    Attributes:
        listen: where; port 0 picks one. token: what its peers must know.
        memory_bytes: for all versions together. persist: URL of the place for complete versions,
        empty for memory only. keep, keep_every: versions of each job that stay there, see
        :func:`deepvm.checkpoint.files.retention.kept`.
        connections: the limit, and as many again that have not proved the token; with more of
            those, the oldest is closed, so that silent ones cannot keep others out.
        drain_s: at the end, the longest wait for the disk. lease_s: how long a silent run keeps its
        name. certificate, key: files for TLS, both or none.
        shared: other nodes with this setting may write there too; no two of them versions of the
            same job.
        metrics: where Prometheus finds the status, without the token; None: nowhere.
    """

    listen: Endpoint
    token: bytes = field(repr=False)
    memory_bytes: int
    persist: str = ""
    keep: int = 2
    keep_every: int = 0
    connections: int = 512
    drain_s: float = 60.0
    lease_s: float = 30.0
    certificate: Path | None = None
    key: Path | None = None
    shared: bool = False
    metrics: Address | None = None

    def __post_init__(self) -> None:
        """Refuse values that cannot work. Raises RequestError."""
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
        """Prepare; nothing is opened yet. Raises RequestError for ``persist``."""
        self.settings = settings
        self.store = open_store(settings.persist)
        lacks = ""
        if self.store is None:
            lacks = "start it with --persist to have versions on its disk too"
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
        """Open everything; returns where it listens, with the port. Raises CheckpointError."""
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
                    "versions are in memory only: when this node ends they are lost, and training"
                    " begins at 0"
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
        threading.Thread(
            target=self._accept, args=(self._listener,), name="deepvm-accept", daemon=True
        ).start()
        return self._listener.endpoint

    def deserted(self) -> bool:
        """Whether no possible peer is left, so that the node may stop."""
        return self._listener is not None and self._listener.deserted()

    def stop(self, hurry: Callable[[], bool] = lambda: False) -> int:
        """Flush what is complete, unless ``hurry`` (polled) is true, and close.

        Returns how many are not on disk.
        """
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

    def metrics(self) -> Mapping[str, Any]:
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
            held = [
                v
                for j in registry.jobs.values()
                for v in (*j.partial.values(), *j.complete.values())
            ]
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
            waiting = len(registry.queue)
        return {
            "schema_version": "deepvm.memory-node/1",
            "uptime_s": round(time.monotonic() - self._begin, 3),
            "stopping": registry.stopping,
            "memory": memory,
            "versions": versions,
            "counts": counts,
            "flush": {
                "waiting": waiting,
                **(self.flusher.times if self.flusher is not None else {}),
            },
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
            oldest = None
            if len(self._strangers) > self.settings.connections:
                oldest = next(iter(self._strangers))
        if oldest is not None:
            self._forget(oldest)
            oldest.abort()
        try:
            threading.Thread(
                target=self._serve, args=(connection, sock), name=f"deepvm-{peer}", daemon=True
            ).start()
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
        """Count a peer that knows the token.

        Raises Refused: there are too many, or the node has ended.
        """
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
