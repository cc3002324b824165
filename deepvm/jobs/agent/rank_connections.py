"""Whether the trainers of a machine have formed a process group, seen from outside the trainers.

Ranks that train together are connected: to the store at ``MASTER_PORT``, to one another, or to other machines of the
job. The kernel's tables of TCP sockets show that, whatever the trainers run.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

_SYN_SENT = 2
_ADDRESS_DIGITS = 8
"""Of an IPv4 address, also where a socket for IPv6 has it."""
_End: TypeAlias = tuple[str, int]


class _Connection(NamedTuple):
    """A TCP socket: its ends, addresses as the kernel writes them; ``inode``: 0 once no process holds it."""

    local: _End
    remote: _End
    inode: int


def are_connected(roots: Sequence[int], port: int, peers: Collection[str] = (), *, count_closed: bool = True) -> bool:
    """Whether ranks are connected; True also where that cannot be known.

    Args:
        roots: the process of each rank on this machine; what it has started belongs to it.
        port: of the store where the ranks are expected to meet.
        peers: addresses of the job's other machines.
        count_closed: whether closed connections to the port count, which the kernel shows for a minute.
    """
    try:
        owners = {inode: rank for rank, root in enumerate(roots) for pid in _family(root) for inode in _sockets(pid)}
        others = {_as_in_table(address) for address in peers}
        connections = list(_connections())
    except (OSError, ValueError):
        return True
    own = [c for c in connections if c.inode in owners]
    ends = {c.local: owners[c.inode] for c in own}
    at_store = [c for c in connections if port in (c.local[1], c.remote[1])]
    return (
        any(c.inode in owners or (count_closed and not c.inode) for c in at_store)
        or any(c.remote[0] in others for c in own)
        or any(ends.get(c.remote, owners[c.inode]) != owners[c.inode] for c in own)
    )


def _connections() -> Iterator[_Connection]:
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
            for line in Path("/proc/self/net", name).read_text().splitlines()[1:]:
                words = line.split()
                if int(words[3], 16) != _SYN_SENT:
                    yield _Connection(_end(words[1]), _end(words[2]), int(words[9]))


def _end(text: str) -> _End:
    address, port = text.split(":")
    return address[-_ADDRESS_DIGITS:], int(port, 16)


def _as_in_table(address: str) -> str:
    """The address of a machine, in the kernel's words of 32 bits."""
    family, *_, place = socket.getaddrinfo(address, None)[0]
    word = socket.inet_pton(family, str(place[0]))[-4:]
    return f"{int.from_bytes(word, sys.byteorder):08X}"


def _family(root: int) -> Iterator[int]:
    """A process and all that it has started."""
    yield root
    for child in children_of(root):
        yield from _family(child)


def children_of(pid: int) -> list[int]:
    """The processes that one has started; none once it has ended."""
    found = list[int]()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def _sockets(pid: int) -> Iterator[int]:
    """The inodes of a process's sockets; none once it has ended. Raises OSError: they may not be looked at."""
    folder = Path(f"/proc/{pid}")
    try:
        files = list((folder / "fd").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return
    except PermissionError:
        if (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z":  # it has ended, and holds nothing
            return
        raise
    for file in files:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            target = os.readlink(file)
            if target.startswith("socket:["):
                yield int(target[len("socket:[") : -1])
