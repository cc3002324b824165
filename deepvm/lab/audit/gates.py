"""The gates that each run must pass, judged from the files that the run has left (ECRL 5.9).

An attempt does the steps from where it went on in their order; those at which a later one went on
were lost with its failure (:attr:`deepvm.lab.records.Records.owned`). The samples of each step are
recomputed by :mod:`deepvm.lab.audit.sample_rule`: with the code that trained, the audit shares
only the form of the files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
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
    ORCHESTRATED,
    SUPERVISOR,
    MissingFileError,
    Records,
    events_of,
    steps_of,
)

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
    rule, steps = SampleRule(run.config), dict[int, dict[int, dict[str, Any]]]()
    for (step, rank), row in run.owners.items():
        steps.setdefault(step, {})[rank] = row
    for step in range(max(steps, default=-1) + 1):
        wrong = _wrong_step(run, rule, step, steps.get(step, {}))
        if wrong:
            yield wrong
            return


def _order(run: Records) -> Iterator[str]:
    """Each attempt did its steps in their order, on each rank, from the one at which it went on."""
    firsts = {one["attempt"]: one["resumed_step"] for one in run.supervisor["attempts"]}
    for rank, rows in run.steps.items():
        due = {number: first for number, first in firsts.items() if first is not None}
        for row in rows:
            number, step = row["attempt"], row["global_step"]
            # It is not recorded, or has restored nothing: another gate's question
            if number not in due:
                continue
            if step > due[number]:
                yield f"step {due[number]} of rank {rank} is missing in attempt {number}"
                return
            if step < firsts[number]:
                first = firsts[number]
                yield (
                    f"step {step} of rank {rank} was done in attempt {number}, which went on from"
                    f" step {first}"
                )
                return
            if step < due[number]:
                yield f"step {step} of rank {rank} was done twice in attempt {number}"
                return
            due[number] += 1


def _wrong_step(
    run: Records, rule: SampleRule, step: int, rows: Mapping[int, Mapping[str, Any]]
) -> str:
    """What is wrong with the samples of a step, by the lines of its ranks; empty if nothing is."""
    if not rows:
        return f"step {step} is missing"
    worlds = {row["world_size"] for row in rows.values()}
    if len(worlds) != 1:
        return f"step {step} has ranks of {sorted(worlds)} worlds"
    world = worlds.pop()
    least, most = _worlds_at(run.config, step)
    if not least <= world <= most or run.config["global_batch"] % world:
        return (
            f"step {step} had a world of {world}, not"
            f" {most if least == most else f'{least} to {most}'}"
        )
    if max(rows) >= world:
        return f"step {step} was done by rank {max(rows)}, of a world of {world}"
    place = rule.place(step)
    for rank in range(world):
        row = rows.get(rank)
        if row is None:
            return f"step {step} of rank {rank} is missing"
        if (row["epoch"], row["cursor_step"]) != place:
            return (
                f"step {step} of rank {rank} is logged as epoch {row['epoch']}, step"
                f" {row['cursor_step']}"
            )
        expected = rule.samples(step, rank, world)
        if row["sample_ids_count"] != len(expected) or row["sample_ids_hash"] != hash_of(expected):
            return f"step {step} of rank {rank} had other samples"
    return ""


def _worlds_at(config: Mapping[str, Any], step: int) -> tuple[int, int]:
    """How many ranks may do a step: at least, and at most."""
    planned: int = [world for first, world in config["worlds"] if first <= step][-1]
    return max(1, min(config.get("min_world") or planned, planned)), planned


def _replays(run: Records) -> Iterator[str]:
    """A repeated step had the same samples and, on as many ranks, the same loss, bit for bit."""
    for rank, rows in run.steps.items():
        first: dict[tuple[int, int], dict[str, Any]] = {}
        for row in rows:
            before = first.setdefault((row["global_step"], row["world_size"]), row)
            for key, what in (("sample_ids_hash", "other samples"), ("loss_hex", "another loss")):
                if before[key] != row[key]:
                    yield (
                        f"step {row['global_step']} of rank {rank}: attempt {row['attempt']} had"
                        f" {what}"
                    )
                    return


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
            return
    for rows in run.all_events.values():
        for row in rows:
            if row["event"] == "started" and _lives(row["pid"], run.folder):
                yield f"process {row['pid']} of attempt {row['attempt']} lives"
                return
    if run.config["launcher"] == ORCHESTRATED:  # whose machines count processes by themselves
        yield from left_of_job(run)


def _one_at_a_time(run: Records) -> Iterator[str]:
    """No attempt does a step once the next one exists, by order of lines and by times."""
    there = sorted(_there(run).items())
    ends = {
        number: min(there[place + 1 :], key=lambda one: one[1], default=None)
        for place, (number, _) in enumerate(there)
    }
    for rank, rows in run.steps.items():
        newest = -1
        for row in rows:
            number = row["attempt"]
            if number < newest:
                yield f"attempt {number} of rank {rank} went on writing beside attempt {newest}"
                return
            newest = number
            end = ends.get(number)
            if end is not None and row["time"] > end[1]:
                yield (
                    f"attempt {number} of rank {rank} did step {row['global_step']} beside attempt"
                    f" {end[0]}"
                )
                return


def _there(run: Records) -> dict[int, float]:
    """Since when each attempt is there, and older ones must be gone.

    A job's next generation is formed while the older one trains: its agents end that before the
    ranks meet.
    """
    if run.config["launcher"] != ORCHESTRATED:
        return {one["attempt"]: one["began"] for one in run.supervisor["attempts"]}
    met: dict[int, float] = {}
    for rows in run.all_events.values():
        for row in rows:
            if row["event"] == "joined":
                met[row["attempt"]] = max(row["time"], met.get(row["attempt"], 0.0))
    return met


def _lives(pid: int, folder: Path) -> bool:
    """Whether a process holds files of the run open, as process ids are reused."""
    return any(str(folder.resolve()) in path for path in open_files(pid))


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
    found: dict[str, str] = {}
    for name, gate in GATES.items():
        try:
            found[name] = next(gate(run), "")
        except MissingFileError as error:
            found[name] = f"{error.name} is missing"
        except (LookupError, TypeError, AttributeError, ValueError, OSError) as error:
            raise DataError(
                f"{run.folder}: damaged: {name}: {type(error).__name__}: {error}"
            ) from None
    return found
