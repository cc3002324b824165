"""Where an attempt resumed and diverged from the undisturbed run, by digests of parameters.

A step is known by its number in the undisturbed run. An attempt is found there by the parameters
(and the state of the optimizer) that it holds before its first step; the script need not say where
it continues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deepvm.lab.certify.attempt import Attempt
from deepvm.lab.certify.logs import Logged, Row

UNKNOWN = "its gradients are others: other samples, other buffers or random numbers of its own"
_LOG_SAMPLES = "; log samples (deepvm.lab.SampleLog) to know which"
_SHOWN = {"torch": "torch", "cuda": "CUDA", "python": "Python", "numpy": "NumPy"}


@dataclass(frozen=True)
class PlacedAttempt:
    """An attempt and the step it resumed from; None: parameters no attempt before it had."""

    attempt: Attempt
    resumed: int | None

    @property
    def reached(self) -> int | None:
        return None if self.resumed is None else self.resumed + len(self.attempt.logged.progress)


class History:
    """Of a run: the undisturbed one, and all attempts so far."""

    def __init__(self, reference: Logged, again: Logged) -> None:
        self._reference, self._seeded = reference, seeded(reference, again)
        self._by_samples = 0 not in reference.steps
        self._known: list[tuple[int, Row]] = []
        self.placed: list[PlacedAttempt] = []
        for row in reference.starts.get(0, ()):
            self._known.append((0, row))
        self._remember(0, reference)

    @property
    def steps(self) -> int:
        return len(self._reference.progress)

    def _remember(self, resumed: int, logged: Logged) -> None:
        self._known += [
            (resumed + place, row) for place, row in enumerate(logged.steps.get(0, ()), 1)
        ]

    def place_of(self, first: Row) -> int | None:
        """The step after which an attempt resumes, by its first line (optimizer or samples)."""
        if first["kind"] == "samples":
            steps = [row["step"] for row in self._reference.progress]
            return steps.index(first["step"]) if first["step"] in steps else None
        alike = [
            (step, row)
            for step, row in self._known
            if (row["key"], row["params"]) == (first["key"], first["params"])
        ]
        same = [step for step, row in alike if row["state"] == first["state"]]
        found = max(same or [step for step, _ in alike], default=None)
        if found is None:
            return None
        # Of several optimizers that take turns, others may have stepped since.
        turns = (
            step
            for step, row in enumerate(self._reference.progress, 1)
            if row["key"] == first["key"]
        )
        return next((step - 1 for step in turns if step > found), self.steps)

    def add(self, attempt: Attempt) -> PlacedAttempt:
        logged = attempt.logged
        first = (logged.samples if self._by_samples else logged.starts).get(0, ())
        place = (
            self.place_of(first[0])
            if first
            else self._end_of_last()
            if attempt.state == "ended"
            else None
        )
        found = PlacedAttempt(attempt, place)
        self.placed.append(found)
        if place is not None:
            self._remember(place, logged)
        return found

    def _end_of_last(self) -> int | None:
        """Where an attempt is that has made no step: where the last one has ended."""
        return self.placed[-1].reached if self.placed else 0

    def first_difference(self) -> str:
        """Where parameters first differ from the undisturbed run, and what else does; or empty."""
        steps = self._reference.steps.get(0, ())
        for one in self.placed:
            number = one.attempt.number
            if one.resumed is None:
                return (
                    f"attempt {number} went on with parameters that the undisturbed run never had"
                )
            rows = one.attempt.logged.steps.get(0, ())
            for place, row in enumerate(rows):
                at = one.resumed + place
                if at >= len(steps):
                    return (
                        f"attempt {number} resumed from step {one.resumed} and made step {at + 1},"
                        f" of {len(steps)}"
                    )
                if _values(row) != _values(steps[at]):
                    where = (
                        f"attempt {number}, which resumed from step {one.resumed}, diverged at step"
                        f" {at + 1}"
                    )
                    return f"{where}: {self._cause(one.attempt.logged, place, at)}"
        last = self.placed[-1] if self.placed else None
        if last is not None and last.reached is not None and last.reached < len(steps):
            return f"attempt {last.attempt.number} ended at step {last.reached}, of {len(steps)}"
        return ""

    def _cause(self, logged: Logged, place: int, at: int) -> str:
        """Why an attempt diverged at its step ``place``, on the first rank; ``at``: overall."""
        for rank, expected in self._reference.steps.items():
            rows, first = logged.steps.get(rank, ()), logged.starts.get(rank, ())
            if place >= len(rows) or at >= len(expected):
                continue
            before = next(
                (row for row in expected[:at][::-1] if row["key"] == expected[at]["key"]), None
            )
            lost = (
                not place
                and bool(first)
                and before is not None
                and first[0]["state"] != before["state"]
            )
            found = cause(rows[place], expected[at], self._seeded, lost=lost)
            if found != UNKNOWN:
                return f"on rank {rank}, {found}" if rank else found
        return UNKNOWN + ("" if self._reference.samples else _LOG_SAMPLES)


def _values(row: Row) -> tuple[str, str]:
    return row["params"], row["buffers"]


def seeded(first: Logged, second: Logged) -> frozenset[str]:
    """Random states equal in two undisturbed runs; unseeded ones say nothing."""
    rows, others = first.steps.get(0, ()), second.steps.get(0, ())
    if not rows or not others:
        return frozenset()
    states, again = rows[0]["random"], others[0]["random"]
    return frozenset(name for name in states if states[name] == again.get(name))


def cause(row: Row, expected: Row, seeded: frozenset[str], *, lost: bool = False) -> str:
    """What differs besides parameters at the first step that does.

    Args:
        row: the step.
        expected: the step of the undisturbed run.
        seeded: names of random states that can be compared.
        lost: whether the optimizer's state before the step was another.
    """
    found = []
    settings = _settings(row, expected)
    if settings:
        found.append(settings)
    if lost:
        found.append("the optimizer had another state, such as momentum, before it")
    if row["params"] == expected["params"]:
        found.append("buffers, such as BatchNorm's averages, are others")
    others = [
        name for name in sorted(seeded) if row["random"].get(name) != expected["random"].get(name)
    ]
    if others:
        found.append(f"another random state of {' and '.join(_SHOWN[name] for name in others)}")
    return "; ".join(found) or UNKNOWN


def _settings(row: Row, expected: Row) -> str:
    for ours, theirs in zip(row["groups"], expected["groups"], strict=False):
        for name, value in theirs.items():
            if ours.get(name) != value:
                shown = "the learning rate" if name == "lr" else f"the optimizer's {name}"
                return f"{shown} is {ours.get(name)}, not {value}"
    return ""


def final_values(attempts: Sequence[Attempt]) -> Mapping[tuple[int, str], tuple[str, str]]:
    """By (rank, optimizer): digests of parameters and buffers after the last step."""
    found: dict[tuple[int, str], tuple[str, str]] = {}
    for attempt in attempts:
        for rank, rows in attempt.logged.steps.items():
            for row in rows:
                found[rank, row["key"]] = _values(row)
    return found
