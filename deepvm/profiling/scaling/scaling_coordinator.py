"""Probe all hosts and train on some of them: which are healthy, step times, failures."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from deepvm.profiling.hosts.coordinator import Coordinator
from deepvm.profiling.hosts.launcher import Host, Launcher
from deepvm.profiling.hosts.machine import Machine

AGENT = "deepvm.profiling.scaling.scaling_host"
_REACH_S = 30.0
_SETTLE_S = 1.0
_LINGER_S = 10.0  # how long whoever failed may take to say so, after the others have noticed
# A host ends by itself this long after its run should have ended, if it could not be ended
_SLACK_S = 60.0


class Limits(NamedTuple):
    """Seconds: until all hosts have found each other, and for one whole run."""

    start_s: float
    run_s: float


@dataclass(frozen=True)
class Ready:
    """A healthy host.

    Its ``port`` was free a moment ago, ``reach`` has the address of each host that it reaches.
    """

    host: Host
    port: int
    addresses: Sequence[str]
    boot: str
    deepvm: str
    machine: Machine
    reach: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """One run: ``seconds`` per step by window, or ``why`` it failed (reasons, last lines)."""

    seconds: tuple[float, ...] = ()
    why: str = ""
    failed: Mapping[str, str] = field(default_factory=dict)
    tails: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass
class ScalingCoordinator:
    """Runs ``deepvm.profiling.scaling.scaling_host`` on hosts and interprets their reports.

    ``hear`` receives each line that the hosts print for people.
    """

    launcher: Launcher
    limits: Limits
    hear: Callable[[str], None] | None = None
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    def probe(
        self, hosts: Sequence[Host], workload: Mapping[str, Any]
    ) -> tuple[tuple[Ready, ...], dict[str, str]]:
        """The hosts that can run the workload and reach each other; the others' reasons."""
        start_s = self.limits.start_s
        commands = [
            self._command(host, start_s + _REACH_S, work="probe", rank=place, workload=workload)
            for place, host in enumerate(hosts)
        ]
        with Coordinator(commands, self.hear) as programs:
            answers, failed = programs.collect(range(len(hosts)), start_s)
            ready = {}
            for place, answer in answers.items():
                del answer["event"]
                ready[place] = Ready(hosts[place], **answer)
            if len(ready) > 1:
                missing, silent = _reach(programs, ready)
                failed |= silent
                _leave_out(ready, missing, failed)
        healthy = tuple(ready[place] for place in sorted(ready) if place not in failed)
        return healthy, {hosts[place].name: why for place, why in sorted(failed.items())}

    def run(self, hosts: Sequence[Ready], workload: Mapping[str, Any]) -> Outcome:
        """Train on these hosts; the others connect to the first."""
        commands = []
        for place, one in enumerate(hosts):
            address, toward = _meeting(hosts, place)
            order = {
                "work": "run",
                "rank": place,
                "nodes": len(hosts),
                "workload": workload,
                "toward": toward,
                "master": f"{address}:{hosts[0].port}",
                "patience_s": self.limits.start_s,
            }
            commands.append(self._command(one.host, self.limits.run_s, **order))
        with Coordinator(commands, self.hear) as programs:
            return _RunListener(
                programs, [h.host for h in hosts], self.limits, int(workload["windows"])
            ).outcome()

    def _command(self, host: Host, limit_s: float, **order: Any) -> tuple[Host, list[str]]:
        order |= {"token": self.token, "limit_s": limit_s + _SLACK_S}
        return host, self.launcher.command(host, AGENT, [json.dumps(order)])


@dataclass
class _RunListener:
    """Follows one run to its outcome."""

    programs: Coordinator
    hosts: Sequence[Host]
    limits: Limits
    windows: int
    seconds: dict[int, float] = field(default_factory=dict)
    arrived: set[int] = field(default_factory=set)
    lost: dict[int, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)

    def outcome(self) -> Outcome:
        """Handle messages until the run has succeeded or failed."""
        begin = time.monotonic()
        deadline = begin + self.limits.start_s
        joined = False
        while (found := self.programs.next_message(deadline)) is not None:
            place, message = found
            event = message["event"]
            if event == "arrived":
                self.arrived.add(place)
            elif event == "joined":
                joined = True
                deadline = begin + self.limits.run_s
            elif event == "window":
                self.seconds[message["number"]] = message["seconds"]
            elif event == "done":
                if (heard := len(self.seconds)) != self.windows:
                    return self._failure(f"{heard} of {self.windows} windows were heard of")
                return Outcome(tuple(self.seconds[i] for i in sorted(self.seconds)))
            elif event == "lost" and place not in self.lost:
                self.lost[place] = message["reason"]
                deadline = min(deadline, time.monotonic() + _LINGER_S)
            elif event == "failed" or event == "ended" and place not in self.lost:
                self._blame(place, message["reason"])
                deadline = min(deadline, time.monotonic() + _SETTLE_S)
        return self._undone(joined)

    def _blame(self, place: int, reason: str) -> None:
        """Record the first failure, and others only of the same cause: the rest follows."""
        if all(
            reason.partition(":")[0] == other.partition(":")[0] for other in self.failed.values()
        ):
            self.failed.setdefault(place, reason)

    def _undone(self, joined: bool) -> Outcome:
        start_s, run_s = self.limits
        if self.arrived and not (self.failed or self.lost or joined):
            absent = set(range(len(self.hosts))) - self.arrived
            self.failed = {p: self.programs.silence(p, start_s) for p in absent}
        if self.failed:
            return self._failure(
                "; ".join(f"{self.hosts[p].name}: {w}" for p, w in sorted(self.failed.items()))
            )
        if self.lost:
            names = ", ".join(self.hosts[p].name for p in sorted(self.lost))
            return self._failure(
                f"{names} lost contact with another host: {next(iter(self.lost.values()))}"
            )
        if joined:
            return self._failure(f"it took longer than {run_s:g} s (--timeout)")
        return self._failure(
            f"the hosts did not find each other within {start_s:g} s (--start-timeout)"
        )

    def _failure(self, why: str) -> Outcome:
        places = self.failed or range(len(self.hosts))
        tails = {self.hosts[p].name: tail for p in places if (tail := self.programs.tail(p))}
        failed = {self.hosts[p].name: reason for p, reason in sorted(self.failed.items())}
        return Outcome(why=why, failed=failed, tails=tails)


def _reach(
    programs: Coordinator, ready: Mapping[int, Ready]
) -> tuple[dict[tuple[int, int], str], dict[int, str]]:
    """Have all connect to all.

    Returns why one place does not reach another, and why hosts did not answer.
    """
    for place in ready:
        others = [
            {"rank": r, "addresses": _candidates(o), "port": o.port}
            for r, o in ready.items()
            if r != place
        ]
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
    """Addresses at which to try a host: only the user's, if given."""
    if ready.host.address:
        return [ready.host.address]
    # 127.0.0.1: hosts may be processes of one machine; it is the right one only if it answers with
    # its own number.
    return list(dict.fromkeys([*ready.addresses, ready.host.plain, "127.0.0.1"]))


def _leave_out(
    ready: Mapping[int, Ready], missing: Mapping[tuple[int, int], str], failed: dict[int, str]
) -> None:
    """Leave out the host with most failed connections until all that remain reach each other."""
    while True:
        left = [p for p in sorted(ready) if p not in failed]
        cut = {p: [q for q in left if (p, q) in missing or (q, p) in missing] for p in left}
        worst = max(left, key=lambda p: (len(cut[p]), p), default=-1)
        if worst < 0 or not cut[worst]:
            return
        other = cut[worst][0]
        why = missing.get((worst, other)) or missing[other, worst]
        names = ", ".join(ready[p].host.name for p in cut[worst])
        failed[worst] = (
            f"no connection between it and {names} ({why}); TCP must be open on all ports among the"
            " hosts"
        )


def _meeting(hosts: Sequence[Ready], place: int) -> tuple[str, str]:
    """The first host's address as seen by one host, and an address of the interface to use."""
    first = hosts[0]
    if len(hosts) == 1:
        return "127.0.0.1", "127.0.0.1"
    if place == 0:
        return hosts[1].reach[first.host.name], first.reach[hosts[1].host.name]
    return (hosts[place].reach[first.host.name],) * 2
