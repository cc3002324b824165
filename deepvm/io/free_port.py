"""A TCP port to listen at, for programs that need to know it beforehand."""

from __future__ import annotations

import socket


def free_port(address: str = "") -> int:
    """A free port; another process may take it before it is used."""
    with socket.socket() as found:
        found.bind((address, 0))
        return int(found.getsockname()[1])
