"""Setup of a saturation measurement, and its programs on the hosts: start and rendezvous."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from deepvm.core.units import refuse_outside
from deepvm.errors import RequestError
from deepvm.profiling.hosts.coordinator import Coordinator
from deepvm.profiling.hosts.launcher import Host, Launcher

_TCP = "deepvm.profiling.saturation.transfer_tcp"
MARGIN_S = 10.0  # for an answer to arrive after what it is about
# A host ends by itself this long after the time of all pushes, if it could not be ended
SLACK_S = 60.0
_MOST_REPEATS = 1000


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is measured, and how.

    Attributes:
        receiver: its ``address``, if any, is where the senders reach it (TCP). senders: n goes from
            1 to their number.
        checkpoint_bytes: pushed by all senders together. repeats: of each n. seed: of the order.
        start_s: until all hosts have found each other. limit_s: for one push. stall_s: a sender
            that is silent for so long is lost. interface: the only one, or network, to use (MPI).
            sender_type, receiver_type: instance types, "" for unknown. sender_gbps, receiver_gbps:
            None to measure them.
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
        """Raise RequestError: fewer than two senders, a duplicate host, a number out of range."""
        names = [host.name for host in self.senders]
        if len(names) < 2:
            raise RequestError("senders", ",".join(names), "two hosts or more")
        if len({self.receiver.name, *names}) <= len(names):
            raise RequestError("senders", ",".join(names), "each host once, and not the receiver")
        if self.checkpoint_bytes < len(self.senders):
            raise RequestError(
                "checkpoint_size", self.checkpoint_bytes, "at least a byte for each sender"
            )
        refuse_outside("repeats", self.repeats, 1, _MOST_REPEATS)
        refuse_outside("seed", self.seed, 0)
        for option in ("sender_gbps", "receiver_gbps"):
            value = getattr(self, option)
            if value is not None and not 0 < value < float("inf"):
                raise RequestError(option, value, "a number above 0")

    @property
    def pushes_s(self) -> float:
        """Seconds that all pushes may take, including the warm-up."""
        return (len(self.senders) * self.repeats + 1) * (self.limit_s + self.stall_s)


class Push(NamedTuple):
    """One push: seconds from the first start signal to the last byte, by the receiver's clock.

    ``busy`` is the share in which the receiving thread used a processor. With ``lost`` senders,
    seconds mean nothing.
    """

    seconds: float
    busy: float
    lost: Mapping[str, str]


@dataclass
class Cluster:
    """The programs on all hosts.

    Place 0 of the coordinator is the receiver's (TCP) or mpirun, ``receiver`` in errors.

    ``senders`` can push, those ``absent`` cannot; ``places`` of senders are empty under mpirun,
    which needs a ``restart`` with the other senders when one is lost.
    """

    setup: Setup
    programs: Coordinator
    receiver: str
    senders: list[str]
    absent: Mapping[str, str]
    boots: Sequence[str]
    places: Mapping[str, int] = field(default_factory=dict)
    restart: Callable[[Sequence[str]], Coordinator] | None = None

    def push(self, names: Sequence[str]) -> Push:
        """Push one checkpoint from these senders.

        Raises a MeasurementError if the receiver does not answer.
        """
        setup = self.setup
        self.programs.send(
            0, {"push": list(names), "bytes": setup.checkpoint_bytes, "limit_s": setup.limit_s}
        )
        found = self.programs.answer(0, setup.limit_s + setup.stall_s + MARGIN_S, self.receiver)
        lost = dict(found["lost"])
        for name in lost.keys() & self.places.keys():
            lost[name] += f" ({self.programs.ending(self.places[name])})"
        return Push(found["seconds"], found["busy"], lost)

    def drop(self, lost: Collection[str]) -> None:
        """Go on without these senders; raises a MeasurementError if the others cannot."""
        self.senders = [name for name in self.senders if name not in lost]
        if self.restart is not None and len(self.senders) >= 2:
            self.programs = self.restart(self.senders)


@contextmanager
def tcp_cluster(setup: Setup, hear: Callable[[str], None] | None = None) -> Iterator[Cluster]:
    """Run ``transfer_tcp`` on all hosts; it ends with the block, whatever happens."""
    limit = setup.start_s + MARGIN_S + setup.pushes_s + SLACK_S
    hosts = (setup.receiver, *setup.senders)
    orders = [
        json.dumps({"work": "send" if place else "receive", "limit_s": limit})
        for place in range(len(hosts))
    ]
    commands = [
        (host, setup.launcher.command(host, _TCP, [o]))
        for host, o in zip(hosts, orders, strict=True)
    ]
    places = {host.name: place for place, host in enumerate(hosts) if place}
    receiver = f"receiver {setup.receiver.name}"
    with Coordinator(commands, hear) as programs:
        deadline = time.monotonic() + setup.start_s
        # The token is not among the arguments, which every user of a host can see.
        first = {"token": secrets.token_hex(32), "stall_s": setup.stall_s, "limit_s": limit}
        programs.send(0, {**first, "senders": list(places)})
        found = programs.answer(0, setup.start_s, receiver)
        # A public name may lead the long way round: the receiver's own addresses come first.
        own = setup.receiver.address
        if own:
            addresses = [own]
        else:
            addresses = [*found["addresses"], setup.receiver.plain]
        for name, place in places.items():
            programs.send(
                place, {**first, "name": name, "addresses": addresses, "port": found["port"]}
            )
        answers, failed = programs.collect(places.values(), max(deadline - time.monotonic(), 1.0))
        ready = [name for name, place in places.items() if place in answers]
        programs.send(0, {"gather": ready})
        here = programs.answer(0, 2 * MARGIN_S, receiver)["here"]
        absent = {hosts[place].name: why for place, why in failed.items()}
        absent |= {name: "the receiver does not know it" for name in ready if name not in here}
        boots = [found["boot"], *(answer["boot"] for answer in answers.values())]
        yield Cluster(setup, programs, receiver, here, absent, boots, places)
