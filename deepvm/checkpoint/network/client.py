"""The client's side: a node's address, and one connection to it."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NoReturn

from deepvm.checkpoint.format.manifest import Damage, Manifest
from deepvm.checkpoint.network.endpoint import Endpoint, TcpListener
from deepvm.checkpoint.network.protocol import (
    FRAME_S,
    MOST_BODY,
    MOST_DOCUMENT,
    BrokenError,
    Channel,
    Frame,
    Kind,
    introduce,
    refusal,
    tune,
)
from deepvm.checkpoint.network.token import Token
from deepvm.errors import CheckpointError, RequestError

CA_VARIABLE = "DEEPVM_TLS_CA"
_CONNECT_S = 5.0
_ADDRESS = re.compile(
    r"(?:(?P<scheme>tcps?)://)?(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s/:@\[\]]+):(?P<port>[0-9]{1,5})/?", re.ASCII
)


@dataclass(frozen=True)
class Address:
    """Where a node listens. ``secure``: it speaks TLS."""

    shared: ClassVar[bool] = True
    host: str
    port: int
    secure: bool = False

    @classmethod
    def parse(cls, text: str, option: str = "address") -> Address:
        """Read ``HOST:PORT``, ``tcp://HOST:PORT`` or ``tcps://HOST:PORT``.

        Raises:
            RequestError: it is none of them; names ``option``.
        """
        match = _ADDRESS.fullmatch(text)
        if match is None or int(match["port"]) > 65535:
            raise RequestError(option, text, "HOST:PORT, tcp://HOST:PORT, or tcps://HOST:PORT with TLS; ports to 65535")
        return cls(match["host"].strip("[]"), int(match["port"]), match["scheme"] == "tcps")

    @property
    def url(self) -> str:
        """As a URL."""
        return f"tcp{'s' if self.secure else ''}://{self}"

    @property
    def advice(self) -> str:
        """See :class:`~deepvm.checkpoint.network.endpoint.Endpoint`."""
        return "is a memory node running there (deepvm memory-node serve), and may it be reached from here?"

    def open(self, limit_s: float) -> socket.socket:
        """See :class:`~deepvm.checkpoint.network.endpoint.Endpoint`."""
        sock = socket.create_connection((self.host, self.port), timeout=max(limit_s, 0.001))
        try:
            tune(sock)
            return _context().wrap_socket(sock, server_hostname=self.host) if self.secure else sock
        except ssl.SSLCertVerificationError as error:
            sock.close()
            raise CheckpointError(
                f"its certificate is not trusted: {error.verify_message}; name the authority's file in {CA_VARIABLE}"
            ) from None
        except ssl.SSLEOFError:
            sock.close()
            raise
        except ssl.SSLError as error:
            sock.close()
            plain = replace(self, secure=False).url
            raise BrokenError(f"it does not speak TLS ({error.reason}); a node without it is {plain}") from None
        except BaseException:
            sock.close()
            raise

    def listen(self, *, secure: bool = False) -> TcpListener:
        """See :class:`~deepvm.checkpoint.network.endpoint.Endpoint`."""
        try:
            return TcpListener(self.host, self.port, lambda host, port: Address(host, port, secure))
        except OSError as error:
            raise CheckpointError(f"{self}: cannot listen there: {error.strerror or error}") from error

    def __str__(self) -> str:
        """``HOST:PORT``."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Link:
    """A connection that has proved the token; for one thread at a time.

    Attributes:
        greeting: what the node was last told by ``HELLO``, so that a pooled link is not introduced twice.
        welcome: what it answered.
    """

    def __init__(self, address: Endpoint, token: Token | bytes, *, limit_s: float = _CONNECT_S) -> None:
        """Connect and prove.

        Args:
            address: where.
            token: what both know; bytes are the node's own.
            limit_s: for the connection, and again for the proof.

        Raises:
            CheckpointError: the node refuses, or this side cannot trust it. OSError: it cannot be reached.
        """
        self.address = address
        self.greeting: Mapping[str, Any] = {}
        self.welcome: Mapping[str, Any] = {}
        known = token if isinstance(token, Token) else Token(token)
        try:
            sock = address.open(limit_s)
            try:
                self.channel = Channel(sock)
                introduce(self.channel, known.secret, job=known.job, limit_s=limit_s)
            except TimeoutError:  # each side waits for the other's first word
                sock.close()
                if not address.url.startswith("tcp:"):
                    raise
                secure = address.url.replace("tcp:", "tcps:", 1)
                raise TimeoutError(f"it says nothing; if it speaks TLS, it is {secure}") from None
            except BaseException:
                sock.close()
                raise
        except CheckpointError as error:
            raise CheckpointError(f"{address.url}: {error}") from error

    def call(
        self, kind: Kind, body: Mapping[str, Any] | bytes = b"", *, limit_s: float = FRAME_S, most: int = MOST_BODY
    ) -> Frame:
        """Send a request and wait for its answer.

        Raises:
            Refused: the node refuses. OSError: the connection broke, or the node was too slow.
        """
        self.channel.send(kind, body, limit_s=limit_s)
        return self.answer(limit_s=limit_s, most=most)

    def answer(self, *, limit_s: float = FRAME_S, most: int = MOST_BODY) -> Frame:
        """Wait for an answer; raises as :meth:`call`."""
        frame = self.channel.receive(idle_s=limit_s, most=most)
        if frame.kind is Kind.ERROR:
            raise refusal(frame)
        return frame

    def expect(self, kind: Kind, frame: Frame) -> Frame:
        """The frame, when it is of this kind.

        Raises:
            BrokenError: it is not.
        """
        if frame.kind is not kind:
            self.fail(frame)
        return frame

    def fail(self, frame: Frame) -> NoReturn:
        """Raise what an unexpected frame means."""
        raise refusal(frame) if frame.kind is Kind.ERROR else BrokenError(f"an unexpected {frame.kind.name}")

    def explain(self, error: BaseException) -> BaseException:
        """What the node said before it closed the connection on which ``error`` happened, or the error."""
        if not isinstance(error, OSError) or isinstance(error, TimeoutError):
            return error
        try:
            frame = self.channel.receive(idle_s=1.0)
        except (OSError, ValueError):
            return error
        return refusal(frame) if frame.kind is Kind.ERROR else error

    def hello(self, body: Mapping[str, Any], *, limit_s: float = FRAME_S) -> Mapping[str, Any]:
        """Say who this is, unless the node knows it; returns its answer. Raises as :meth:`call`."""
        if self.greeting != body:
            self.greeting = {}
            self.welcome = self.expect(Kind.WELCOME, self.call(Kind.HELLO, body, limit_s=limit_s)).body
            self.greeting = dict(body)
        return self.welcome

    @property
    def lacks(self) -> str:
        """Why nothing that the node has will be durable, empty where it will; known once it was greeted."""
        return "" if self.welcome.get("persists") else str(self.welcome.get("lacks") or "it has no disk")

    def close(self) -> None:
        """Close the connection; also from another thread, whose wait then ends."""
        self.channel.abort()
        self.channel.close()


def manifest_in(frame: Frame) -> Manifest:
    """The commit record in a frame. Raises BrokenError."""
    with contextlib.suppress(RequestError):
        return Manifest.from_json(frame.raw)
    raise BrokenError("no commit record, where one was due")


def damage_in(frame: Frame) -> tuple[Damage, ...]:
    """The damaged versions that a node tells of beside the complete ones; an older node tells of none.

    Raises:
        BrokenError: they are none.
    """
    try:
        rows = frame.body.get("damaged", ())
        return tuple(Damage(int(number), str(problem), int(size)) for number, size, problem in rows)
    except (TypeError, ValueError):
        raise BrokenError("damaged versions that are none") from None


def pairs_in(value: Any) -> list[tuple[int, int]]:
    """Ranges as they came. Raises BrokenError."""
    try:
        return [(int(start), int(end)) for start, end in value or ()]
    except (TypeError, ValueError):
        raise BrokenError("ranges that are none") from None


def node_status(address: Endpoint, token: Token | bytes, *, limit_s: float = 10.0) -> Mapping[str, Any]:
    """What a node says of itself.

    Raises:
        CheckpointError: it cannot be reached, or refuses.
    """
    try:
        link = Link(address, token, limit_s=limit_s)
        try:
            link.hello({"role": "status"}, limit_s=limit_s)
            return link.expect(Kind.METRICS, link.call(Kind.STATUS, limit_s=limit_s, most=MOST_DOCUMENT)).body
        finally:
            link.close()
    except OSError as error:
        raise unreachable(address, error) from error


def unreachable(address: Endpoint, error: OSError) -> CheckpointError:
    """The error for a node that does not answer as it should."""
    return CheckpointError(f"{address.url}: {error.strerror or error or type(error).__name__}; {address.advice}")


def _context() -> ssl.SSLContext:
    authority = os.environ.get(CA_VARIABLE, "")
    try:
        return ssl.create_default_context(cafile=authority or None)
    except OSError as error:
        raise RequestError(CA_VARIABLE, authority, f"a file of certificates ({error.strerror or error})") from None
