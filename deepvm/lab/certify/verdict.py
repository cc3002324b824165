"""The gates of an audit: what each asks, and the answer from what runs have logged."""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from deepvm.lab.certify.attempt import Attempt
from deepvm.lab.certify.history import History, cause, final_values, seeded
from deepvm.lab.certify.logs import Logged, Row

_MOST_NAMES = 3


@dataclass(frozen=True)
class Run:
    """A script from its first start to its end.

    Attributes:
        final: digest of the file of final parameters, empty where there is none; if it cannot be
            read, why.
        history: of a run that was killed.
    """

    attempts: Sequence[Attempt]
    final: str = ""
    history: History | None = None

    @property
    def ended(self) -> bool:
        return self.attempts[-1].state == "ended"


@dataclass(frozen=True)
class Evidence:
    """All runs; of kills, how many were planned, and how many hit the training."""

    first: Run
    second: Run
    killed: Sequence[Run] = ()
    planned: int = 0
    hits: int = 0

    @property
    def reference(self) -> Logged:
        return self.first.attempts[0].logged


@dataclass(frozen=True)
class Gate:
    """An answer, with its reason unless it is passed."""

    name: str
    state: Literal["passed", "failed", "skipped"]
    reason: str = ""


class _NotJudged(Exception):
    """A gate cannot be judged, and why."""


def _repeats(found: Evidence) -> Iterator[str]:
    """Two undisturbed runs agree bit for bit: else a difference says nothing about resuming."""
    ours, theirs = found.reference, found.second.attempts[0].logged
    for rank, rows in ours.steps.items():
        others = theirs.steps.get(rank, ())
        if len(rows) != len(others):
            yield f"two undisturbed runs made {len(rows)} and {len(others)} steps"
            return
        for place, (row, other) in enumerate(zip(rows, others, strict=True), 1):
            if (row["params"], row["buffers"]) != (other["params"], other["buffers"]):
                why = cause(other, row, seeded(ours, theirs))
                advice = "seed what is random, and see torch.use_deterministic_algorithms"
                yield f"two undisturbed runs differ from step {place} on: {why}; {advice}"
                return
    if found.first.final != found.second.final:
        yield "two undisturbed runs wrote other final parameters: seed what is random"
    if _all_samples(ours) != _all_samples(theirs):
        yield "two undisturbed runs logged other samples: seed what is random"


def _all_samples(logged: Logged) -> list[tuple[int, int, int, list[str]]]:
    return sorted(
        (rank, r["step"], r["epoch"], r["ids"])
        for rank, rows in logged.samples.items()
        for r in rows
    )


def _ends(found: Evidence) -> Iterator[str]:
    """The script reaches its end after each kill, without help."""
    for run in found.killed:
        last = run.attempts[-1]
        before = run.attempts[-2] if len(run.attempts) > 1 else None
        if run.ended:
            continue
        after = f", started after a kill {_kill_shown(before)}," if before is not None else ""
        if last.state == "hung":
            yield f"attempt {last.number}{after} did not end within {last.wall_s:.0f} s"
        else:
            yield (
                f"attempt {last.number}{after} failed with exit code"
                f" {last.code}:\n{last.last_lines}"
            )


def _kill_shown(attempt: Attempt) -> str:
    return f"while {attempt.torn_file} was written" if attempt.torn_file else "after a step"


def _kills(found: Evidence) -> Iterator[str]:
    """All kills that were planned hit a training that had made steps, and left no process."""
    _ended(found)
    if found.hits < found.planned:
        yield (
            f"{found.hits} of {found.planned} kills hit the training: let it run for more steps or"
            " more time"
        )
    left = sum(attempt.left for run in found.killed for attempt in run.attempts)
    if left:
        yield f"{left} processes could not be killed"


def _resumed(found: Evidence) -> Iterator[str]:
    """Some attempt resumed from a checkpoint; a restart from 0 may end right all the same."""
    later = [
        one for run in found.killed if run.history is not None for one in run.history.placed[1:]
    ]
    placed = [one for one in later if one.resumed is not None or one.attempt.logged.progress]
    if not placed:
        raise _NotJudged("no attempt made a step after a kill")
    if all(one.resumed == 0 for one in placed):
        writes = [row["n"] for row in found.reference.writes if row["n"] > 0]
        first = (
            f"; the first torch.save or save_file was after step {min(writes)}" if writes else ""
        )
        yield f"each attempt started anew, from step 0{first}"


def _parameters(found: Evidence) -> Iterator[str]:
    """Final parameters and buffers are those of the undisturbed run, bit for bit."""
    for run in _ended(found):
        assert run.history is not None
        if final_values(run.attempts) != final_values(found.first.attempts):
            yield run.history.first_difference() or "they differ on another rank than the first"
        if run.final != found.first.final:
            yield "the file of final parameters differs" + (
                "" if len(run.final) == 64 else f" ({run.final})"
            )


def _ended(found: Evidence) -> list[Run]:
    runs = [run for run in found.killed if run.ended]
    if not runs:
        raise _NotJudged("the script did not come to its end")
    return runs


def _samples(found: Evidence) -> Iterator[str]:
    """Each epoch had the undisturbed run's samples, equally often, not counting lost ones."""
    if not found.reference.samples:
        raise _NotJudged("the script logs no samples; see deepvm.lab.SampleLog")
    expected = _epochs(found.first.attempts, [0])
    for run in _ended(found):
        assert run.history is not None
        seen = _epochs(run.attempts, [one.resumed for one in run.history.placed])
        for epoch in sorted({*expected, *seen}):
            missing = expected.get(epoch, Counter[str]()) - seen.get(epoch, Counter[str]())
            more = seen.get(epoch, Counter[str]()) - expected.get(epoch, Counter[str]())
            if missing or more:
                parts = [
                    f"{len(c)} are {what} ({_some_ids(c)})"
                    for c, what in ((missing, "missing"), (more, "too many"))
                    if c
                ]
                yield f"epoch {epoch}: of the ids of its samples, {' and '.join(parts)}"
                break


def _epochs(attempts: Sequence[Attempt], resumed: Sequence[int | None]) -> dict[int, Counter[str]]:
    """Samples that the final parameters have seen, by epoch.

    ``resumed``: the step that each attempt has gone on from.

    What an attempt did after the step that the next one went on from is lost, whether it was done
    again or not. Of what was done again, the last attempt counts.
    """
    owners: dict[tuple[int, int], tuple[int, Row]] = {}
    for attempt, begin in zip(attempts, resumed, strict=True):
        if begin is not None:
            owners = {key: (step, row) for key, (step, row) in owners.items() if step <= begin}
        for rank, rows in attempt.logged.samples.items():
            times = [row["time"] for row in attempt.logged.steps.get(rank, rows)]
            for row in rows:
                # Where an attempt has gone on from is unknown, none of its steps is known to be
                # lost.
                step = begin + bisect(times, row["time"]) if begin is not None else 0
                owners[row["step"], rank] = step, row
    found: dict[int, Counter[str]] = {}
    for _, row in owners.values():
        found.setdefault(row["epoch"], Counter()).update(row["ids"])
    return found


def _some_ids(samples: Counter[str]) -> str:
    names = sorted(samples, key=lambda name: (len(name), name))
    return ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")


def _replays(found: Evidence) -> Iterator[str]:
    """A step that was done again had the same samples and, to the last bit, the same loss."""
    if not found.reference.samples:
        raise _NotJudged("for the same reason")
    again = 0
    for run in found.killed:
        first: dict[tuple[int, int], Row] = {}
        for attempt in run.attempts:
            for rank, rows in attempt.logged.samples.items():
                for row in rows:
                    before = first.setdefault((row["step"], rank), row)
                    again += before is not row
                    for key, what in (("ids", "other samples"), ("loss", "another loss")):
                        if before[key] != row[key]:
                            yield (
                                f"step {row['step']} of rank {rank}: attempt {attempt.number} had"
                                f" {what}"
                            )
                            return
    if not again:
        raise _NotJudged("no step was done again")


GATES: Mapping[str, Callable[[Evidence], Iterator[str]]] = {
    "repeats": _repeats,
    "ends": _ends,
    "kills": _kills,
    "resumed": _resumed,
    "parameters": _parameters,
    "samples": _samples,
    "replays": _replays,
}
"""By name, in the order in which they are told: what is wrong, nothing if the gate is passed."""


def judge(found: Evidence) -> list[Gate]:
    """All gates. If undisturbed runs differ, nothing else can be judged."""
    answers: list[Gate] = []
    for name, gate in GATES.items():
        if answers and answers[0].state == "failed":
            answers.append(Gate(name, "skipped", "two undisturbed runs differ"))
            continue
        try:
            reason = next(gate(found), "")
        except _NotJudged as skipped:
            answers.append(Gate(name, "skipped", str(skipped)))
            continue
        answers.append(Gate(name, "failed" if reason else "passed", reason))
    return answers
