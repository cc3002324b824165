"""Interfaces of a network: endpoints to connect to, and listeners that accept."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import ClassVar, Protocol


class Listener(Protocol):
    """Accepts peers."""

    @property
    def endpoint(self) -> Endpoint:
        """Where it is, as peers must call it."""

    def accept(self) -> tuple[socket.socket, str]:
        """Wait for a peer: a connected stream socket, and its name for the log. Raises OSError: closed, or no room."""

    def deserted(self) -> bool:
        """Whether nobody is left who could come."""

    def shut(self) -> None:
        """Accept nobody any more; ``accept`` fails."""

    def close(self) -> None:
        """Give it up."""


class Endpoint(Protocol):
    """An address.

    Attributes:
        url: for people. advice: what to look at when nobody answers.
        shared: whether others than the processes of one ``mpirun`` can reach it.
    """

    shared: ClassVar[bool]

    @property
    def url(self) -> str:
        """See above."""

    @property
    def advice(self) -> str:
        """See above."""

    def open(self, limit_s: float) -> socket.socket:
        """A connected stream socket, a TLS one where that is spoken. Raises OSError, or CheckpointError for TLS."""

    def listen(self, *, secure: bool = False) -> Listener:
        """Let peers in, ``secure``: who will be spoken to by TLS. Raises CheckpointError."""


class TcpListener:
    """A listening socket."""

    def __init__(self, host: str, port: int, at: Callable[[str, int], Endpoint]) -> None:
        """Listen.

        Args:
            host: an address of this machine.
            port: 0 picks one.
            at: makes an endpoint of what became of them.

        Raises:
            OSError: it cannot be had.
        """
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self._socket = socket.socket(family, kind, protocol)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(where)
            self._socket.listen(64)
        except BaseException:
            self._socket.close()
            raise
        self.endpoint = at(*self._socket.getsockname()[:2])

    def accept(self) -> tuple[socket.socket, str]:
        """See :class:`Listener`."""
        sock, where = self._socket.accept()
        return sock, f"{where[0]}:{where[1]}"

    def deserted(self) -> bool:
        """See :class:`Listener`; on a network somebody may always come."""
        return False

    def shut(self) -> None:
        """See :class:`Listener`."""
        with contextlib.suppress(OSError):  # wakes the thread in accept()
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """See :class:`Listener`."""
        self._socket.close()
