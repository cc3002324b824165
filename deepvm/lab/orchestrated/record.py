"""The supervisor's record of a job: generations as attempts, from events and rank logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from deepvm.jobs.history.history import MACHINE, EventRow
from deepvm.lab.faults.fault import STRUCK, Fault, Strike
from deepvm.lab.faults.fault_registry import find_fault
from deepvm.lab.orchestrated.rank import PLACED
from deepvm.lab.records import events_of, read_lines, steps_of
from deepvm.lab.recovery import Recoveries, event_facts

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
    def _ranks(self) -> range:
        return range(self.config["world"])

    @cached_property
    def _workers(self) -> list[dict[str, Any]]:
        return [row for rank in self._ranks for row in read_lines(self.run / events_of(rank))]

    @cached_property
    def _steps(self) -> list[list[dict[str, Any]]]:
        return [list(read_lines(self.run / steps_of(rank))) for rank in self._ranks]

    @cached_property
    def generations(self) -> int:
        return max((int(event.facts["generation"]) for event in self.events), default=0)

    def document(self, began: float, ended: float) -> dict[str, Any]:
        attempts, recoveries = list[dict[str, Any]](), Recoveries()
        for number in range(self.generations):
            attempts.append(self._attempt(number, attempts, recoveries))
        failed = [one for one in attempts if one["state"] != "completed"]
        return {
            "state": "completed" if self.done else "failed",
            "restarts": len(failed) - (not self.done and bool(failed)),
            "wall_s": ended - began,
            "hangs": sum(one["state"] == "hung" for one in failed),
            "attempts": attempts,
        }

    # --- one attempt ------------------------------------------------------------------------------

    def _attempt(
        self, number: int, before: Sequence[Mapping[str, Any]], recoveries: Recoveries
    ) -> dict[str, Any]:
        struck, reached = self._struck_in(number), self._reached(number)
        state, causes = self._state(number, struck, reached, before)
        rows = [row for row in self._workers if row["attempt"] == number]
        placed = {row["rank"]: row["machine"] for row in rows if row["event"] == PLACED}
        restored = [row for row in rows if row["event"] == "restored"]
        until = reached if number + 1 < self.generations else int(self.config["steps"])
        detected = self._detected(
            number, max((struck[key] for key in causes if key in struck), default=0.0)
        )
        facts: dict[str, Any] = {
            "attempt": number,
            "world": len(placed),
            "machines": [placed[rank] for rank in sorted(placed)],
            "state": state,
            "until": until,
            "began": self._formed(number),
            "detected": detected,
            "exits": [int(event.facts["code"]) for event in self._of(number, "ended")],
            "causes": causes,
            "struck": struck,
            **event_facts(rows),
            "reached_step": reached,
            "broken": list(self.broken.get(number, ())),
            "safe": self._safe(number),
        }
        facts |= recoveries.parts(
            facts, restored, (row for row in self._steps[0] if row["attempt"] == number)
        )
        if state != "completed" and not self.done and number + 1 == self.generations:
            facts["last_lines"] = self._last_lines()
        return facts

    def _struck_in(self, number: int) -> dict[str, float]:
        """The failures that struck in an attempt, and when."""
        found = {key: at for key, (at, attempt) in self.struck.items() if attempt == number}
        rows = (row for row in self._workers if row["event"] in STRUCK and row["attempt"] == number)
        return found | {row["key"]: row["time"] for row in rows}

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
        last = number + 1 == self.generations
        if last and self.done:
            return "completed", []
        causes = [key for key in struck if self._fault(key).ends]
        if number in self._hung:
            return "hung", causes or ["hang"]
        if not reached and not causes and before:
            return "superseded", list(before[-1]["causes"])
        if causes:
            notices = all(self._fault(key).announced for key in causes)
            return ("preempted" if notices else "failed"), causes
        resumed = [
            row["step"]
            for row in self._workers
            if row["event"] == "restored" and row["attempt"] > number
        ]
        crashed = any(event.facts["code"] for event in self._of(number, "ended"))
        hands_over = not last and not crashed and bool(resumed) and resumed[0] == reached
        return ("completed" if hands_over else "failed"), []

    @cached_property
    def _hung(self) -> set[int]:
        """Attempts that hung: the event names the generation after, perhaps the next one."""
        pairs = zip(self.events, self.events[1:], strict=False)
        return {
            int(before.facts["generation"]) - 1 for before, event in pairs if event.kind == "hung"
        }

    def _fault(self, key: str) -> Fault:
        return find_fault(Strike.fault_in(key))

    def _done(self, number: int, rank: int) -> int:
        """Steps that were done when a rank logged its last one of an attempt; 0 without any."""
        return max(
            (row["global_step"] + 1 for row in self._steps[rank] if row["attempt"] == number),
            default=0,
        )

    def _reached(self, number: int) -> int:
        return max(self._done(number, rank) for rank in self._ranks)

    def _of(self, number: int, kind: str) -> list[EventRow]:
        """Events of a kind that belong to a generation."""
        return [
            e for e in self.events if e.kind == kind and int(e.facts["generation"]) == number + 1
        ]

    def _safe(self, number: int) -> list[list[Any]]:
        """A generation's safe checkpoints: number, reason, and whether safe without an anchor."""
        lasting = {int(event.facts["version"]) for event in self._of(number, "lasts")}
        found = []
        for event in self._of(number, "safe"):
            version = int(event.facts["version"])
            found.append(
                [
                    version,
                    str(event.facts["reason"]),
                    bool(event.facts["lasts"]) or version in lasting,
                ]
            )
        return found

    def _formed(self, number: int) -> float:
        return next(
            event.at_s for event in self.events if int(event.facts["generation"]) >= number + 1
        )

    def _detected(self, number: int, struck_at: float) -> float:
        """When the controller knew that a generation would end, or had ended."""
        for event in self.events:
            facts = event.facts
            if event.at_s < struck_at or int(facts["generation"]) < number + 1:
                continue
            gone = event.kind in ("noticed", "silent", "hung") or (
                event.kind == MACHINE and facts.get("state") in _GONE
            )
            if (
                gone
                or (event.kind == "ended" and facts["code"])
                or int(facts["generation"]) > number + 1
            ):
                return event.at_s
        return self.events[-1].at_s

    def _last_lines(self) -> list[str]:
        found = [line for event in self.events for line in event.facts.get("lines", ())]
        return [str(line) for line in found[-20:]]
