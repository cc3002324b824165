"""A memory node's address within one ``mpirun``; see :mod:`deepvm.checkpoint.tiers.mpi`."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import ClassVar

from deepvm.checkpoint.network.mpi_streams import Carrier, carrier
from deepvm.errors import RequestError

_URL = re.compile(r"mpi://([0-9]{0,6})/?", re.ASCII)


@dataclass(frozen=True)
class MpiEndpoint:
    """A process of this ``mpirun``; see :class:`~deepvm.checkpoint.network.endpoint.Endpoint`."""

    shared: ClassVar[bool] = False
    rank: int

    @classmethod
    def parse(cls, url: str) -> MpiEndpoint:
        """Read ``mpi://RANK``, or ``mpi://`` for the last one; collective, see :func:`carrier`.

        Raises:
            RequestError: there is no such rank. CheckpointError: this process is not in an ``mpirun``.
        """
        match = _URL.fullmatch(url)
        if match is None:
            raise RequestError("tiers", url, "mpi://RANK, or mpi:// for the last rank")
        size = carrier().size
        rank = int(match[1]) if match[1] else size - 1
        if rank >= size:
            raise RequestError("tiers", url, f"ranks 0 to {size - 1}")
        return cls(rank)

    @classmethod
    def here(cls) -> MpiEndpoint:
        """This process; collective as well."""
        return cls(carrier().rank)

    @property
    def url(self) -> str:
        """``mpi://RANK``."""
        return f"mpi://{self.rank}"

    @property
    def advice(self) -> str:
        """See :class:`~deepvm.checkpoint.network.endpoint.Endpoint`."""
        return "is that rank of mpirun a 'deepvm memory-node serve --listen mpi', and alive?"

    def open(self, limit_s: float) -> socket.socket:
        """See :class:`~deepvm.checkpoint.network.endpoint.Endpoint`; whether anybody serves shows when it is used."""
        return carrier().connect(self.rank)

    def listen(self, *, secure: bool = False) -> MpiListener:
        """See :class:`~deepvm.checkpoint.network.endpoint.Endpoint`."""
        if secure:
            raise RequestError("tls_cert", "a certificate", "none: there is no TLS over MPI")
        return MpiListener(carrier())

    def __str__(self) -> str:
        """The URL."""
        return self.url


class MpiListener:
    """Streams that other processes open; see :class:`~deepvm.checkpoint.network.endpoint.Listener`."""

    def __init__(self, streams: Carrier) -> None:
        """Accept streams from other processes."""
        self.endpoint = MpiEndpoint(streams.rank)
        self._streams, self._queue = streams, streams.serve()

    def accept(self) -> tuple[socket.socket, str]:
        """See :class:`~deepvm.checkpoint.network.endpoint.Listener`."""
        found = self._queue.get()
        if found is None:
            raise OSError("closed")
        return found[0], f"mpi rank {found[1]}"

    def deserted(self) -> bool:
        """See :class:`~deepvm.checkpoint.network.endpoint.Listener`."""
        return self._streams.deserted()

    def shut(self) -> None:
        """See :class:`~deepvm.checkpoint.network.endpoint.Listener`."""
        self._streams.unserve()
        self._queue.put(None)

    def close(self) -> None:
        """See :class:`~deepvm.checkpoint.network.endpoint.Listener`."""
        self.shut()
