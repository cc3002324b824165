"""Addresses of memory nodes (host and port, or rank of one ``mpirun``): connect and listen."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
from typing import ClassVar

from deepvm.checkpoint.network.mpi_streams import MpiTransport, carrier
from deepvm.checkpoint.network.protocol import BrokenError, tune
from deepvm.errors import CheckpointError, OptionMismatchError, RequestError
from deepvm.records import dataclass, replace

CA_VARIABLE = "DEEPVM_TLS_CA"
_ADDRESS = re.compile(
    r"(?:(?P<scheme>tcps?)://)?(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s/:@\[\]]+):(?P<port>[0-9]{1,5})/?",
    re.ASCII,
)
_MPI_URL = re.compile(r"mpi://([0-9]{0,6})/?", re.ASCII)


@dataclass(frozen=True)
class Address:
    """A host and port; ``secure``: by TLS."""

    shared: ClassVar[bool] = True
    advice: ClassVar[str] = (
        "is a memory node running there (deepvm memory-node serve),"
        " and may it be reached from here?"
    )
    host: str
    port: int
    secure: bool = False

    @classmethod
    def parse(cls, text: str, option: str = "address") -> Address:
        """``HOST:PORT``, ``tcp://...`` or ``tcps://...``. Raises RequestError for ``option``."""
        match = _ADDRESS.fullmatch(text)
        # An empty or too long part: looking it up would raise it too
        with contextlib.suppress(UnicodeError):
            if match is not None and int(match["port"]) <= 65535 and match["host"].encode("idna"):
                return cls(match["host"].strip("[]"), int(match["port"]), match["scheme"] == "tcps")
        raise RequestError(
            option, text, "HOST:PORT, tcp://HOST:PORT, or tcps://HOST:PORT with TLS; ports to 65535"
        )

    @property
    def url(self) -> str:
        return f"tcp{'s' if self.secure else ''}://{self}"

    def __str__(self) -> str:
        if ":" in self.host:
            return f"[{self.host}]:{self.port}"
        return f"{self.host}:{self.port}"

    def open(self, limit_s: float) -> socket.socket:
        """Connect. Raises OSError, or CheckpointError for an untrusted certificate."""
        sock = socket.create_connection((self.host, self.port), timeout=max(limit_s, 0.001))
        try:
            tune(sock)
            if self.secure:
                return _context().wrap_socket(sock, server_hostname=self.host)
            return sock
        except BaseException as error:
            sock.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                why = f"its certificate is not trusted: {error.verify_message}"
                raise CheckpointError(
                    f"{why}; name the authority's file in {CA_VARIABLE}"
                ) from None
            # An end of file is no answer in plain text: the node may just have ended.
            if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
                plain = replace(self, secure=False).url
                raise BrokenError(
                    f"it does not speak TLS ({error.reason}); a node without it is {plain}"
                ) from None
            raise

    def listen(self, *, secure: bool = False) -> TcpListener:
        try:
            return TcpListener(self, secure)
        except OSError as error:
            raise CheckpointError(
                f"{self}: cannot listen there: {error.strerror or error}"
            ) from error


class TcpListener:
    """A listening socket; ``endpoint`` is where."""

    def __init__(self, address: Address, secure: bool) -> None:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family = found[0][0]
        where = found[0][4]
        # So that [::] takes IPv4 peers, too
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        self._socket = socket.create_server(where, family=family, backlog=64, dualstack_ipv6=both)
        host, port, *_ = self._socket.getsockname()
        self.endpoint = Address(host, port, secure)

    def accept(self) -> tuple[socket.socket, str]:
        sock, where = self._socket.accept()
        return sock, f"{where[0]}:{where[1]}"

    def deserted(self) -> bool:
        return False

    def shut(self) -> None:
        with contextlib.suppress(OSError):  # wakes the thread in accept()
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


@dataclass(frozen=True)
class MpiEndpoint:
    """A process of this ``mpirun``, which cannot be reached from outside."""

    shared: ClassVar[bool] = False
    advice: ClassVar[str] = (
        "is that rank of mpirun a 'deepvm memory-node serve --listen mpi', and alive?"
    )
    rank: int

    @classmethod
    def parse(cls, url: str) -> MpiEndpoint:
        """``mpi://RANK``, or ``mpi://`` for the last. Collective. Raises RequestError."""
        if (match := _MPI_URL.fullmatch(url)) is None:
            raise RequestError("tiers", url, "mpi://RANK, or mpi:// for the last rank")
        size = carrier().size
        rank = int(match[1]) if match[1] else size - 1
        if rank >= size:
            raise RequestError("tiers", url, f"ranks 0 to {size - 1}")
        return cls(rank)

    @classmethod
    def here(cls) -> MpiEndpoint:
        return cls(carrier().rank)

    @property
    def url(self) -> str:
        return f"mpi://{self.rank}"

    def __str__(self) -> str:
        return self.url

    def open(self, limit_s: float) -> socket.socket:
        return carrier().connect(self.rank)

    def listen(self, *, secure: bool = False) -> MpiListener:
        if secure:
            reason = "does not go with MPI, which has no TLS"
            raise OptionMismatchError("tls_cert", "a certificate", reason)
        return MpiListener(carrier())


class MpiListener:
    """Streams that other processes open; as :class:`TcpListener`."""

    def __init__(self, streams: MpiTransport) -> None:
        self.endpoint = MpiEndpoint(streams.rank)
        self._streams = streams
        self._queue = streams.serve()
        self.deserted = streams.deserted

    def accept(self) -> tuple[socket.socket, str]:
        if (found := self._queue.get()) is None:
            raise OSError("closed")
        return found[0], f"mpi rank {found[1]}"

    def shut(self) -> None:
        self._streams.opened = None
        self._queue.put(None)

    close = shut


Endpoint = Address | MpiEndpoint
Listener = TcpListener | MpiListener


def endpoint_of(url: str, option: str) -> Endpoint:
    """Where one memory node is. Raises RequestError, CheckpointError."""
    if url.startswith("mpi:"):
        return MpiEndpoint.parse(url)
    return Address.parse(url, option)


def _context() -> ssl.SSLContext:
    authority = os.environ.get(CA_VARIABLE, "")
    try:
        return ssl.create_default_context(cafile=authority or None)
    except OSError as error:
        raise RequestError(
            CA_VARIABLE, authority, f"a file of certificates ({error.strerror or error})"
        ) from None
