"""Detect and stop trainers of one job that form no process group, on one or more machines.

Ranks that train together are connected, which the kernel's tables of TCP sockets show for any
library. Only a step, or the end of all trainers, is a reason to stop those that are not; not the
end under torchrun, whose own connections hide those of ranks that have ended.
"""

import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from deepvm.io.processes import descendants

LATE_S = 60.0
ONE_PROCESS = "--processes-per-machine 1"
_POLL_S = 0.1
_SYN_SENT = 2
_ADDRESS_DIGITS = 8  # Digits of an IPv4 address, also where a socket for IPv6 has it
_End: TypeAlias = tuple[str, int]


class _Connection(NamedTuple):
    """Endpoints as the kernel writes them; ``inode``: 0 if no process owns the socket."""

    local: _End
    remote: _End
    inode: int


def are_connected(
    roots: Sequence[int],
    port: int,
    peers: Collection[str] = (),
    tiers: Collection[str] = (),
    *,
    count_closed: bool = True,
) -> bool:
    """Whether ranks are connected; True also where that cannot be known.

    ``roots``: the process of each local rank. ``port``: of their store. ``peers``: other machines.
    ``tiers``: memory nodes, which are no group. ``count_closed``: connections closed a moment ago.
    """
    try:
        owners = {
            inode: rank
            for rank, root in enumerate(roots)
            for pid in (root, *descendants(root))
            for inode in _sockets(pid)
        }
        others = {_as_in_table(address) for address in peers}
        tier_ports = {int(number) for tier in tiers for number in re.findall(r":(\d+)", tier)}
        connections = list(_connections())
    except (OSError, ValueError):
        return True
    own = [c for c in connections if c.inode in owners]
    ends = {c.local: owners[c.inode] for c in own}
    at_store = [c for c in connections if port in (c.local[1], c.remote[1])]
    return (
        any(c.inode in owners or (count_closed and not c.inode) for c in at_store)
        or any(c.remote[0] in others and c.remote[1] not in tier_ports for c in own)
        or any(ends.get(c.remote, owners[c.inode]) != owners[c.inode] for c in own)
    )


def _connections() -> Iterator[_Connection]:
    for name in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):  # a kernel without IPv6
            for line in Path("/proc/self/net", name).read_text().splitlines()[1:]:
                words = line.split()
                if int(words[3], 16) != _SYN_SENT:
                    yield _Connection(_end(words[1]), _end(words[2]), int(words[9]))


def _end(text: str) -> _End:
    address, port = text.split(":")
    return address[-_ADDRESS_DIGITS:], int(port, 16)


def _as_in_table(address: str) -> str:
    """The address of a machine, in the kernel's words of 32 bits."""
    family, *_, endpoint = socket.getaddrinfo(address, None)[0]
    word = socket.inet_pton(family, str(endpoint[0]))[-4:]
    return f"{int.from_bytes(word, sys.byteorder):08X}"


def _sockets(pid: int) -> Iterator[int]:
    folder = Path(f"/proc/{pid}")
    try:
        files = list((folder / "fd").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return
    except PermissionError:
        # It has ended, and holds nothing
        if (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        raise
    for file in files:
        with suppress(FileNotFoundError, ProcessLookupError):
            target = os.readlink(file)
            if target.startswith("socket:["):
                yield int(target[len("socket:[") : -1])


class GroupWatch:
    """Looks at the trainers of a generation until they have formed a group; thread-safe."""

    def __init__(
        self, look: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look = look
        self._clock = clock
        self._since_s = clock()
        self._looked_s = float("-inf")
        self._lock = threading.Lock()
        self._warned = self._formed = False
        # Whether a trainer is at its first step without a group, and waits for its end
        self.has_failed = False

    def is_formed(self, *, now: bool = False) -> bool:
        with self._lock:
            if not self._formed and (now or self._clock() - self._looked_s >= _POLL_S):
                self._looked_s = self._clock()
                self._formed = self._look()
            return self._formed

    def first_step(self) -> bool:
        """Whether a trainer at its first step, without ``torch.distributed``, has to wait."""
        self.has_failed = self.has_failed or not self.is_formed(now=True)
        return self.has_failed

    def is_late(self) -> bool:
        late = not self._warned and self._clock() - self._since_s >= LATE_S
        self._warned = self._warned or late
        return late


def explanation(processes: int, machine: str, machines: int, when: str) -> str:
    """What is wrong with trainers that formed no group by a time, and what to do."""
    if processes > 1:
        which = f"{processes} processes run on {machine} and"
        one = ONE_PROCESS
    else:
        which = f"{machine} and the other machines run one process each and"
        one = "one machine"
    if processes > 1 < machines:
        one += " and one machine"
    return (
        f"{which} formed no process group {when}: each trains a copy of the model, and all write"
        " the same files; try: torch.distributed.init_process_group() and DistributedDataParallel"
        f" in the script, {one} for one process, or --independent-processes for separate trainings"
    )
