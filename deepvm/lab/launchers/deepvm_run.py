"""One run as a job of ``deepvm run --cloud local``; this injects faults, watches and records."""

import contextlib
import itertools
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.errors import DataError
from deepvm.io.processes import descendants, open_files, send_signal
from deepvm.jobs.clouds import local
from deepvm.jobs.decisions.states import Job
from deepvm.jobs.decisions.world import Role
from deepvm.jobs.history.history import MACHINE, EventRow
from deepvm.lab.audit.orchestrated import left_by
from deepvm.lab.faults.fault import STRUCK, Delay, FaultInjection, FaultTarget
from deepvm.lab.orchestrated.control import NAME, RESTART, JobPlace, job_document, write_job
from deepvm.lab.orchestrated.rank import PLACED
from deepvm.lab.records import EVENTS, events_of, rows_in, steps_of, write_lines
from deepvm.lab.registry import find_fault
from deepvm.lab.running.launcher import (
    Later,
    Launcher,
    Plan,
    Recoveries,
    StepLog,
    event_facts,
    from_outside,
    write_supervisor,
)
from deepvm.records import dataclass, field

_GONE = ("suspect", "lost", "ended")


@dataclass(frozen=True)
class JobRecord:
    """What is known of a job at its end."""

    run: Path  # folder
    config: JsonObject
    events: Sequence[EventRow]  # of the job, in order
    struck: Mapping[str, tuple[float, int]]  # when failures from outside struck; which attempt
    done: bool  # the job has trained to its end
    broken: Mapping[int, Sequence[str]] = field(default_factory=dict)  # damaged files, by attempt

    @cached_property
    def _workers(self) -> list[JsonDict]:
        return rows_in(self.run, map(events_of, range(self.config["world"])))

    @cached_property
    def _steps(self) -> list[JsonDict]:
        return rows_in(self.run, map(steps_of, range(self.config["world"])))

    @cached_property
    def _generations(self) -> int:
        return max((event.generation for event in self.events), default=0)

    def attempts(self) -> list[JsonDict]:
        attempts = list[JsonDict]()
        recoveries = Recoveries()
        for number in range(self._generations):
            facts = self._attempt(number, attempts)
            rows = [row for row in self._workers if row["attempt"] == number]
            steps = [row for row in self._steps if row["attempt"] == number and not row["rank"]]
            attempts.append(facts | recoveries.parts(facts, rows, steps))
        if attempts and not self.done:
            lines = [str(line) for event in self.events for line in event.facts.get("lines", ())]
            attempts[-1]["last_lines"] = lines[-20:]
        return attempts

    def _attempt(self, number: int, before: Sequence[JsonObject]) -> JsonDict:
        rows = [row for row in self._workers if row["attempt"] == number]
        steps = [row["global_step"] + 1 for row in self._steps if row["attempt"] == number]
        reached = max(steps, default=0)
        struck = {key: at for key, (at, attempt) in self.struck.items() if attempt == number}
        struck |= {row["key"]: row["time"] for row in rows if row["event"] in STRUCK}
        state, causes = self._state(number, struck, reached, before)
        placed = {row["rank"]: row["machine"] for row in rows if row["event"] == PLACED}
        last = number + 1 == self._generations
        last_strike = max([struck[key] for key in causes if key in struck], default=0.0)
        return {
            "attempt": number,
            "world": len(placed),
            "machines": [placed[rank] for rank in sorted(placed)],
            "state": state,
            "until": int(self.config["steps"]) if last else reached,
            "began": self._formed(number),
            "detected": self._detected(number, last_strike),
            "exits": [int(event.facts["code"]) for event in self._of(number, "ended")],
            "causes": causes,
            "struck": struck,
            **event_facts(rows),
            "reached_step": reached,
            "broken": list(self.broken.get(number, ())),
            "safe": self._safe(number),
        }

    def _state(
        self, number: int, struck: Mapping[str, float], reached: int, before: Sequence[JsonObject]
    ) -> tuple[str, list[str]]:
        """How a generation has ended, and why; who hands over without losing a step is complete."""
        last = number + 1 == self._generations
        if last and self.done:
            return "completed", []
        faults = {key: find_fault(FaultInjection.fault_in(key)) for key in struck}
        causes = [key for key, fault in faults.items() if fault.ends]
        if number in self._hung:
            return "hung", causes or ["hang"]
        if not reached and not causes and before:
            return "superseded", list(before[-1]["causes"])
        if causes:
            announced = all(faults[key].announced for key in causes)
            return ("preempted" if announced else "failed"), causes
        later = [row for row in self._workers if row["attempt"] > number]
        resumed = [row["step"] for row in later if row["event"] == "restored"]
        crashed = any(event.facts["code"] for event in self._of(number, "ended"))
        hands_over = not last and not crashed and resumed[:1] == [reached]
        return ("completed" if hands_over else "failed"), []

    @cached_property
    def _hung(self) -> set[int]:
        """Attempts that hung: the event names the generation after, perhaps the next one."""
        pairs = itertools.pairwise(self.events)
        return {before.generation - 1 for before, event in pairs if event.kind == "hung"}

    def _of(self, number: int, kind: str) -> list[EventRow]:
        return [e for e in self.events if e.kind == kind and e.generation == number + 1]

    def _safe(self, number: int) -> list[list[Any]]:
        """A generation's safe checkpoints: number, reason, and whether safe without an anchor."""
        lasting = {int(event.facts["version"]) for event in self._of(number, "lasts")}
        safe: list[list[Any]] = []
        for event in self._of(number, "safe"):
            version = int(event.facts["version"])
            reason = str(event.facts["reason"])
            safe.append([version, reason, bool(event.facts["lasts"]) or version in lasting])
        return safe

    def _formed(self, number: int) -> float:
        return next(event.at_s for event in self.events if event.generation > number)

    def _detected(self, number: int, struck_at: float) -> float:
        for event in self.events:
            if event.at_s < struck_at or event.generation <= number:
                continue
            gone = event.kind in ("noticed", "silent", "hung")
            gone |= event.kind == MACHINE and event.facts.get("state") in _GONE
            gone |= event.kind == "ended" and bool(event.facts["code"])
            if gone or event.generation > number + 1:
                return event.at_s
        return self.events[-1].at_s


_POLL_S = 0.01
_STUCK_S = 240.0
_GONE_S = 15.0


class DeepvmRun(Launcher):
    """Each run is a job, whose controller starts the ranks."""

    def run(self, plan: Plan, stopping: threading.Event | None = None) -> bool:
        return _JobSupervisor(plan, stopping or threading.Event()).run()


class _JobSupervisor:
    def __init__(self, plan: Plan, stopping: threading.Event) -> None:
        self._plan = plan
        self._place = JobPlace(plan.folder)
        self._ranks = range(plan.config["world"])
        self._logs = [StepLog(plan.folder / steps_of(rank)) for rank in self._ranks]
        self._outside = list(filter(from_outside, plan.strikes))
        self._struck: dict[str, tuple[float, int]] = {}
        self._broken: dict[int, list[str]] = {}
        self._later = Later(stopping)
        self._ending = -1  # The newest attempt that a failure was to end

    def run(self) -> bool:
        began = time.time()
        write_job(self._place, job_document(self._place, self._plan))
        process = self._started()
        try:
            self._watch(process)
            done = process.poll() == 0
        finally:
            ended = time.time()
            self._end(process)
        self._write(began, ended, done=done)
        shutil.rmtree(self._place.state)
        return done

    def _started(self) -> subprocess.Popen[bytes]:
        folder = self._plan.folder
        words = [sys.executable, "-m", "deepvm.lab.orchestrated.control", str(folder.resolve())]
        with (folder / "controller.log").open("ab") as log:
            return subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._place.environ,
                start_new_session=True,  # Ctrl-C is for the lab
            )

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        moved = time.monotonic()
        while process.poll() is None and time.monotonic() - moved < _STUCK_S:
            self._later.wait(_POLL_S)
            if any([log.look() for log in self._logs]) or self._strike(process):
                moved = time.monotonic()

    def _strike(self, process: subprocess.Popen[bytes]) -> bool:
        attempt = max(log.attempt for log in self._logs)
        if not self._outside or attempt < 0:
            return False
        strike = self._outside[0]
        fault = find_fault(strike.fault)
        log = self._logs[strike.rank]
        if log.attempt != attempt or log.done < strike.step:
            return False
        if fault.ends and attempt <= self._ending:
            return False
        rows = rows_in(self._plan.folder, map(events_of, self._ranks), attempt)
        placed = {row["rank"]: row["machine"] for row in rows if row["event"] == PLACED}
        self._later.wait(strike.delay_s)
        if process.poll() is not None:  # it comes too late, and stays planned
            return False
        self._struck[strike.key] = time.time(), attempt
        self._ending = attempt if fault.ends else self._ending
        self._outside.remove(strike)

        def restart(down_s: float) -> None:
            assert process.stdin is not None
            process.stdin.write(f"{RESTART} {down_s}\n".encode())
            process.stdin.flush()

        broken = self._broken.setdefault(attempt, [])
        place = self._place
        later = self._later.add
        machines = JobMachines(place.run, broken, later, place, placed, strike.rank, restart)
        fault.strike_from_outside(strike, machines)
        return True

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GONE_S)
        process.kill()
        process.wait()
        until = time.monotonic() + _GONE_S
        while (left := left_by(self._plan.folder)) and time.monotonic() < until:
            send_signal(signal.SIGKILL, left)
            time.sleep(_POLL_S)

    def _write(self, began: float, ended: float, *, done: bool) -> None:
        folder = self._plan.folder
        place = self._place
        try:
            events = place.events()
            reason = "" if done else _reason(place)
        except DataError as error:
            events = []
            reason = str(error)
        rows = [{"time": e.at_s, "event": e.kind, "job": e.state, **e.facts} for e in events]
        write_lines(folder / EVENTS, rows)
        with (folder / "workers.log").open("ab") as log:
            for path in place.logs:
                log.write(path.read_bytes())
        record = JobRecord(folder, self._plan.config, events, self._struck, done, self._broken)
        left = []
        if place.left.exists():
            left = json.loads(place.left.read_bytes())
        state = "completed" if done else "failed"
        write_supervisor(folder, state, ended - began, record.attempts(), left=left, why=reason)


def _reason(place: JobPlace) -> str:
    world = place.world()
    if world.job in (Job.FAILED, Job.STOPPED):
        return world.failure or world.ending or f"the job is {world.job.value}"
    return (
        f"nothing has moved for {_STUCK_S:.0f} s, or its controller has ended; see controller.log"
    )


_AGENT = b"deepvm.jobs.agent.main"
# The pid of a process that is gone: above all others, and not 0 (this group)
_NO_PROCESS = 2**31 - 1


@dataclass
class JobMachines(FaultTarget):
    """The machines of a run's job."""

    folder: Path
    broken: list[str]
    later: Delay
    place: JobPlace
    placed: Mapping[int, str]  # the machine of each rank of the generation that runs
    rank: int  # who is hit
    restart_controller: Callable[[float], None]

    def workers(self) -> Sequence[int]:
        """The ranks' processes in order, by this computer's pids; machines have their own."""
        pids = []
        for rank in sorted(self.placed):
            log = str((self.folder / steps_of(rank)).resolve())
            writers = (pid for pid in self._processes(rank) if log in open_files(pid))
            pids.append(next(writers, _NO_PROCESS))
        return pids

    def agent(self) -> int | None:
        for pid in self._processes(self.rank):
            with contextlib.suppress(OSError):
                if _AGENT in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        return None

    def kill_all(self) -> None:
        self._lose(Role.TRAINER, Role.ANCHOR)

    def restart_node(self, down_s: float) -> None:
        self._lose(Role.ANCHOR)

    def preempt(self, grace_s: float | None) -> None:
        self.place.cloud.preempt(NAME, self.placed[self.rank], grace_s)

    def recommend(self) -> None:
        self.place.cloud.recommend(NAME, self.placed[self.rank])

    def _lose(self, *roles: Role) -> None:
        for machine in self.place.world().machines.values():
            if machine.role in roles and not machine.state.over:
                self.place.cloud.preempt(NAME, machine.id, None)

    def _processes(self, rank: int) -> list[int]:
        folder = self.place.state / "jobs" / NAME / "machines" / self.placed[rank]
        first = int(json.loads((folder / local.MACHINE).read_bytes()).get("process", 0))
        if first:
            return sorted(descendants(first))
        return []
