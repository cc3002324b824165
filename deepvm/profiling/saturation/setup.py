"""What a saturation measurement needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from deepvm.errors import RequestError
from deepvm.profiling.hosts.host_list import Host
from deepvm.profiling.hosts.launcher import Launcher

MOST_REPEATS = 1000


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is measured, and how.

    Attributes:
        receiver: the host that all push to; ``address``, if any, is where the senders reach it (TCP).
        senders: hosts; n goes from 1 to their number.
        launcher: how commands get to hosts.
        checkpoint_bytes: pushed by all senders together.
        repeats: of each n. seed: of the order.
        start_s: until all hosts have found each other. limit_s: for one push.
        stall_s: a sender that is silent for so long is lost.
        interface: the only one, or network, to use (MPI).
        sender_type, receiver_type: instance types, "" for unknown. sender_gbps, receiver_gbps: None to measure them.
    """

    receiver: Host
    senders: tuple[Host, ...]
    launcher: Launcher
    transport: Literal["tcp", "mpi"] = "tcp"
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
