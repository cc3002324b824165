"""Detect and stop trainers of one job that form no process group, on one or more machines.

Each of them would train a copy of the model, and all would write the same files. Ranks that train
together are connected: to the store at ``MASTER_PORT``, to one another, or to other machines of the
job. The kernel's tables of TCP sockets show that for any library.

It is unknown how long a script loads before it forms its group, so time is no reason to stop it:
after ``LATE_S`` the log has a warning. Reasons are a reported step, the first step of a torch
optimizer (:mod:`deepvm.jobs.agent.warm`) and the end of all trainers. Under torchrun the end is no
reason: its own connections hide those of ranks that have ended.
"""

from __future__ import annotations

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

from deepvm.io.process_tree import descendants

LATE_S = 60.0
ONE_PROCESS = "--processes-per-machine 1"
_POLL_S = 0.1
_SYN_SENT = 2
_ADDRESS_DIGITS = 8
"""Digits of an IPv4 address, also where a socket for IPv6 has it."""
_End: TypeAlias = tuple[str, int]


class _Connection(NamedTuple):
    """A TCP socket with its endpoints as the kernel writes them; ``inode``: 0 if no owner."""

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

    Args:
        roots: the process of each rank on this machine; what it has started belongs to it.
        port: of the store where the ranks are expected to meet.
        peers: addresses of the job's other machines; simulated ones have that of this machine.
        tiers: URLs of memory nodes, which may run on those machines: connections to them are no
            group.
        count_closed: whether closed connections to the port count, which the kernel shows for a
            minute.
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
    """The inodes of a process's sockets; none once it has ended.

    Raises OSError: they may not be read.
    """
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
    """Looks at the trainers of a generation until they have formed a group; any thread may ask."""

    def __init__(
        self, look: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look = look
        self._clock = clock
        self._since_s = clock()
        self._looked_s = float("-inf")
        self._lock = threading.Lock()
        self._warned = self._formed = False
        self.has_failed = False
        """Whether a trainer is at its first step without a group, and waits for its end."""

    def is_formed(self, *, now: bool = False) -> bool:
        """Whether there is a group; looks now and then, or ``now``."""
        with self._lock:
            if not self._formed and (now or self._clock() - self._looked_s >= _POLL_S):
                self._looked_s = self._clock()
                self._formed = self._look()
            return self._formed

    def first_step(self) -> bool:
        """A trainer is at its first step without ``torch.distributed``.

        Returns whether it has to wait for its end.
        """
        self.has_failed = self.has_failed or not self.is_formed(now=True)
        return self.has_failed

    def is_late(self) -> bool:
        """Whether the log should have a warning now; once."""
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
