"""The gates of an audit: what each asks, and the answer from what runs have logged."""

from bisect import bisect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from deepvm.core.json_types import JsonObject as Row
from deepvm.core.spelling import listed
from deepvm.io.user_dirs import read_data
from deepvm.lab import verdict
from deepvm.lab.certify.attempt import Attempt, AttemptLog
from deepvm.lab.certify.history import History, cause, final_values, seeded, values
from deepvm.lab.verdict import Gate, NotJudgedError, Problems
from deepvm.records import dataclass

_SEED = "seed what is random"


@dataclass(frozen=True)
class Run:
    """A script from its first start to its end."""

    attempts: Sequence[Attempt]
    final: str = ""  # digest of the file of final parameters, if any; or why it cannot be read
    history: History | None = None  # of a run that was killed

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
    def reference(self) -> AttemptLog:
        return self.first.attempts[0].logged

    @property
    def ended(self) -> list[tuple[Run, History]]:
        runs = [(run, run.history) for run in self.killed if run.ended and run.history is not None]
        if not runs:
            raise NotJudgedError("the script did not come to its end")
        return runs


def _repeats(evidence: Evidence) -> Problems:
    """Two undisturbed runs agree bit for bit: else a difference says nothing about resuming."""
    ours = evidence.reference
    theirs = evidence.second.attempts[0].logged
    for rank, rows in ours.steps.items():
        others = theirs.steps.get(rank, ())
        if len(rows) != len(others):
            yield f"two undisturbed runs made {len(rows)} and {len(others)} steps"
        for step, (row, other) in enumerate(zip(rows, others, strict=False), 1):
            if values(row) != values(other):
                reason = cause(other, row, seeded(ours, theirs)).reason
                advice = f"{_SEED}, and see torch.use_deterministic_algorithms"
                yield f"two undisturbed runs differ from step {step} on: {reason}; {advice}"
    if evidence.first.final != evidence.second.final:
        yield f"two undisturbed runs wrote other final parameters: {_SEED}"
    if _all_samples(ours) != _all_samples(theirs):
        yield f"two undisturbed runs logged other samples: {_SEED}"


def _all_samples(logged: AttemptLog) -> list[tuple[int, int, int, list[str]]]:
    rows = [(rank, row) for rank, rows in logged.samples.items() for row in rows]
    return sorted((rank, row["global_step"], row["epoch"], row["sample_ids"]) for rank, row in rows)


def _ends(evidence: Evidence) -> Problems:
    for run in evidence.killed:
        last = run.attempts[-1]
        after = ""
        if len(run.attempts) > 1:
            file = run.attempts[-2].torn_file
            moment = "after a step"
            if file:
                moment = f"while {file} was written"
            after = f", started after a kill {moment},"
        if last.state == "hung":
            yield f"attempt {last.number}{after} did not end within {last.wall_s:.0f} s"
        elif not run.ended:
            failed = f"attempt {last.number}{after} failed with exit code {last.code}"
            yield f"{failed}:\n{last.last_lines}"


def _kills(evidence: Evidence) -> Problems:
    """All kills that were planned hit a training that had made steps, and left no process."""
    if evidence.ended and evidence.hits < evidence.planned:
        yield (
            f"{evidence.hits} of {evidence.planned} kills hit the training: let it run for more"
            " steps or more time"
        )
    left = sum(attempt.left for run in evidence.killed for attempt in run.attempts)
    if left:
        yield f"{left} processes could not be killed"


def _resumed(evidence: Evidence) -> Problems:
    """Some attempt resumed from a checkpoint; a restart from 0 may end right all the same."""
    histories = [run.history for run in evidence.killed if run.history is not None]
    later = [one for history in histories for one in history.placed[1:]]
    placed = [one for one in later if one.resumed is not None or one.attempt.logged.progress]
    if not placed:
        raise NotJudgedError("no attempt made a step after a kill")
    if all(one.resumed == 0 for one in placed):
        first = ""
        if writes := [row["n"] for row in evidence.reference.writes if row["n"] > 0]:
            first = f"; the first torch.save or save_file was after step {min(writes)}"
        yield f"each attempt started at step 0 again{first}"


def _parameters(evidence: Evidence) -> Problems:
    for run, history in evidence.ended:
        if final_values(run.attempts) != final_values(evidence.first.attempts):
            reason = history.first_difference().reason
            yield reason or "they differ on another rank than the first"
        if run.final != evidence.first.final:
            reason = "" if len(run.final) == 64 else f" ({run.final})"
            yield f"the file of final parameters differs{reason}"


def _samples(evidence: Evidence) -> Problems:
    """Each epoch had the undisturbed run's samples, equally often, not counting lost ones."""
    if not evidence.reference.samples:
        raise NotJudgedError("the script logs no samples; see deepvm.lab.SampleLog")
    expected = _epochs(evidence.first.attempts, [0])
    for run, history in evidence.ended:
        seen = _epochs(run.attempts, [one.resumed for one in history.placed])
        for epoch in sorted({*expected, *seen}):
            ours = seen.get(epoch, Counter())
            theirs = expected.get(epoch, Counter())
            parts = []
            for ids, problem in ((theirs - ours, "missing"), (ours - theirs, "too many")):
                if ids:
                    names = listed(sorted(ids, key=lambda name: (len(name), name)), 3)
                    parts.append(f"{len(ids)} are {problem} ({names})")
            if parts:
                yield f"epoch {epoch}: of the ids of its samples, {' and '.join(parts)}"


def _epochs(attempts: Sequence[Attempt], resumed: Sequence[int | None]) -> dict[int, Counter[str]]:
    """Samples that the final parameters have seen; ``resumed``: what was done after it is lost."""
    owners: dict[tuple[int, int], tuple[int, Row]] = {}
    for attempt, begin in zip(attempts, resumed, strict=True):
        if begin is not None:
            owners = {key: (step, row) for key, (step, row) in owners.items() if step <= begin}
        for rank, rows in attempt.logged.samples.items():
            times = [row["time"] for row in attempt.logged.steps.get(rank, rows)]
            for row in rows:
                step = 0  # none is known to be lost
                if begin is not None:
                    step = begin + bisect(times, row["time"])
                owners[row["global_step"], rank] = step, row
    epochs: dict[int, Counter[str]] = {}
    for _, row in owners.values():
        epochs.setdefault(row["epoch"], Counter()).update(row["sample_ids"])
    return epochs


def _replays(evidence: Evidence) -> Problems:
    if not evidence.reference.samples:
        raise NotJudgedError("for the same reason")
    again = 0
    for run in evidence.killed:
        rows = [
            {**row, "attempt": attempt.number, "rank": rank}
            for attempt in run.attempts
            for rank, logged in attempt.logged.samples.items()
            for row in logged
        ]
        yield from verdict.replays(rows, "sample_ids")
        again += len(rows) - len({(row["global_step"], row["rank"]) for row in rows})
    if not again:
        raise NotJudgedError("no step was done again")


# By name, in the order of the table: what is wrong, nothing if the gate is passed
GATES: Mapping[str, Callable[[Evidence], Problems]] = {
    "repeats": _repeats,
    "ends": _ends,
    "kills": _kills,
    "resumed": _resumed,
    "parameters": _parameters,
    "samples": _samples,
    "replays": _replays,
}


def judge(evidence: Evidence) -> list[Gate]:
    """All gates. If undisturbed runs differ, nothing else can be judged."""
    if next(_repeats(evidence), ""):
        first = verdict.judge({"repeats": _repeats}, evidence)
        others = [name for name in GATES if name != "repeats"]
        return first + [Gate(name, "skipped", "two undisturbed runs differ") for name in others]
    return verdict.judge(GATES, evidence)


def cures(gates: Sequence[Gate], evidence: Evidence) -> list[Row]:
    """The lines of code that mend what failed."""
    known = read_data("lab/cures.json")
    names = []
    for gate in gates:
        if gate.state == "failed":
            names.append(gate.name)
            if gate.name == "parameters":
                for _, history in evidence.ended:
                    names += history.first_difference().cures
    return [known[name] for name in dict.fromkeys(names) if name in known]
