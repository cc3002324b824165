"""One look at all hosts, and one run of the training on some of them: who is well, how long a step takes, who fails."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deepvm.profiling.hosts.coordinator import Coordinator
from deepvm.profiling.hosts.host_list import Host
from deepvm.profiling.hosts.launcher import Launcher

AGENT = "deepvm.profiling.scaling.scaling_host"
_REACH_S = 30.0
_SETTLE_S = 1.0
_LINGER_S = 10.0
"""How long whoever failed may take to say so, after the others have noticed."""
_SLACK_S = 60.0
"""A host ends by itself this much after the time of its run, should nobody be able to end it."""


@dataclass(frozen=True)
class Limits:
    """Seconds: until all hosts have found each other, and for one whole run."""

    start_s: float
    run_s: float


@dataclass(frozen=True)
class Ready:
    """A host that is well.

    Attributes:
        host: which. port: free on it a moment ago. addresses: its own. boot: names its kernel's run. gpus: how many.
        torch, deepvm: versions. machine: as documents describe it. reach: addresses of the others, by name, from here.
    """

    host: Host
    port: int
    addresses: tuple[str, ...]
    boot: str
    gpus: int
    torch: str
    deepvm: str
    machine: Mapping[str, Any]
    reach: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Probe:
    """What a look at the hosts found: those that are well, and why the others are not."""

    well: tuple[Ready, ...]
    failed: Mapping[str, str]


@dataclass(frozen=True)
class Outcome:
    """One run.

    Attributes:
        seconds: of one step, by window; empty when it failed.
        machine: of the first process.
        why: it failed, "" when not. failed: reasons by host, empty when nobody knows who it was.
        tails: the last lines of each host that failed, or of all.
    """

    seconds: tuple[float, ...] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    failed: Mapping[str, str] = field(default_factory=dict)
    tails: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class ScalingCoordinator:
    """Starts the agents on the hosts and makes sense of what they say."""

    def __init__(self, launcher: Launcher, limits: Limits, hear: Callable[[str], None] | None = None) -> None:
        """Remember how.

        Args:
            launcher: how commands get to hosts.
            limits: on every wait.
            hear: gets each line that the hosts print for people.
        """
        self._launcher, self._limits, self._hear = launcher, limits, hear
        self._token = secrets.token_hex(8)

    def probe(self, hosts: Sequence[Host], workload: Mapping[str, Any]) -> Probe:
        """Look whether each host can run the workload, and whether all reach each other."""
        limit_s = self._limits.start_s + _REACH_S
        commands = [(h, self._words(h, "probe", i, limit_s, workload)) for i, h in enumerate(hosts)]
        with Coordinator(commands, self._hear) as programs:
            answers, failed = programs.collect(range(len(hosts)), self._limits.start_s)
            ready = {place: _ready(hosts[place], answer) for place, answer in answers.items()}
            if len(ready) > 1:
                missing, silent = _reach(programs, ready)
                failed |= silent
                _leave_out(ready, missing, failed)
        return Probe(
            tuple(r for place, r in sorted(ready.items()) if place not in failed),
            {hosts[place].name: why for place, why in sorted(failed.items())},
        )

    def run(self, hosts: Sequence[Ready], workload: Mapping[str, Any]) -> Outcome:
        """Train on these hosts, the first of which the others meet at."""
        commands = []
        for place, one in enumerate(hosts):
            words = ["--nodes", str(len(hosts)), "--processes", str(workload["processes"]), *_meeting(hosts, place)]
            words += ["--patience-s", str(self._limits.start_s)]
            commands.append((one.host, self._words(one.host, "run", place, self._limits.run_s, workload, words)))
        with Coordinator(commands, self._hear) as programs:
            return _RunListener(programs, [h.host for h in hosts], self._limits, int(workload["windows"])).hear_out()

    def _words(
        self,
        host: Host,
        work: str,
        rank: int,
        limit_s: float,
        workload: Mapping[str, Any],
        more: Sequence[str] = (),
    ) -> list[str]:
        shared = ["--token", self._token, "--limit-s", str(limit_s + _SLACK_S), "--workload", json.dumps(workload)]
        return self._launcher.command(host, AGENT, [work, *shared, "--rank", str(rank), *more])


class _RunListener:
    """Follows one run until it is clear how it ends."""

    def __init__(self, programs: Coordinator, hosts: Sequence[Host], limits: Limits, windows: int) -> None:
        self._programs, self._hosts, self._limits, self._windows = programs, hosts, limits, windows
        self._seconds: dict[int, float] = {}
        self._machine: dict[str, Any] = {}
        self._arrived: set[int] = set()
        self._lost: dict[int, str] = {}
        self._failed: dict[int, str] = {}

    def hear_out(self) -> Outcome:
        """The outcome."""
        begin = time.monotonic()
        deadline, joined = begin + self._limits.start_s, False
        while (found := self._programs.next_message(deadline)) is not None:
            place, message = found
            event = message["event"]
            if event == "arrived":
                self._arrived.add(place)
            elif event == "joined":
                joined, self._machine = True, message["machine"]
                deadline = begin + self._limits.run_s
            elif event == "window":
                self._seconds[message["number"]] = message["seconds"]
            elif event == "done":
                return self._done()
            elif event == "lost" and place not in self._lost:
                self._lost[place] = message["reason"]
                deadline = min(deadline, time.monotonic() + _LINGER_S)
            elif event == "failed" or event == "ended" and place not in self._lost:
                self._blame(place, message["reason"])
                deadline = min(deadline, time.monotonic() + _SETTLE_S)
        return self._undone(joined)

    def _blame(self, place: int, reason: str) -> None:
        """The first that fails, and others only for the same cause: all else that goes wrong now comes of the first."""
        if all(reason.partition(":")[0] == other.partition(":")[0] for other in self._failed.values()):
            self._failed.setdefault(place, reason)

    def _done(self) -> Outcome:
        seconds = tuple(self._seconds[i] for i in sorted(self._seconds))
        if len(seconds) != self._windows:
            return Outcome(why=f"{len(seconds)} of {self._windows} windows were heard of", tails=self._tails())
        return Outcome(seconds, self._machine)

    def _undone(self, joined: bool) -> Outcome:
        if not self._failed and not self._lost and not joined:
            absent = set(range(len(self._hosts))) - self._arrived
            if absent and self._arrived:
                self._failed = {p: self._programs.silence(p, self._limits.start_s) for p in absent}
        if self._failed:
            named = {self._hosts[p].name: why for p, why in sorted(self._failed.items())}
            return Outcome(why="; ".join(f"{n}: {w}" for n, w in named.items()), failed=named, tails=self._tails())
        if self._lost:
            names = ", ".join(self._hosts[p].name for p in sorted(self._lost))
            why = f"{names} lost contact with another host: {next(iter(self._lost.values()))}"
        elif joined:
            why = f"it took longer than {self._limits.run_s:g} s (--timeout)"
        else:
            why = f"the hosts did not find each other within {self._limits.start_s:g} s (--start-timeout)"
        return Outcome(why=why, tails=self._tails())

    def _tails(self) -> dict[str, tuple[str, ...]]:
        places = self._failed or range(len(self._hosts))
        return {self._hosts[p].name: tail for p in places if (tail := self._programs.tail(p))}


def _ready(host: Host, message: Mapping[str, Any]) -> Ready:
    return Ready(
        host=host,
        port=message["port"],
        addresses=tuple(message["addresses"]),
        boot=message["boot"],
        gpus=message["gpus"],
        torch=message["torch"],
        deepvm=message["deepvm"],
        machine=message["machine"],
    )


def _reach(programs: Coordinator, ready: Mapping[int, Ready]) -> tuple[dict[tuple[int, int], str], dict[int, str]]:
    """Have all connect to all; returns who (the first) does not reach whom and why, and who has not told."""
    for place in ready:
        others = [{"rank": r, "addresses": _candidates(o), "port": o.port} for r, o in ready.items() if r != place]
        programs.send(place, others)
    answers, failed = programs.collect(ready, _REACH_S)
    missing = {}
    for place, answer in answers.items():
        for peer in answer["peers"]:
            if peer["address"]:
                ready[place].reach[ready[peer["rank"]].host.name] = peer["address"]
            else:
                missing[place, peer["rank"]] = peer["why"]
    return missing, failed


def _candidates(ready: Ready) -> list[str]:
    """Where a host may be reached, what the user says first; its own addresses last, for names that nobody resolves."""
    if ready.host.address:
        return [ready.host.address]
    # 127.0.0.1: hosts may be processes of one machine; it is the right one only if it answers with its own number.
    return list(dict.fromkeys([*ready.addresses, ready.host.plain, "127.0.0.1"]))


def _leave_out(ready: Mapping[int, Ready], missing: Mapping[tuple[int, int], str], failed: dict[int, str]) -> None:
    """Leave out hosts until all that stay reach each other, always the one that most others cannot speak with."""
    while True:
        left = [p for p in sorted(ready) if p not in failed]
        cut = {p: [q for q in left if (p, q) in missing or (q, p) in missing] for p in left}
        worst = max(left, key=lambda p: (len(cut[p]), p), default=-1)
        if worst < 0 or not cut[worst]:
            return
        other = cut[worst][0]
        why = missing.get((worst, other)) or missing[other, worst]
        names = ", ".join(ready[p].host.name for p in cut[worst])
        failed[worst] = f"no connection between it and {names} ({why}); TCP must be open on all ports among the hosts"


def _meeting(hosts: Sequence[Ready], place: int) -> list[str]:
    """Where the hosts meet, as seen from one of them, and an address that shows which network card is to be used."""
    first = hosts[0]
    if len(hosts) == 1:
        return ["--master", f"127.0.0.1:{first.port}", "--toward", "127.0.0.1"]
    if place == 0:
        return [
            "--master",
            f"{hosts[1].reach[first.host.name]}:{first.port}",
            "--toward",
            first.reach[hosts[1].host.name],
        ]
    address = hosts[place].reach[first.host.name]
    return ["--master", f"{address}:{first.port}", "--toward", address]
