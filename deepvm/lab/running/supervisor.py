"""One run through all failures: launch, monitor, classify, resume, terminate (ECRL 4.7)."""

import threading
import time
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from deepvm.core.json_types import JsonDict
from deepvm.io.host_info import free_port
from deepvm.io.processes import last_lines
from deepvm.lab.faults.fault import STRUCK, Delay, FaultInjection, FaultTarget
from deepvm.lab.records import events_of, rows_in, steps_of
from deepvm.lab.registry import find_fault
from deepvm.lab.running.launcher import (
    Attempt,
    Later,
    Launcher,
    Order,
    Plan,
    Recoveries,
    StepLog,
    event_facts,
    from_outside,
    write_supervisor,
)
from deepvm.profiling.checkpoint.node_process import MemoryNode
from deepvm.records import dataclass, field

_LOG = "workers.log"
_POLL_S = 0.005
_START_S = 180.0  # For how long ranks may load torch and meet, on a machine that does other things
_MAX_UNPLANNED = 2
_TAIL = 20
_LATEST = 0.9  # Share of its steps within which an attempt meets its random failures
_PORTS = 2  # Tries to find a port that stays free until rank 0 listens at it
_TAKEN = b"EADDRINUSE"  # In torch's message


class RankLauncher(Launcher):
    """Starts the ranks of each attempt; a supervisor does the rest."""

    def ready(self) -> None:
        """Load what ranks are forked from before anything is measured; may be called again."""
        return

    @abstractmethod
    def start(self, order: Path, world: int, port: int) -> Attempt:
        """Start ``world`` ranks of the attempt described in a file; rank 0 listens at ``port``."""

    def run(self, plan: Plan, stopping: threading.Event | None = None) -> bool:
        self.ready()
        return Supervisor(plan, self, stopping).run()


@dataclass
class _Watched(FaultTarget):
    order: Order
    world: int
    ranks: Attempt
    logs: list[StepLog]
    node: MemoryNode | None
    later: Delay
    began: float
    state: str = "running"
    detected: float = 0.0
    struck: dict[str, float] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder = self.order.folder

    def workers(self) -> Sequence[int]:
        return self.ranks.workers()

    def agent(self) -> int | None:
        return self.ranks.agent()

    def kill_all(self) -> None:
        self.ranks.kill_all()

    def restart_node(self, down_s: float) -> None:
        if self.node is not None:
            self.node.kill()
            self.later(down_s, self.node.start)

    def look(self) -> bool:
        return any([log.look() for log in self.logs])

    @property
    def running(self) -> bool:
        return all(code is None for code in self.ranks.exits())

    @property
    def events(self) -> list[JsonDict]:
        return rows_in(self.folder, map(events_of, range(self.world)), self.order.attempt)

    def ends_as(self, state: str) -> None:
        self.state = state
        self.detected = time.time()


class Supervisor:
    """Supervises one run."""

    def __init__(
        self, plan: Plan, launcher: RankLauncher, stopping: threading.Event | None = None
    ) -> None:
        self._plan = plan
        self._launcher = launcher
        self._struck: list[str] = []
        self._attempts: list[JsonDict] = []
        self._recoveries = Recoveries()
        self._node = MemoryNode(plan.folder) if plan.in_memory else None
        self._given_up: list[_Watched] = []
        self._later = Later(stopping or threading.Event())

    def run(self) -> bool:
        began = time.time()
        unplanned = 0
        state = "running"
        try:
            if self._node is not None:
                self._node.start()
            while state == "running":
                ended = self._attempt()
                planned = ended["causes"] and ended["causes"] != ["hang"]
                unplanned += 1
                if planned or ended["state"] == "completed":
                    unplanned = 0
                if unplanned >= _MAX_UNPLANNED:
                    state = "failed"
                if ended["state"] == "completed" and ended["until"] >= self._plan.config["steps"]:
                    state = "completed"
                write_supervisor(self._plan.folder, state, time.time() - began, self._attempts)
        finally:
            for orphan in self._given_up:
                orphan.kill_all()
            if self._node is not None:
                self._node.close()
        return state == "completed"

    def _attempt(self) -> JsonDict:
        while self._node is not None and not self._node.up:  # ranks do not start without it
            self._later.wait(_POLL_S)
        world, until = self._world()
        tiers = () if self._node is None else (self._node.url,)
        order = Order(self._plan.folder, len(self._attempts), self._struck, until, tiers)
        file = order.write()
        for _ in range(_PORTS):
            printed = 0
            if (order.folder / _LOG).exists():
                printed = (order.folder / _LOG).stat().st_size
            logs = [StepLog(order.folder / steps_of(rank), at_end=True) for rank in range(world)]
            began = time.time()
            ranks = self._launcher.start(file, world, free_port("127.0.0.1"))
            watched = _Watched(order, world, ranks, logs, self._node, self._later.add, began)
            try:
                self._watch(watched)
            except BaseException:
                watched.kill_all()
                raise
            if watched.state != "failed" or not self._port_was_taken(watched, printed):
                break
        # A mistake on purpose: an attempt that lives is taken for dead
        if self._makes_orphan and watched.state == "failed":
            self._given_up.append(watched)
        else:
            watched.kill_all()
        file.unlink(missing_ok=True)
        facts = self._facts(watched)
        self._attempts.append(facts)
        return facts

    def _port_was_taken(self, watched: _Watched, printed: int) -> bool:
        """Whether ranks failed to meet because their port was taken, by what they ``printed``."""
        if watched.struck or any(row["event"] == "joined" for row in watched.events):
            return False
        watched.kill_all()  # so that all is printed
        with (watched.folder / _LOG).open("rb") as file:
            file.seek(printed)
            return _TAKEN in file.read()

    @property
    def _makes_orphan(self) -> bool:
        return "orphan" in self._plan.config["controls"] and not self._given_up

    def _world(self) -> tuple[int, int]:
        worlds = self._plan.config["worlds"]
        steps = self._plan.config["steps"]
        completed = [one["until"] for one in self._attempts if one["state"] == "completed"]
        done = max(completed, default=0)
        world = [ranks for step, ranks in worlds if step <= done][-1]
        return world, min([step for step, _ in worlds if step > done], default=steps)

    def _watch(self, watched: _Watched) -> None:
        moved = time.monotonic()
        limit_s = max(_START_S, self._plan.hang_s)
        planned = [one for one in self._plan.strikes if one.key not in self._struck]
        outside = list(filter(from_outside, planned))
        while watched.state == "running":
            self._later.wait(_POLL_S)
            if watched.look():
                moved = time.monotonic()
                limit_s = self._plan.hang_s
            due = outside and watched.logs[outside[0].rank].done >= outside[0].step
            if due and self._in_time(watched, outside[0]):  # else it stays planned
                self._strike(watched, outside.pop(0))
                moved = time.monotonic()
                continue
            codes = watched.ranks.exits()
            if any(code not in (None, 0) for code in codes):
                watched.ends_as("failed")
            elif all(code == 0 for code in codes):
                watched.ends_as("completed")
            elif time.monotonic() - moved > limit_s:
                watched.ends_as("hung")

    def _strike(self, watched: _Watched, strike: FaultInjection) -> None:
        watched.struck[strike.key] = time.time()
        if self._makes_orphan:
            watched.ends_as("failed")
        else:
            find_fault(strike.fault).strike_from_outside(strike, watched)

    def _in_time(self, watched: _Watched, strike: FaultInjection) -> bool:
        """Whether ranks still run when a failure is due, at the latest near the end."""
        moment = time.monotonic() + strike.delay_s
        while watched.running:
            watched.look()
            done = watched.logs[strike.rank].done
            if time.monotonic() >= moment or done >= _LATEST * watched.order.until:
                return True
            self._later.wait(_POLL_S)
        return False

    def _facts(self, watched: _Watched) -> JsonDict:
        events = watched.events
        struck = dict(watched.struck)
        struck |= {row["key"]: row["time"] for row in events if row["event"] in STRUCK}
        self._struck += struck
        watched.look()
        facts: JsonDict = {
            "attempt": watched.order.attempt,
            "world": watched.world,
            "state": watched.state,
            "until": watched.order.until,
            "began": watched.began,
            "detected": watched.detected,
            "exits": list(watched.ranks.exits()),
            "causes": self._causes(watched, struck),
            "struck": struck,
            **event_facts(events),
            "reached_step": max(log.done for log in watched.logs),
            "broken": watched.broken,
        }
        steps = rows_in(watched.folder, [steps_of(0)], watched.order.attempt)
        facts |= self._recoveries.parts(facts, events, steps)
        if watched.state == "failed" and not facts["causes"]:
            facts["last_lines"] = last_lines(watched.folder / _LOG, _TAIL)
        return facts

    def _causes(self, watched: _Watched, struck: dict[str, float]) -> list[str]:
        if watched.state == "completed":
            return []
        causes = [key for key in struck if find_fault(FaultInjection.fault_in(key)).ends]
        if causes or watched.state == "failed":
            return causes
        # Of a hang also those that still last, such as a rank that stands still
        lasts_s = {one.key: one.seconds for one in self._plan.strikes if one.seconds}
        ends = {key: at + lasts_s.get(key, 0.0) for key, at in struck.items()}
        return [key for key, end in ends.items() if end > watched.detected] or ["hang"]
