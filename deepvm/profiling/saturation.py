"""How many VMs may push to one memory node at once: measured (DeepVM III-C2, eq. 14, Table V)."""

from __future__ import annotations

import random
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal, Protocol

from deepvm.errors import MeasurementError, RequestError
from deepvm.profiling.agents import Agent, Launcher, end
from deepvm.profiling.knee import Knee, fit_knee, raw_saturation
from deepvm.profiling.machine import describe

SCHEMA = "deepvm.saturation/1"
START_S = 60.0
"""For programs to start on their hosts, and to find one another."""
_MARGIN_S = 10.0
_BUSY = 0.8
_CLEAN = 0.1
_SHORT_S = 0.05
Transport = Literal["tcp", "mpi"]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is measured, and how.

    Attributes:
        receiver, senders: hosts, as the launcher knows them; n goes from 1 to the number of senders.
        checkpoint_bytes: pushed by all senders together.
        repeats: of each n. seed: of the order.
        limit_s: for one push. stall_s: a sender of which nothing comes for so long is lost.
        python: the interpreter with deepvm on the hosts.
        address: the receiver's, where the senders shall not find it out (TCP).
        interface: only this one, or this network, is used (MPI).
        sender_type, receiver_type: instance types, "" for unknown. sender_gbps, receiver_gbps: None is measured.
    """

    receiver: str
    senders: tuple[str, ...]
    launcher: Launcher
    transport: Transport = "tcp"
    checkpoint_bytes: int = 300_000_000
    repeats: int = 5
    seed: int = 0
    limit_s: float = 600.0
    stall_s: float = 30.0
    python: str = sys.executable
    address: str = ""
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
        if len(self.senders) < 2:
            raise RequestError("senders", ",".join(self.senders), "two hosts or more, separated by commas")
        if len({self.receiver, *self.senders}) <= len(self.senders):
            raise RequestError("senders", ",".join(self.senders), "each host once, and not the receiver")
        if not self.receiver:
            raise RequestError("receiver", "", "the name of a host")
        if self.checkpoint_bytes < len(self.senders):
            raise RequestError("checkpoint_size", self.checkpoint_bytes, "at least a byte for each sender")
        for option in ("repeats", "timeout", "sender_gbps", "receiver_gbps"):
            value = getattr(self, {"timeout": "limit_s"}.get(option, option))
            if value is not None and not 0 < value < float("inf"):
                raise RequestError(option, value, "a number above 0")


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

    def push(self, names: Sequence[str], size: int) -> Push:
        """Have these senders push ``size`` bytes together.

        Raises:
            MeasurementError: the receiver does not answer.
        """


@dataclass(frozen=True)
class Saturation:
    """A measurement; see :meth:`document`.

    Attributes:
        times: seconds of each repeat, by n. raw: eq. 14 on their medians. knee: fitted to them.
        sender_gbps, receiver_gbps: as given or measured; None where neither.
        measured: which of both are measured.
    """

    setup: Setup
    times: Mapping[int, Sequence[float]]
    raw: int | None
    knee: Knee
    sender_gbps: float | None
    receiver_gbps: float | None
    measured: tuple[str, ...]
    warnings: tuple[str, ...]
    machine: Mapping[str, Any]

    def document(self) -> dict[str, Any]:
        """``deepvm.saturation/1``: ``n_sat_knee`` and bounds of ``interval`` are null at or beyond the largest n."""
        setup = self.setup
        return {
            "schema_version": SCHEMA,
            "transport": setup.transport,
            "checkpoint_bytes": setup.checkpoint_bytes,
            "sender_type": setup.sender_type,
            "receiver_type": setup.receiver_type,
            "sender_gbps": self.sender_gbps,
            "receiver_gbps": self.receiver_gbps,
            "gbps_measured": list(self.measured),
            "times": [{"n": n, "seconds": list(own)} for n, own in sorted(self.times.items())],
            "n_sat_raw": self.raw,
            "n_sat_knee": self.knee.n_sat,
            "knee": {name: getattr(self.knee, name) for name in ("senders", "rise", "seconds", "error")},
            "interval": [self.knee.low, self.knee.high],
            "warnings": list(self.warnings),
            "machine": dict(self.machine),
        }


def measure(setup: Setup, say: Callable[[str], None] = lambda line: None) -> Saturation:
    """Measure t(n) for n = 1 ... N, and say where it stops falling.

    All n are measured once in each repeat, in an order of its own, and by senders of its own: what drifts with time or
    is slow on one host does not look like saturation. A sender that is lost is named in a warning, and the others go
    on.

    Args:
        setup: what to measure.
        say: is told of the progress, a line each.

    Raises:
        MeasurementError: the receiver or all but one of the senders are lost before there is anything to tell.
        RequestError, MissingExtraError: the transport cannot be used here.
    """
    warnings: list[str] = []
    times: dict[int, list[float]] = {}
    busy: list[float] = []

    def warn(text: str) -> None:
        warnings.append(text)
        say(f"Warning: {text}")

    say(f"starting {len(setup.senders)} senders and {setup.receiver}")
    with _cluster(setup) as cluster:
        for name, reason in cluster.absent.items():
            warn(f"sender {name} could not be used: {reason}")
        try:
            for n, push in _pushes(setup, cluster, say, warn):
                times.setdefault(n, []).append(push.seconds)
                busy.append(push.busy)
        except MeasurementError as error:
            if len(times) < 2 or 1 not in times:
                raise
            warn(f"the measurement ended early: {error}")
    if len(times) < 2 or 1 not in times:
        raise MeasurementError(f"nothing could be measured, two senders are needed; {'; '.join(warnings)}")
    return evaluate(setup, times, warnings=warnings, busy=median(busy))


def evaluate(
    setup: Setup,
    times: Mapping[int, Sequence[float]],
    *,
    warnings: Sequence[str] = (),
    busy: float = 0.0,
) -> Saturation:
    """What times tell. ``busy``: the median of what :class:`Push` says. ``warnings``: what went wrong meanwhile."""
    knee, raw, largest = fit_knee(times, seed=setup.seed), raw_saturation(times), max(times)
    doubts = list(_doubts(setup, times, knee, busy))
    gbps = {"sender": setup.sender_gbps, "receiver": setup.receiver_gbps}
    measured = [side for side, given in gbps.items() if given is None]
    bits = 8e-9 * setup.checkpoint_bytes
    if gbps["sender"] is None:
        gbps["sender"] = _rounded(bits / median(times[1]))
    if gbps["receiver"] is None and knee.n_sat is not None:
        gbps["receiver"] = _rounded(max(bits / median(own) for n, own in times.items() if n <= largest))
    return Saturation(
        setup,
        {n: tuple(own) for n, own in sorted(times.items())},
        raw,
        knee,
        gbps["sender"],
        gbps["receiver"],
        tuple(side for side in measured if gbps[side] is not None),
        (*warnings, *doubts),
        describe().document(),
    )


def _doubts(setup: Setup, times: Mapping[int, Sequence[float]], knee: Knee, busy: float) -> Iterator[str]:
    largest = max(times)
    if setup.launcher.local:
        yield "all senders and the receiver are on this machine: this says nothing of a network"
    if knee.n_sat is None:
        yield f"no saturation seen up to {largest} senders: n_sat is {largest} or more; add senders"
    elif knee.senders <= 1:
        yield (
            "one sender fills the receiver alone, and its own bandwidth may be higher than what was measured; n_sat is "
            "2, the least that lets one sender to a receiver (eq. 15)"
        )
    if busy > _BUSY:
        yield f"the receiver's processor was busy for {busy:.0%} of the time: it may be the limit, not the network"
    shortest = min(median(own) for own in times.values())
    if shortest < _SHORT_S:
        yield f"pushes took only {1000 * shortest:.0f} ms, a part of it to begin; a larger --checkpoint-size tells more"
    fewest = min(len(own) for own in times.values())
    if fewest < 3:
        yield f"{fewest} repeats of some n: the interval is a guess; 5 are better"
    if knee.error > _CLEAN:
        yield (
            f"t(n) is off the fit by {knee.error:.0%}: more than senders and one receiver with a bandwidth each are at "
            "work; look at the times"
        )
    if knee.low != knee.high:
        bounds = " to ".join(str(bound or f"{largest} or more") for bound in (knee.low, knee.high))
        yield f"n_sat may be {bounds}; more --repeats or a larger --checkpoint-size make that narrower"


def _pushes(
    setup: Setup, cluster: Cluster, say: Callable[[str], None], warn: Callable[[str], None]
) -> Iterator[tuple[int, Push]]:
    """All pushes that came to their end, with their n."""
    order = random.Random(setup.seed)
    # It does not count: windows are opened, addresses looked up, memory touched.
    todo = [(0, len(setup.senders))]
    for repeat in range(1, setup.repeats + 1):
        sizes = list(range(1, len(setup.senders) + 1))
        order.shuffle(sizes)
        todo += [(repeat, n) for n in sizes]
    begin = time.monotonic()
    for done, (repeat, n) in enumerate(todo):
        while len(cluster.senders) >= 2:
            names = order.sample(cluster.senders, min(n, len(cluster.senders)))
            if len(names) < n and repeat:
                break  # as many are not left
            push = cluster.push(names, setup.checkpoint_bytes)
            for name, reason in push.lost.items():
                cluster.senders.remove(name)
                warn(f"sender {name} was lost in a push of {n}: {reason}; {len(cluster.senders)} are left")
            if not push.lost:
                left = (time.monotonic() - begin) / (done + 1) * (len(todo) - done - 1)
                if repeat:
                    say(f"[{done}/{len(todo) - 1}] {n} senders: {push.seconds:.3f} s; about {left:.0f} s left")
                    yield n, push
                break


@contextmanager
def _cluster(setup: Setup) -> Iterator[Cluster]:
    if setup.transport == "tcp":
        with tcp_cluster(setup) as tcp:
            yield tcp
        return
    from deepvm.profiling.mpirun import mpi_cluster

    with mpi_cluster(setup) as mpi:
        yield mpi


class _Tcp:
    """A receiver and senders that have come to it."""

    def __init__(self, setup: Setup, receiver: Agent, senders: Mapping[str, Agent], absent: dict[str, str]) -> None:
        self._setup, self._receiver, self._agents = setup, receiver, senders
        self.senders, self.absent = list(senders), absent

    def push(self, names: Sequence[str], size: int) -> Push:
        limit = self._setup.limit_s
        self._receiver.tell({"push": list(names), "bytes": size, "limit_s": limit})
        told = self._receiver.hear(limit + self._setup.stall_s + _MARGIN_S)
        lost = {name: f"{why} ({self._agents[name].ending()})" for name, why in told["lost"].items()}
        return Push(told["seconds"], told["busy"], lost)


@contextmanager
def tcp_cluster(setup: Setup) -> Iterator[Cluster]:
    """Programs of :mod:`deepvm.profiling.transfer_tcp` on all hosts; they end with the block, whatever happens."""
    token = secrets.token_hex(32)
    pushes = len(setup.senders) * setup.repeats + 1
    first = {"token": token, "stall_s": setup.stall_s, "limit_s": pushes * (setup.limit_s + setup.stall_s)}
    program = [setup.python, "-m", "deepvm.profiling.transfer_tcp"]
    started = list[Agent]()
    try:

        def start(name: str, role: str, host: str) -> Agent:
            agent = Agent(name, setup.launcher.words(host, [*program, role]))
            started.append(agent)
            return agent

        receiver = start(f"receiver {setup.receiver}", "receive", setup.receiver)
        receiver.tell({**first, "senders": list(setup.senders)})
        found = receiver.hear(START_S)
        # A public name may lead the long way round; the addresses that it has itself come first.
        addresses = [setup.address] if setup.address else [*found["addresses"], setup.receiver]
        agents, absent = dict[str, Agent](), dict[str, str]()
        for name in setup.senders:
            agents[name] = start(f"sender {name}", "send", name)
            agents[name].tell({**first, "name": name, "addresses": addresses, "port": found["port"]})
        deadline = time.monotonic() + START_S
        for name, agent in agents.items():
            try:
                agent.hear(max(deadline - time.monotonic(), 1.0))
            except MeasurementError as error:
                absent[name] = str(error)
        # Whoever is ready has been let in.
        ready = [name for name in agents if name not in absent]
        receiver.tell({"gather": ready, "limit_s": _MARGIN_S})
        here = receiver.hear(2 * _MARGIN_S)["here"]
        absent |= {name: "the receiver does not know it" for name in ready if name not in here}
        yield _Tcp(setup, receiver, {name: agents[name] for name in here}, absent)
    finally:
        end(started)


def _rounded(gbps: float) -> float:
    return float(f"{gbps:.4g}")
