"""What a saturation measurement needs to know, and what a transport must offer to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from deepvm.errors import RequestError
from deepvm.profiling.hosts.host_list import Host
from deepvm.profiling.hosts.launcher import Launcher

MOST_REPEATS = 1000
Transport = Literal["tcp", "mpi"]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is measured, and how.

    Attributes:
        receiver: the host that all push to; its ``address`` where the senders shall not find it out (TCP).
        senders: hosts; n goes from 1 to their number.
        launcher: how commands get to hosts.
        checkpoint_bytes: pushed by all senders together.
        repeats: of each n. seed: of the order.
        start_s: until all hosts have found each other. limit_s: for one push.
        stall_s: a sender of which nothing comes for so long is lost.
        interface: only this one, or this network, is used (MPI).
        sender_type, receiver_type: instance types, "" for unknown. sender_gbps, receiver_gbps: None is measured.
    """

    receiver: Host
    senders: tuple[Host, ...]
    launcher: Launcher
    transport: Transport = "tcp"
    checkpoint_bytes: int = 300_000_000
    repeats: int = 5
    seed: int = 0
    start_s: float = 180.0
    limit_s: float = 600.0
    stall_s: float = 30.0
    interface: str = ""
    sender_type: str = ""
    receiver_type: str = ""
    sender_gbps: float | None = None
    receiver_gbps: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be measured.

        Raises:
            RequestError: fewer than two senders, a host twice, or a number that is not above 0.
        """
        names = [host.name for host in self.senders]
        if len(names) < 2:
            raise RequestError("senders", ",".join(names), "two hosts or more")
        if len({self.receiver.name, *names}) <= len(names):
            raise RequestError("senders", ",".join(names), "each host once, and not the receiver")
        if self.checkpoint_bytes < len(self.senders):
            raise RequestError("checkpoint_size", self.checkpoint_bytes, "at least a byte for each sender")
        if not 1 <= self.repeats <= MOST_REPEATS:
            raise RequestError("repeats", self.repeats, f"a whole number from 1 to {MOST_REPEATS}")
        if self.seed < 0:
            raise RequestError("seed", self.seed, "a whole number from 0")
        for option, value in (
            ("start_timeout", self.start_s),
            ("timeout", self.limit_s),
            ("sender_gbps", self.sender_gbps),
            ("receiver_gbps", self.receiver_gbps),
        ):
            if value is not None and not 0 < value < float("inf"):
                raise RequestError(option, value, "a number above 0")

    @property
    def pushes_s(self) -> float:
        """Seconds that all pushes may take, the one that does not count with them."""
        return (len(self.senders) * self.repeats + 1) * (self.limit_s + self.stall_s)


@dataclass(frozen=True)
class Push:
    """What one push took.

    Attributes:
        seconds: from the first start signal to the last byte, by the receiver's clock.
        busy: the part of it in which the receiving thread used a processor; 0 where that says nothing.
        lost: why senders have not sent their part, by their names; then the seconds mean nothing.
    """

    seconds: float
    busy: float = 0.0
    lost: Mapping[str, str] = field(default_factory=dict)


class Cluster(Protocol):
    """The programs on all hosts."""

    senders: list[str]
    """Those that can push."""
    absent: dict[str, str]
    """Why others never could."""
    local: bool
    """Whether hosts are one machine, such as network namespaces."""

    def push(self, names: Sequence[str], size: int) -> Push:
        """Have these senders push ``size`` bytes together.

        Raises:
            MeasurementError: the receiver does not answer.
        """
