"""A trainer's connection to a memory node."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from deepvm.checkpoint.network.endpoint import Endpoint
from deepvm.checkpoint.network.protocol import (
    FRAME_S,
    MOST_BODY,
    MOST_DOCUMENT,
    Channel,
    Frame,
    Kind,
    introduce,
    unexpected,
)
from deepvm.checkpoint.network.token import Token
from deepvm.errors import CheckpointError

_CONNECT_S = 5.0
_STATUS_S = 10.0


class UnreachableError(CheckpointError):
    """A node does not answer as it should: it is away, or the network is."""


class Link:
    """An authenticated connection, for one thread at a time.

    ``welcome``: the node's last answer. ``reads_memory``: the node reads this process's memory.
    """

    def __init__(
        self, address: Endpoint, token: Token | bytes, *, limit_s: float = _CONNECT_S
    ) -> None:
        """Connect and prove the token, each within ``limit_s``; bytes are the node's own token.

        Raises CheckpointError: the node refuses, or this side cannot trust it. OSError: it cannot
        be reached.
        """
        self._greeting: Mapping[str, Any] = {}  # a pooled link is not introduced twice
        self.welcome: Mapping[str, Any] = {}
        self.reads_memory = False
        known = token if isinstance(token, Token) else Token(token)
        try:
            sock = address.open(limit_s)
            try:
                self.channel = Channel(sock)
                introduce(self.channel, known.secret, job=known.job, limit_s=limit_s)
            except BaseException as error:
                sock.close()
                # Each waits for the other
                if isinstance(error, TimeoutError) and address.url.startswith("tcp:"):
                    secure = address.url.replace("tcp:", "tcps:", 1)
                    raise TimeoutError(
                        f"it says nothing; if it speaks TLS, it is {secure}"
                    ) from None
                raise
        except CheckpointError as error:
            raise CheckpointError(f"{address.url}: {error}") from error

    def call(
        self,
        kind: Kind,
        body: Mapping[str, Any] | bytes = b"",
        expect: Kind | None = None,
        *,
        limit_s: float = FRAME_S,
        most: int = MOST_BODY,
    ) -> Frame:
        """Send a request and wait for its answer, of the kind ``expect`` if given.

        Raises Refused, or OSError: the connection broke, or the node was too slow or answered
        otherwise.
        """
        self.channel.send(kind, body, limit_s=limit_s)
        return self.answer(expect, limit_s=limit_s, most=most)

    def answer(
        self, expect: Kind | None = None, *, limit_s: float = FRAME_S, most: int = MOST_BODY
    ) -> Frame:
        """Wait for an answer; raises as :meth:`call`."""
        frame = self.channel.receive(idle_s=limit_s, most=most)
        if frame.kind is Kind.ERROR or expect not in (None, frame.kind):
            raise unexpected(frame)
        return frame

    def explain(self, error: BaseException) -> BaseException:
        """The node's reason for closing the connection where ``error`` occurred, or the error."""
        if not isinstance(error, OSError) or isinstance(error, TimeoutError):
            return error
        try:
            frame = self.channel.receive(idle_s=1.0)
        except (OSError, ValueError):
            return error
        if frame.kind is Kind.ERROR:
            return unexpected(frame)
        return error

    def hello(self, body: Mapping[str, Any], *, limit_s: float = FRAME_S) -> Mapping[str, Any]:
        """Introduce this side, unless that was done; returns the node's answer.

        Raises as :meth:`call`.
        """
        if self._greeting != body:
            self._greeting = {}
            self.welcome = self.call(Kind.HELLO, body, Kind.WELCOME, limit_s=limit_s).body
            self._greeting = dict(body)
        return self.welcome

    def close(self) -> None:
        """Close the connection; a thread that waits for it gets an error."""
        self.channel.abort()
        self.channel.close()


def node_status(address: Endpoint, token: Token | bytes) -> Mapping[str, Any]:
    """Status of a node. Raises CheckpointError: it cannot be reached, or refuses."""
    try:
        with contextlib.closing(Link(address, token, limit_s=_STATUS_S)) as link:
            link.hello({"role": "status"}, limit_s=_STATUS_S)
            return link.call(
                Kind.STATUS, b"", Kind.METRICS, limit_s=_STATUS_S, most=MOST_DOCUMENT
            ).body
    except OSError as error:
        raise unreachable(address, error) from error


def unreachable(address: Endpoint, error: OSError) -> UnreachableError:
    """The error for a node that does not answer as it should."""
    return UnreachableError(
        f"{address.url}: {error.strerror or error or type(error).__name__}; {address.advice}"
    )
