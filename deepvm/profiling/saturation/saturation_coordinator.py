"""The programs that push over TCP, on all hosts at once: how they find one another, and what each of them says."""

from __future__ import annotations

import json
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from deepvm.errors import MeasurementError
from deepvm.profiling.hosts.launch import Crew
from deepvm.profiling.hosts.network import one_machine
from deepvm.profiling.saturation.setup import Cluster, Push, Setup

AGENT = "deepvm.profiling.saturation.transfer_tcp"
MARGIN_S = 10.0
"""For an answer to come, beside the time that what it tells of may take."""
SLACK_S = 60.0
"""A host ends by itself this much after the time of all pushes, should nobody be able to end it."""
_ENDING_S = 0.5
"""In which a process whose connection is gone has ended, if that is why."""
_OVER = ("failed", "ended")


class Voices:
    """A crew, of which one is heard at a time; what the others say meanwhile is kept."""

    def __init__(self, crew: Crew, names: Sequence[str]) -> None:
        """Keep the crew; the names are for messages, such as ``sender vm3``."""
        self._crew, self._names = crew, names
        self._kept: list[deque[dict[str, Any]]] = [deque() for _ in names]

    def tell(self, place: int, order: Mapping[str, Any]) -> None:
        """Send one an order; when it has ended, that comes out when it is heard."""
        self._crew.tell(place, json.dumps(order))

    def hear(self, place: int, limit_s: float) -> dict[str, Any]:
        """The next fact that one tells.

        Raises:
            MeasurementError: it had a problem, has ended, or said nothing in time.
        """
        own = self._kept[place]
        if not self._wait(lambda: bool(own), limit_s):
            text = f"{self._names[place]}: nothing was heard from it for {limit_s:.0f} s{self._crew.last(place)}"
            raise MeasurementError(text)
        if own[0]["event"] in _OVER:  # it stays: so will everybody hear who asks once more
            raise MeasurementError(f"{self._names[place]}: {own[0]['reason']}")
        return own.popleft()

    def ending(self, place: int) -> str:
        """Why one has ended, in words; ``its command still runs`` when it has not."""
        own = self._kept[place]
        self._wait(lambda: any(f["event"] in _OVER for f in own), _ENDING_S)
        return next((f["reason"] for f in own if f["event"] in _OVER), "its command still runs")

    def _wait(self, done: Callable[[], bool], limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        while not done():
            if (heard := self._crew.next_fact(deadline)) is None:
                return False
            self._kept[heard[0]].append(heard[1])
        return True


class _Tcp:
    """A receiver, place 0 of the crew, and senders that have come to it."""

    def __init__(
        self, setup: Setup, voices: Voices, places: Mapping[str, int], absent: dict[str, str], local: bool
    ) -> None:
        self._setup, self._voices, self._places = setup, voices, places
        self.senders, self.absent, self.local = list(places), absent, local

    def push(self, names: Sequence[str], size: int) -> Push:
        limit = self._setup.limit_s
        self._voices.tell(0, {"push": list(names), "bytes": size, "limit_s": limit})
        told = self._voices.hear(0, limit + self._setup.stall_s + MARGIN_S)
        lost = {name: f"{why} ({self._voices.ending(self._places[name])})" for name, why in told["lost"].items()}
        return Push(told["seconds"], told["busy"], lost)


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
    with Crew(commands, hear) as crew:
        voices = Voices(crew, [f"receiver {setup.receiver.name}", *(f"sender {name}" for name in places)])
        deadline = time.monotonic() + setup.start_s
        # Not among the arguments, which every user of a host can see.
        first = {"token": secrets.token_hex(32), "stall_s": setup.stall_s, "limit_s": limit}
        voices.tell(0, {**first, "senders": list(places)})
        found = voices.hear(0, setup.start_s)
        # A public name may lead the long way round; the addresses that it has itself come first.
        own = setup.receiver.address
        addresses = [own] if own else [*found["addresses"], setup.receiver.plain]
        for name, place in places.items():
            voices.tell(place, {**first, "name": name, "addresses": addresses, "port": found["port"]})
        absent, boots = dict[str, str](), [found["boot"]]
        for name, place in places.items():
            try:
                boots.append(voices.hear(place, max(deadline - time.monotonic(), 1.0))["boot"])
            except MeasurementError as error:
                absent[name] = str(error)
        # Whoever is ready has been let in.
        ready = [name for name in places if name not in absent]
        voices.tell(0, {"gather": ready, "limit_s": MARGIN_S})
        here = voices.hear(0, 2 * MARGIN_S)["here"]
        absent |= {name: "the receiver does not know it" for name in ready if name not in here}
        yield _Tcp(setup, voices, {name: places[name] for name in here}, absent, one_machine(boots))
