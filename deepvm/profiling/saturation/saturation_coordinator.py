"""Starts the programs that push over TCP on all hosts, and has them find one another."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from deepvm.profiling.hosts.coordinator import Coordinator
from deepvm.profiling.hosts.network import one_machine
from deepvm.profiling.saturation.setup import Cluster, Push, Setup

AGENT = "deepvm.profiling.saturation.transfer_tcp"
MARGIN_S = 10.0
"""For an answer to come, beside the time that what it tells of may take."""
SLACK_S = 60.0
"""A host ends by itself this much after the time of all pushes, should nobody be able to end it."""


class _Tcp:
    """A receiver, place 0 of the coordinator, and senders that have come to it."""

    def __init__(
        self, setup: Setup, programs: Coordinator, places: Mapping[str, int], absent: dict[str, str], local: bool
    ) -> None:
        self._setup, self._programs, self._places = setup, programs, places
        self.senders, self.absent, self.local = list(places), absent, local

    def push(self, names: Sequence[str], size: int) -> Push:
        found = push_once(self._programs, self._setup, names, size, f"receiver {self._setup.receiver.name}")
        lost = {name: f"{why} ({self._programs.ending(self._places[name])})" for name, why in found.lost.items()}
        return replace(found, lost=lost)


def push_once(programs: Coordinator, setup: Setup, names: Sequence[str], size: int, receiver: str) -> Push:
    """Have the receiver, place 0, let these senders push, and wait for what it finds.

    Raises:
        MeasurementError: it does not answer; calls it ``receiver``.
    """
    programs.send(0, {"push": list(names), "bytes": size, "limit_s": setup.limit_s})
    found = programs.answer(0, setup.limit_s + setup.stall_s + MARGIN_S, receiver)
    return Push(found["seconds"], found["busy"], found["lost"])


@contextmanager
def tcp_cluster(setup: Setup, hear: Callable[[str], None] | None = None) -> Iterator[Cluster]:
    """Run :mod:`deepvm.profiling.saturation.transfer_tcp` on all hosts; it ends with the block, whatever happens.

    Raises:
        MeasurementError: the receiver cannot be used.
    """
    limit = setup.start_s + MARGIN_S + setup.pushes_s + SLACK_S
    hosts = (setup.receiver, *setup.senders)
    commands = [
        (host, setup.launcher.command(host, AGENT, ["send" if place else "receive", f"{limit:g}"]))
        for place, host in enumerate(hosts)
    ]
    places = {host.name: place for place, host in enumerate(hosts) if place}
    receiver = f"receiver {setup.receiver.name}"
    with Coordinator(commands, hear) as programs:
        deadline = time.monotonic() + setup.start_s
        # Not among the arguments, which every user of a host can see.
        first = {"token": secrets.token_hex(32), "stall_s": setup.stall_s, "limit_s": limit}
        programs.send(0, {**first, "senders": list(places)})
        found = programs.answer(0, setup.start_s, receiver)
        # A public name may lead the long way round; the addresses that it has itself come first.
        own = setup.receiver.address
        addresses = [own] if own else [*found["addresses"], setup.receiver.plain]
        for name, place in places.items():
            programs.send(place, {**first, "name": name, "addresses": addresses, "port": found["port"]})
        answers, failed = programs.collect(places.values(), max(deadline - time.monotonic(), 1.0))
        # Whoever is ready has been let in.
        ready = [name for name, place in places.items() if place in answers]
        programs.send(0, {"gather": ready, "limit_s": MARGIN_S})
        here = programs.answer(0, 2 * MARGIN_S, receiver)["here"]
        absent = {hosts[place].name: why for place, why in failed.items()}
        absent |= {name: "the receiver does not know it" for name in ready if name not in here}
        boots = [found["boot"], *(answer["boot"] for answer in answers.values())]
        yield _Tcp(setup, programs, {name: places[name] for name in here}, absent, one_machine(boots))
