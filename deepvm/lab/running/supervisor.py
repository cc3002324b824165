"""One run through all failures: launch, monitor, classify, resume, terminate (ECRL 4.7).

Each start has a number, the attempt. What an older attempt writes is refused by the strategies, so
a process that was thought dead changes nothing. Failures from outside strike on progress that a
rank has logged.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepvm.io.atomic_write import write_bytes
from deepvm.io.free_port import free_port
from deepvm.lab.faults.fault import STRUCK, Strike
from deepvm.lab.faults.fault_registry import find_fault
from deepvm.lab.later import Later
from deepvm.lab.plan import Plan, StoppedError
from deepvm.lab.records import SUPERVISOR, events_of, read_lines, steps_of
from deepvm.lab.recovery import Recoveries, event_facts
from deepvm.lab.running.launcher import Attempt, Launcher
from deepvm.lab.running.memory_node import MemoryNode
from deepvm.lab.step_log import StepLog
from deepvm.lab.training.order import Order

_LOG = "workers.log"
_LOOK_S = 0.005
_START_S = 180.0
"""For how long ranks may load torch and meet, on a machine that does other things."""
_MOST_UNPLANNED = 2
_TAIL = 20
_LATEST = 0.9
"""Share of its steps within which an attempt meets its random failures."""
_PORTS = 2
"""Tries to find a port that stays free until rank 0 listens at it."""
_TAKEN = b"EADDRINUSE"
"""As torch says so."""


@dataclass
class _Watched:
    """A running attempt and, as a ``FaultTarget``, what external faults may use."""

    folder: Path
    number: int
    world: int
    until: int
    made: Attempt
    node: MemoryNode | None
    began: float
    later: Callable[[float, Callable[[], None]], None]
    logs: list[StepLog] = field(default_factory=list)
    struck: dict[str, float] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def workers(self) -> Sequence[int]:
        return self.made.workers()

    def agent(self) -> int | None:
        return self.made.agent()

    def kill_all(self) -> None:
        self.made.kill_all()

    def restart_node(self, down_s: float) -> None:
        if self.node is not None:
            self.node.kill()
            self.later(down_s, self.node.start)

    def done(self, rank: int) -> int:
        return self.logs[rank].done


class Supervisor:
    """Of one run."""

    def __init__(
        self, plan: Plan, launcher: Launcher, stopping: threading.Event | None = None
    ) -> None:
        """Start nothing yet; once ``stopping`` is set, the run is given up."""
        self._plan, self._launcher, self._stopping = plan, launcher, stopping or threading.Event()
        self._left = list(plan.strikes)
        self._attempts: list[dict[str, Any]] = []
        self._recoveries = Recoveries()
        self._node = MemoryNode(plan.folder) if plan.in_memory else None
        self._given_up: list[_Watched] = []
        self._later = Later()

    def run(self) -> bool:
        """Run to the end; returns whether it got there. Leaves no process behind."""
        began, unplanned = time.time(), 0
        state = "running"
        try:
            if self._node is not None:
                self._node.start()
            while state == "running":
                ended = self._attempt()
                if ended["state"] == "completed":
                    state = (
                        "completed" if ended["until"] >= self._plan.config["steps"] else "running"
                    )
                    unplanned = 0
                elif ended["causes"] and ended["causes"] != ["hang"]:
                    unplanned = 0
                else:
                    unplanned += 1
                    state = "failed" if unplanned >= _MOST_UNPLANNED else "running"
                self._write(state, began)
        finally:
            for orphan in self._given_up:
                orphan.kill_all()
            if self._node is not None:
                self._node.close()
        return state == "completed"

    def _attempt(self) -> dict[str, Any]:
        number, folder = len(self._attempts), self._plan.folder
        while self._node is not None and not self._node.up:  # ranks do not begin without it
            if self._stopping.wait(_LOOK_S):
                raise StoppedError
            self._later.do_due()
        world, until = self._world()
        order = Order(
            folder, number, self._plan.config, self._left, self._plan.disk, until, self._tiers()
        )
        file = folder / f"order-{number}.json"
        write_bytes(file, order.to_json())
        for _ in range(_PORTS):
            printed = _size(folder / _LOG)
            logs = [StepLog(folder / steps_of(rank), at_end=True) for rank in range(world)]
            began = time.time()
            made = self._launcher.start(file, world, free_port("127.0.0.1"))
            watched = _Watched(
                folder, number, world, until, made, self._node, began, self._later.add, logs
            )
            try:
                state, detected = self._watch(watched)
            except BaseException:
                watched.kill_all()
                raise
            if state != "failed" or watched.struck or not self._port_was_taken(watched, printed):
                break
        if self._gives_up(state):
            self._given_up.append(watched)
        else:
            watched.kill_all()
        file.unlink(missing_ok=True)
        facts = self._facts(watched, state, detected, until)
        self._attempts.append(facts)
        return facts

    def _port_was_taken(self, watched: _Watched, printed: int) -> bool:
        """Whether ranks failed to meet because their port was taken, by what they ``printed``."""
        if any(
            row["event"] == "joined"
            for rank in range(watched.world)
            for row in self._events(watched, rank)
        ):
            return False
        watched.kill_all()  # so that all is printed
        with (watched.folder / _LOG).open("rb") as file:
            file.seek(printed)
            return _TAKEN in file.read()

    def _gives_up(self, state: str) -> bool:
        """Whether an attempt is taken for dead, and lives: a mistake that is made on purpose."""
        return (
            state == "failed" and "orphan" in self._plan.config["controls"] and not self._given_up
        )

    def _world(self) -> tuple[int, int]:
        """How many ranks train next, and until which step."""
        worlds, steps = self._plan.worlds, int(self._plan.config["steps"])
        last = max(
            (one["until"] for one in self._attempts if one["state"] == "completed"), default=0
        )
        place = max(i for i, (step, _) in enumerate(worlds) if step <= last)
        return worlds[place][1], worlds[place + 1][0] if place + 1 < len(worlds) else steps

    def _tiers(self) -> tuple[str, ...]:
        return () if self._node is None else (self._node.url,)

    def _watch(self, watched: _Watched) -> tuple[str, float]:
        """Watch an attempt until it ends; how it has, and when that was seen."""
        moved, stepped = time.monotonic(), False
        outside = [one for one in self._left if find_fault(one.fault).moment_of(one) is None]
        while True:
            if self._stopping.is_set():
                raise StoppedError
            self._later.do_due()
            for log in watched.logs:
                if log.look():
                    moved, stepped = time.monotonic(), True
            if outside and watched.done(outside[0].rank) >= outside[0].step:
                strike = outside[0]
                if self._in_time(watched, strike):  # else it stays planned
                    outside.pop(0)
                    watched.struck[strike.key] = time.time()
                    if self._gives_up("failed"):
                        return "failed", time.time()
                    find_fault(strike.fault).strike_from_outside(strike, watched)
                    moved = time.monotonic()
            codes = watched.made.exits()
            if any(code not in (None, 0) for code in codes):
                return "failed", time.time()
            if all(code == 0 for code in codes):
                return "completed", time.time()
            if time.monotonic() - moved > (
                self._plan.hang_s if stepped else max(_START_S, self._plan.hang_s)
            ):
                return "hung", time.time()
            time.sleep(_LOOK_S)

    def _in_time(self, watched: _Watched, strike: Strike) -> bool:
        """Wait until a failure is due, at the latest near the end; are ranks still running?"""
        moment = time.monotonic() + strike.delay_s
        while all(code is None for code in watched.made.exits()):
            for log in watched.logs:
                log.look()
            if time.monotonic() >= moment or watched.done(strike.rank) >= _LATEST * watched.until:
                return True
            if self._stopping.wait(_LOOK_S):
                raise StoppedError
        return False

    def _facts(self, watched: _Watched, state: str, detected: float, until: int) -> dict[str, Any]:
        """What an attempt was, and how long each part of the recovery before it took."""
        events = [row for rank in range(watched.world) for row in self._events(watched, rank)]
        struck = dict(watched.struck)
        struck |= {row["key"]: row["time"] for row in events if row["event"] in STRUCK}
        self._left = [one for one in self._left if one.key not in struck]
        ends = [key for key in struck if find_fault(Strike.fault_in(key)).ends]
        causes = ends if state != "completed" else []
        if state == "hung":
            causes = causes or self._lasting(struck, detected) or ["hang"]
        for log in watched.logs:
            log.look()
        restored = [row for row in events if row["event"] == "restored"]
        facts: dict[str, Any] = {
            "attempt": watched.number,
            "world": watched.world,
            "state": state,
            "until": until,
            "began": watched.began,
            "detected": detected,
            "exits": list(watched.made.exits()),
            "causes": causes,
            "struck": struck,
            **event_facts(events),
            "reached_step": max(log.done for log in watched.logs),
            "broken": watched.broken,
        }
        rows = (
            row
            for row in read_lines(watched.folder / steps_of(0))
            if row["attempt"] == watched.number
        )
        facts |= self._recoveries.parts(facts, restored, rows)
        if state == "failed" and not causes:
            facts["last_lines"] = _last_lines(watched.folder / _LOG)
        return facts

    def _lasting(self, struck: Mapping[str, float], at: float) -> list[str]:
        """Failures that were still going on at a time, such as a rank that stands still."""
        found = {one.key: one.seconds for one in self._plan.strikes if one.seconds}
        return [key for key, since in struck.items() if since + found.get(key, 0.0) > at]

    def _events(self, watched: _Watched, rank: int) -> Iterator[dict[str, Any]]:
        return (
            row
            for row in read_lines(watched.folder / events_of(rank))
            if row["attempt"] == watched.number
        )

    def _write(self, state: str, began: float) -> None:
        failed = [one for one in self._attempts if one["state"] != "completed"]
        document = {
            "state": state,
            "restarts": len(failed) - (state == "failed"),
            "wall_s": time.time() - began,
            "hangs": sum(one["state"] == "hung" for one in failed),
            "attempts": self._attempts,
        }
        write_bytes(self._plan.folder / SUPERVISOR, json.dumps(document, indent=1).encode())


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _last_lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()[-_TAIL:]
    except OSError:
        return []
