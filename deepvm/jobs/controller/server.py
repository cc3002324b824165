"""The controller's web server, which silent connections cannot block."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from deepvm.jobs.cloud import RefusedError

MOST_STRANGERS = 512
"""Connections that have not yet sent a signed message; of more, the oldest is closed."""
_BACKLOG = 2048
_KEPT_S = 75  # else idle connections close at the very period of the heartbeats


class UnauthenticatedConnections:
    """Unauthenticated connections."""

    def __init__(self, most: int = MOST_STRANGERS) -> None:
        self._most = most
        self._waiting = dict[Any, asyncio.BaseTransport]()

    def came(self, peer: Any, connection: asyncio.BaseTransport) -> None:
        self._waiting[peer] = connection
        if len(self._waiting) > self._most:
            oldest = next(iter(self._waiting))
            self._waiting.pop(oldest).close()

    def left(self, peer: Any) -> None:
        self._waiting.pop(peer, None)


class Server(uvicorn.Server):
    """Leaves signals to the controller."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listening(host: str, port: int) -> socket.socket:
    """A socket at an address and a port, 0 for any that is free.

    Raises RefusedError: it cannot be had.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        # With its protocol: asyncio sends small answers at once only where it reads TCP there; else
        # they take 40 ms.
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(_BACKLOG)
        except OSError:
            bound.close()
            raise
        return bound
    except OSError as error:
        where = f"{host}:{port}" if port else host
        raise RefusedError(
            f"the controller cannot listen at {where}: {error.strerror or error}"
        ) from None


def server_of(application: Starlette, strangers: UnauthenticatedConnections) -> Server:
    """A server, not started yet."""

    class Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            strangers.came(transport.get_extra_info("peername"), transport)

        def connection_lost(self, exc: Exception | None) -> None:
            strangers.left(self.transport.get_extra_info("peername"))
            super().connection_lost(exc)

    # Three connections of each agent: by default a process may have 1024 open files.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    config = uvicorn.Config(
        application,
        http=Protocol,
        log_level="error",
        timeout_keep_alive=_KEPT_S,
        lifespan="off",
    )
    return Server(config)
