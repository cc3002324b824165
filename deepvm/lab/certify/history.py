"""Where an attempt resumed and diverged from the undisturbed run, by digests of parameters."""

from collections.abc import Iterator, Mapping, Sequence

from deepvm.core.json_types import JsonObject as Row
from deepvm.lab.certify.attempt import Attempt, AttemptLog
from deepvm.records import dataclass, replace

_LOG_SAMPLES = "; log samples (deepvm.lab.SampleLog) to know which"
_SHOWN = {"torch": "torch", "cuda": "CUDA", "python": "Python", "numpy": "NumPy"}


@dataclass(frozen=True)
class Divergence:
    """How a run differs from the undisturbed one; ``cures``: names in ``data/lab/cures.json``."""

    reason: str = ""
    cures: Sequence[str] = ()


UNKNOWN = Divergence(
    "its gradients are others: other samples, other buffers or random numbers of its own",
    ["samples"],
)


@dataclass(frozen=True)
class PlacedAttempt:
    """An attempt, and the step it resumed from; None: parameters no attempt before it had."""

    attempt: Attempt
    resumed: int | None

    @property
    def reached(self) -> int | None:
        if self.resumed is None:
            return None
        return self.resumed + len(self.attempt.logged.progress)


class History:
    """The undisturbed run, and all attempts of another so far."""

    def __init__(self, reference: AttemptLog, again: AttemptLog) -> None:
        self._reference = reference
        self._seeded = seeded(reference, again)
        self._by_samples = 0 not in reference.steps
        self._known: list[tuple[int, Row]] = []
        self.placed: list[PlacedAttempt] = []
        self._known += [(0, row) for row in reference.starts.get(0, ())]
        self._remember(0, reference)

    @property
    def steps(self) -> int:
        return len(self._reference.progress)

    def _remember(self, resumed: int, logged: AttemptLog) -> None:
        self._known += [
            (resumed + number, row) for number, row in enumerate(logged.steps.get(0, ()), 1)
        ]

    def place_of(self, first: Row) -> int | None:
        """The step after which an attempt resumes, by its first line (optimizer or samples)."""
        progress = self._reference.progress
        if first["kind"] == "samples":
            steps = [row["global_step"] for row in progress]
            if first["global_step"] in steps:
                return steps.index(first["global_step"])
            return None
        same = (first["key"], first["params"])
        matching = [(step, row) for step, row in self._known if (row["key"], row["params"]) == same]
        exact = [step for step, row in matching if row["state"] == first["state"]]
        newest = max(exact or [step for step, _ in matching], default=None)
        if newest is None:
            return None
        # Of several optimizers that take turns, others may have stepped since.
        turns = [step for step, row in enumerate(progress, 1) if row["key"] == first["key"]]
        return next((step - 1 for step in turns if step > newest), self.steps)

    def add(self, attempt: Attempt) -> PlacedAttempt:
        logged = attempt.logged
        resumed = None
        first = (logged.samples if self._by_samples else logged.starts).get(0, ())
        if first:
            resumed = self.place_of(first[0])
        elif attempt.state == "ended":  # without a step: where the last one has ended
            resumed = self.placed[-1].reached if self.placed else 0
        placed = PlacedAttempt(attempt, resumed)
        self.placed.append(placed)
        if resumed is not None:
            self._remember(resumed, logged)
        return placed

    def first_difference(self) -> Divergence:
        """Where parameters first differ from the undisturbed run, and what else does."""
        steps = self._reference.steps.get(0, ())
        reached: int | None = None
        for one in self.placed:
            attempt = f"attempt {one.attempt.number}"
            reached = one.reached
            if one.resumed is None:
                return Divergence(
                    f"{attempt} continued with parameters that the undisturbed run never had"
                )
            for at, row in enumerate(one.attempt.logged.steps.get(0, ()), one.resumed):
                if at >= len(steps):
                    return Divergence(
                        f"{attempt} resumed from step {one.resumed} and made step {at + 1}, of"
                        f" {len(steps)}"
                    )
                if values(row) != values(steps[at]):
                    where = f"{attempt}, which resumed from step {one.resumed}, diverged at step"
                    found = self._cause(one.attempt.logged, at - one.resumed, at)
                    return replace(found, reason=f"{where} {at + 1}: {found.reason}")
        if reached is not None and reached < len(steps):
            return Divergence(f"{attempt} ended at step {reached}, of {len(steps)}")
        return Divergence()

    def _cause(self, logged: AttemptLog, index: int, at: int) -> Divergence:
        for rank, expected in self._reference.steps.items():
            rows = logged.steps.get(rank, ())
            first = logged.starts.get(rank, ())
            if index >= len(rows) or at >= len(expected):
                continue
            before = [row for row in expected[:at] if row["key"] == expected[at]["key"]][-1:]
            lost = not index and bool(first and before) and first[0]["state"] != before[0]["state"]
            found = cause(rows[index], expected[at], self._seeded, lost=lost)
            if found != UNKNOWN:
                if rank:
                    return replace(found, reason=f"on rank {rank}, {found.reason}")
                return found
        if self._reference.samples:
            return UNKNOWN
        return replace(UNKNOWN, reason=UNKNOWN.reason + _LOG_SAMPLES)


def values(row: Row) -> tuple[str, str]:
    """What a step must share with the undisturbed run's."""
    return row["params"], row["buffers"]


def seeded(first: AttemptLog, second: AttemptLog) -> frozenset[str]:
    """Random states equal in two undisturbed runs; unseeded ones say nothing."""
    rows = first.steps.get(0, ())
    others = second.steps.get(0, ())
    if not rows or not others:
        return frozenset()
    states = rows[0]["random"]
    again = others[0]["random"]
    return frozenset(name for name in states if states[name] == again.get(name))


def cause(row: Row, expected: Row, seeded: frozenset[str], *, lost: bool = False) -> Divergence:
    """What differs besides parameters; ``lost``: the optimizer's state before the step, too."""
    reasons = [("settings", reason) for reason in _settings(row, expected)]
    if lost:
        reasons.append(("state", "the optimizer had another state, such as momentum, before it"))
    if row["params"] == expected["params"]:
        reasons.append(("buffers", "buffers, such as BatchNorm's averages, are others"))
    ours = row["random"]
    theirs = expected["random"]
    others = [_SHOWN[name] for name in sorted(seeded) if ours.get(name) != theirs.get(name)]
    if others:
        reasons.append(("random", f"another random state of {' and '.join(others)}"))
    if not reasons:
        return UNKNOWN
    return Divergence(
        "; ".join(dict.fromkeys(reason for _, reason in reasons)), [name for name, _ in reasons]
    )


def _settings(row: Row, expected: Row) -> Iterator[str]:
    for ours, theirs in zip(row["groups"], expected["groups"], strict=False):
        for name, value in theirs.items():
            if ours.get(name) != value:
                setting = f"the optimizer's {name}"
                if name == "lr":
                    setting = "the learning rate"
                yield f"{setting} is {ours.get(name)}, not {value}"


def final_values(attempts: Sequence[Attempt]) -> Mapping[tuple[int, str], tuple[str, str]]:
    """By (rank, optimizer): digests of parameters and buffers after the last step."""
    digests: dict[tuple[int, str], tuple[str, str]] = {}
    for attempt in attempts:
        for rank, rows in attempt.logged.steps.items():
            for row in rows:
                digests[rank, row["key"]] = values(row)
    return digests
