"""How many VMs may push to one memory node at once: measured (DeepVM III-C2, eq. 14, Table V)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from deepvm.documents.build import document_of
from deepvm.errors import MeasurementError
from deepvm.profiling.hosts.machine import Machine, describe, one_machine
from deepvm.profiling.saturation.mpirun import mpi_cluster
from deepvm.profiling.saturation.saturation_fit import SaturationPoint, fit_knee, raw_saturation
from deepvm.profiling.saturation.setup import Cluster, Push, Setup, tcp_cluster

_BUSY = 0.8
_CLEAN = 0.1
_SHORT_S = 0.05


@dataclass(frozen=True)
class Saturation:
    """A measurement; ``times``: seconds of each repeat, by n; ``raw``: eq. 14 on their medians.

    Bandwidths are as given or ``measured``, None if neither; if hosts are one machine (``local``),
    they are those of its memory, or what was set for them.
    """

    setup: Setup
    times: Mapping[int, Sequence[float]]
    raw: int | None
    knee: SaturationPoint
    sender_gbps: float | None
    receiver_gbps: float | None
    measured: tuple[str, ...]
    warnings: tuple[str, ...]
    machine: Machine
    local: bool

    def document(self) -> dict[str, Any]:
        """``deepvm.saturation/1``: ``n_sat_knee``, ``interval`` are null from the largest n on."""
        return document_of("profiling.Saturation", self)


def measure(
    setup: Setup,
    say: Callable[[str], None] = lambda line: None,
    hear: Callable[[str], None] | None = None,
    *,
    allow_one_machine: bool = True,
) -> Saturation:
    """Measure t(n) for n = 1 ... N, and where it stops falling.

    Each repeat measures all n once, in random order and with random senders, so that drift or one
    slow host does not look like saturation. A lost sender is named in a warning, and the others go
    on. ``hear`` receives each line that hosts print for people; ``allow_one_machine`` allows hosts
    that are one machine.

    Raises:
        MeasurementError: the receiver or all but one of the senders are lost before there is
        anything to tell. RequestError, MissingExtraError: the transport cannot be used here, or
        hosts are one machine.
    """
    warnings: list[str] = []
    times: dict[int, list[float]] = {}
    busy: list[float] = []

    def warn(text: str) -> None:
        warnings.append(text)
        say(f"Warning: {text}")

    say(f"starting {len(setup.senders)} senders and {setup.receiver.name}")
    if setup.transport == "tcp":
        connect = tcp_cluster
    else:
        connect = mpi_cluster
    with connect(setup, hear) as cluster:
        local = one_machine(cluster.boots, allowed=allow_one_machine)
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
        raise MeasurementError(
            f"nothing could be measured, two senders are needed; {'; '.join(warnings)}"
        )
    return evaluate(setup, times, warnings=warnings, busy=median(busy), local=local)


def evaluate(
    setup: Setup,
    times: Mapping[int, Sequence[float]],
    *,
    warnings: Sequence[str] = (),
    busy: float = 0,
    local: bool = False,
) -> Saturation:
    """Evaluate the seconds of repeats by n; ``busy``: see :class:`Push`; ``local``: one machine."""
    knee = fit_knee(times, seed=setup.seed)
    found = {
        n: float(f"{8e-9 * setup.checkpoint_bytes / median(own):.4g}") for n, own in times.items()
    }
    if setup.sender_gbps is None:
        measured = {"sender": found[1]}
    else:
        measured = {}
    if setup.receiver_gbps is None and knee.n_sat is not None:
        measured["receiver"] = max(found.values())
    return Saturation(
        setup=setup,
        times={n: tuple(own) for n, own in sorted(times.items())},
        raw=raw_saturation(times),
        knee=knee,
        sender_gbps=measured.get("sender", setup.sender_gbps),
        receiver_gbps=measured.get("receiver", setup.receiver_gbps),
        measured=tuple(measured),
        warnings=(*warnings, *_doubts(setup, times, knee, busy, local)),
        machine=describe(),
        local=setup.launcher.local or local,
    )


def _doubts(
    setup: Setup,
    times: Mapping[int, Sequence[float]],
    knee: SaturationPoint,
    busy: float,
    local: bool,
) -> Iterator[str]:
    largest = max(times)
    fewest = min(map(len, times.values()))
    if setup.launcher.local:
        yield "all senders and the receiver are on this machine: this says nothing of a network"
    elif local:
        yield (
            "hosts are one machine: this is what it can do, or what was set for them, and no"
            " network between VMs"
        )
    if knee.n_sat is None:
        yield f"no saturation seen up to {largest} senders: n_sat is {largest} or more; add senders"
    elif knee.senders <= 1:
        yield (
            "one sender fills the receiver alone, and its own bandwidth may be higher than what was"
            " measured; n_sat is 2, the least that lets one sender to a receiver (eq. 15)"
        )
    if busy > _BUSY:
        yield (
            f"the receiver's processor was busy for {busy:.0%} of the time: it may be the limit,"
            " not the network"
        )
    shortest = min(median(own) for own in times.values())
    if shortest < _SHORT_S:
        yield (
            f"pushes took only {1000 * shortest:.0f} ms, partly start-up; a larger"
            " --checkpoint-size is more precise"
        )
    if fewest < 3:
        yield f"{fewest} repeats of some n: the interval is a guess; 5 are better"
    if knee.error > _CLEAN:
        yield (
            f"t(n) is off the fit by {knee.error:.0%}: more than senders and one receiver with a"
            " bandwidth each are at work; look at the times"
        )
    if knee.low != knee.high:
        yield (
            f"n_sat may be {knee.interval(largest)}; more --repeats or a larger --checkpoint-size"
            " make that narrower"
        )


def _pushes(
    setup: Setup, cluster: Cluster, say: Callable[[str], None], warn: Callable[[str], None]
) -> Iterator[tuple[int, Push]]:
    """All completed pushes, with their n."""
    order = random.Random(setup.seed)
    largest = len(setup.senders)
    sizes = [n for _ in range(setup.repeats) for n in order.sample(range(1, largest + 1), largest)]
    # The first push does not count: it opens windows, looks up addresses, touches memory
    cold = True
    begin = time.monotonic()
    for done, n in enumerate(sizes, 1):
        while len(cluster.senders) >= (2 if cold else max(n, 2)):
            names = order.sample(cluster.senders, len(cluster.senders) if cold else n)
            push = cluster.push(names)
            if push.lost:
                for count, (name, reason) in enumerate(push.lost.items(), 1):
                    left = len(cluster.senders) - count
                    warn(
                        f"sender {name} was lost in a push of {len(names)}: {reason}; {left} are"
                        " left"
                    )
                cluster.drop(push.lost)
                cold = True
            elif cold:
                cold = False
            else:
                left_s = (time.monotonic() - begin) / done * (len(sizes) - done)
                say(
                    f"[{done}/{len(sizes)}] {n} senders: {push.seconds:.3f} s; about {left_s:.0f} s"
                    " left"
                )
                yield n, push
                break
