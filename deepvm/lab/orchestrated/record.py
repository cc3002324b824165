"""The supervisor's record of a job: generations as attempts, from events and rank logs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from deepvm.jobs.history.history import MACHINE, EventRow
from deepvm.lab.faults.fault import STRUCK, FaultInjection
from deepvm.lab.faults.fault_registry import find_fault
from deepvm.lab.orchestrated.rank import PLACED
from deepvm.lab.records import events_of, rows_in, steps_of
from deepvm.lab.running.recovery import Recoveries, event_facts

_GONE = ("suspect", "lost", "ended")


@dataclass(frozen=True)
class JobRecord:
    """What is known of a job at its end.

    Attributes:
        run: folder of the run. config: of the run. events: of the job, in their order. struck: when
            each failure from outside struck, and in which attempt. done: whether the job has
            trained to its end. broken: files that were damaged, by attempt.
    """

    run: Path
    config: Mapping[str, Any]
    events: Sequence[EventRow]
    struck: Mapping[str, tuple[float, int]]
    done: bool
    broken: Mapping[int, Sequence[str]] = field(default_factory=dict)

    @cached_property
    def _workers(self) -> list[dict[str, Any]]:
        return rows_in(self.run, map(events_of, range(self.config["world"])))

    @cached_property
    def _steps(self) -> list[dict[str, Any]]:
        return rows_in(self.run, map(steps_of, range(self.config["world"])))

    @cached_property
    def _generations(self) -> int:
        return max((int(event.facts["generation"]) for event in self.events), default=0)

    def attempts(self) -> list[dict[str, Any]]:
        attempts = list[dict[str, Any]]()
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

    # --- one attempt ------------------------------------------------------------------------------

    def _attempt(self, number: int, before: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
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
        self,
        number: int,
        struck: Mapping[str, float],
        reached: int,
        before: Sequence[Mapping[str, Any]],
    ) -> tuple[str, list[str]]:
        """How a generation has ended, and why.

        One that hands over without losing a step, as to a newcomer, is complete. One that was
        replaced before it could train is part of the recovery from the one before.
        """
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
        return {
            int(before.facts["generation"]) - 1 for before, event in pairs if event.kind == "hung"
        }

    def _of(self, number: int, kind: str) -> list[EventRow]:
        """Events of a kind that belong to a generation."""
        events = [event for event in self.events if event.kind == kind]
        return [event for event in events if int(event.facts["generation"]) == number + 1]

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
        formed = (e.at_s for e in self.events if int(e.facts["generation"]) >= number + 1)
        return next(formed)

    def _detected(self, number: int, struck_at: float) -> float:
        """When the controller knew that a generation would end, or had ended."""
        for event in self.events:
            facts = event.facts
            generation = int(facts["generation"])
            if event.at_s < struck_at or generation < number + 1:
                continue
            gone = event.kind in ("noticed", "silent", "hung")
            gone |= event.kind == MACHINE and facts.get("state") in _GONE
            gone |= event.kind == "ended" and bool(facts["code"])
            if gone or generation > number + 1:
                return event.at_s
        return self.events[-1].at_s
