"""The gates that each run must pass, judged from the files that the run has left (ECRL 5.9).

An attempt does the steps from where it went on in their order; those at which a later one went on
were lost with its failure (:attr:`deepvm.lab.records.Records.owned`). The samples of each step are
recomputed by :mod:`deepvm.lab.audit.sample_rule`: with the code that trained, the audit shares
only the form of the files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from deepvm.errors import DataError
from deepvm.io.processes import open_files
from deepvm.lab.audit.failures import failures
from deepvm.lab.audit.orchestrated import left_of_job
from deepvm.lab.audit.sample_rule import SampleRule, hash_of
from deepvm.lab.audit.stories import stories
from deepvm.lab.records import (
    CHECKPOINTS,
    CONFIG,
    FINAL,
    SUPERVISOR,
    Records,
    events_of,
    steps_of,
)
from deepvm.lab.verdict import judge, replays

Row = Mapping[str, Any]
_HIDDEN = re.compile(r"\..*(?<!\.spare)\.tmp|\.(step-|last|latest).*|order-.*")
"""Half-written files and orders; the Checkpointer keeps spares, locks and a generation."""
ARTEFACTS, STORIES = "artefacts", "stories"
"""Gates that ask of the files of a whole matrix, too: :mod:`deepvm.lab.audit.publication`."""


def _reached(run: Records) -> Iterator[str]:
    """All steps were done, and no more."""
    steps = run.config["steps"]
    if run.supervisor["state"] != "completed":
        yield f"it has ended as {run.supervisor['state']}"
    last = max((step for step, _ in run.owners), default=-1)
    if last != steps - 1:
        yield f"step {last + 1} was the last one, of {steps}"


def _samples(run: Records) -> Iterator[str]:
    """Each step had exactly its window's samples, on its world's ranks (not: how many steps)."""
    yield from _order(run)
    rule = SampleRule(run.config)
    steps = dict[int, dict[int, Row]]()
    for (step, rank), row in run.owners.items():
        steps.setdefault(step, {})[rank] = row
    for step in range(max(steps, default=-1) + 1):
        if problem := _wrong_step(run, rule, step, steps.get(step, {})):
            yield problem


def _order(run: Records) -> Iterator[str]:
    """Each attempt did its steps in their order, on each rank, from the one at which it went on."""
    firsts = {one["attempt"]: one["resumed_step"] for one in run.attempts}
    for rank, rows in run.steps.items():
        due = {number: first for number, first in firsts.items() if first is not None}
        for row in rows:
            number = row["attempt"]
            step = row["global_step"]
            # It is not recorded, or has restored nothing: another gate's question
            if number not in due:
                continue
            first = firsts[number]
            expected = due[number]
            if step > expected:
                yield f"step {expected} of rank {rank} is missing in attempt {number}"
            done = f"step {step} of rank {rank} was done"
            if step < first:
                yield f"{done} in attempt {number}, which went on from step {first}"
            if step < expected:
                yield f"{done} twice in attempt {number}"
            due[number] += 1


def _wrong_step(run: Records, rule: SampleRule, step: int, rows: Mapping[int, Row]) -> str:
    """What is wrong with the samples of a step, by the lines of its ranks; empty if nothing is."""
    if not rows:
        return f"step {step} is missing"
    worlds = {row["world_size"] for row in rows.values()}
    if len(worlds) != 1:
        return f"step {step} has ranks of {sorted(worlds)} worlds"
    world = worlds.pop()
    planned = [ranks for first, ranks in run.config["worlds"] if first <= step][-1]
    least = min(run.config["min_world"] or planned, planned)
    if not least <= world <= planned or run.config["global_batch"] % world:
        if least == planned:
            allowed = planned
        else:
            allowed = f"{least} to {planned}"
        return f"step {step} had a world of {world}, not {allowed}"
    if max(rows) >= world:
        return f"step {step} was done by rank {max(rows)}, of a world of {world}"
    for rank in range(world):
        if rank not in rows:
            return f"step {step} of rank {rank} is missing"
        row = rows[rank]
        epoch = row["epoch"]
        cursor = row["cursor_step"]
        if (epoch, cursor) != rule.place(step):
            return f"step {step} of rank {rank} is logged as epoch {epoch}, step {cursor}"
        expected = rule.samples(step, rank, world)
        if row["sample_ids_count"] != len(expected) or row["sample_ids_hash"] != hash_of(expected):
            return f"step {step} of rank {rank} had other samples"
    return ""


def _replays(run: Records) -> Iterator[str]:
    """A repeated step had the same samples and, on as many ranks, the same loss, bit for bit."""
    logs = [{**row, "rank": rank} for rank, rows in run.steps.items() for row in rows]
    return replays(logs, "sample_ids_hash")


def _parameters(run: Records) -> Iterator[str]:
    """Final parameters are those of a failure-free run, bit for bit."""
    final = run.final
    if not re.fullmatch(r"[0-9a-f]{64}", final):
        yield f"{FINAL} has no SHA-256"
    elif not run.references:
        yield "no failure-free run to compare with"
    elif set(run.references) != {final}:
        yield "other parameters than those of the undisturbed run"


def _leftovers(run: Records) -> Iterator[str]:
    """Nothing is left: no process that went on writing, no half-written file, no order."""
    yield from _one_at_a_time(run)
    for path in run.folder.rglob("*"):
        if _HIDDEN.fullmatch(path.name):
            yield f"{path.relative_to(run.folder)} is left"
    for row in run.noted("started"):
        # That it holds files of the run open, as process ids are reused
        if any(path.startswith(f"{run.folder.resolve()}/") for path in open_files(row["pid"])):
            yield f"process {row['pid']} of attempt {row['attempt']} lives"
    if run.is_job:  # whose machines count processes by themselves
        yield from left_of_job(run)


def _one_at_a_time(run: Records) -> Iterator[str]:
    """No attempt does a step once the next one exists, by order of lines and by times."""
    begins = {one["attempt"]: one["began"] for one in run.attempts}
    if run.is_job:
        # A job's next generation is formed while the older one trains: its agents end that before
        # the ranks meet
        rows = sorted(run.noted("joined"), key=lambda row: float(row["time"]))
        begins = {row["attempt"]: row["time"] for row in rows}
    for rank, steps in run.steps.items():
        newest = -1
        for row in steps:
            number = row["attempt"]
            if number < newest:
                yield f"attempt {number} of rank {rank} went on writing alongside attempt {newest}"
            newest = number
            later = [(at, other) for other, at in begins.items() if other > number]
            if number in begins and later and row["time"] > min(later)[0]:
                did = f"attempt {number} of rank {rank} did step {row['global_step']}"
                yield f"{did} alongside attempt {min(later)[1]}"


def _artefacts(run: Records) -> Iterator[str]:
    """All files that others audit are there."""
    logs = (log(rank) for log in (steps_of, events_of) for rank in range(run.config["world"]))
    names = [CONFIG, SUPERVISOR, *logs]
    if run.supervisor["state"] == "completed":
        names.append(FINAL)
    if run.config["strategy"] is not None:
        names.append(CHECKPOINTS)
    for name in names:
        if not (run.folder / name).is_file():
            yield f"{name} is missing"


GATES: Mapping[str, Callable[[Records], Iterator[str]]] = {
    "steps": _reached,
    "samples": _samples,
    "replays": _replays,
    "parameters": _parameters,
    "failures": failures,
    STORIES: stories,
    "leftovers": _leftovers,
    ARTEFACTS: _artefacts,
}
"""By name, in the order of the design: what is wrong, nothing if the gate is passed."""


def verdicts(run: Records) -> dict[str, str]:
    """The first thing that is wrong, by gate; empty where it is passed.

    Raises DataError: records are damaged.
    """
    try:
        return {gate.name: gate.reason for gate in judge(GATES, run)}
    except (LookupError, TypeError, AttributeError, ValueError, OSError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"{run.folder}: damaged: {reason}") from None
