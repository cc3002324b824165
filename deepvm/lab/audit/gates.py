"""The gates that each run must pass: what each asks, and the answer from the files that the run has left (ECRL 5.9).

What a rank did at a step is what the last attempt logged that did it: earlier ones were lost with their failure.
The samples of each step are computed anew, by :mod:`deepvm.lab.audit.sample_rule`: with the code that trained, the
audit shares only the form of the files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from deepvm.errors import DataError
from deepvm.lab.audit import checkpoint_story
from deepvm.lab.audit.checkpoint_story import DAMAGING
from deepvm.lab.audit.orchestrated import left_of_job, promises
from deepvm.lab.audit.sample_rule import SampleRule, hash_of
from deepvm.lab.records import CHECKPOINTS, CONFIG, FINAL, ORCHESTRATED, SUPERVISOR, MissingFileError, Records, steps_of

_HIDDEN = re.compile(r"\..*(?<!\.spare)\.tmp|\.(step-|last|latest).*|order-.*")
"""Half-written files, and orders; deepvm's Checkpointer keeps a spare file, locks, and the number of a generation."""
_KILLED = (-9, 137)
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
    """Each step had the samples of its window, on the ranks of its world: none twice, none left out, none else.

    How many steps there must be is a question of its own.
    """
    for rank, rows in run.steps.items():
        seen: set[tuple[int, int]] = set()
        for row in rows:
            key = (row["attempt"], row["global_step"])
            if key in seen:
                yield f"step {row['global_step']} of rank {rank} was done twice in attempt {row['attempt']}"
                return
            seen.add(key)
    rule, steps = SampleRule(run.config), dict[int, dict[int, dict[str, Any]]]()
    for (step, rank), row in run.owners.items():
        steps.setdefault(step, {})[rank] = row
    for step in range(max(steps, default=-1) + 1):
        wrong = _wrong_step(run, rule, step, steps.get(step, {}))
        if wrong:
            yield wrong
            return


def _wrong_step(run: Records, rule: SampleRule, step: int, owners: Mapping[int, Mapping[str, Any]]) -> str:
    """What is wrong with the samples of a step; empty if nothing is."""
    if not owners:
        return f"step {step} is missing"
    newest = max(row["attempt"] for row in owners.values())
    rows = {rank: row for rank, row in owners.items() if row["attempt"] == newest}
    worlds = {row["world_size"] for row in rows.values()}
    if len(worlds) != 1:
        return f"step {step} has ranks of {sorted(worlds)} worlds"
    world = worlds.pop()
    least, most = _worlds_at(run.config, step)
    if not least <= world <= most or run.config["global_batch"] % world:
        return f"step {step} had a world of {world}, not {most if least == most else f'{least} to {most}'}"
    if max(rows) >= world:
        return f"step {step} was done by rank {max(rows)}, of a world of {world}"
    place = rule.place(step)
    for rank in range(world):
        row = rows.get(rank)
        if row is None:
            if rank in owners:
                older = owners[rank]["attempt"]
                return f"step {step} of rank {rank} is of attempt {older}, that of rank {min(rows)} of attempt {newest}"
            return f"step {step} of rank {rank} is missing"
        if (row["epoch"], row["cursor_step"]) != place:
            return f"step {step} of rank {rank} is logged as epoch {row['epoch']}, step {row['cursor_step']}"
        expected = rule.samples(step, rank, world)
        if row["sample_ids_count"] != len(expected) or row["sample_ids_hash"] != hash_of(expected):
            return f"step {step} of rank {rank} had other samples"
    return ""


def _worlds_at(config: Mapping[str, Any], step: int) -> tuple[int, int]:
    """How many ranks may do a step: at least, and at most."""
    planned: int = [world for first, world in config["worlds"] if first <= step][-1]
    return max(1, min(config.get("min_world") or planned, planned)), planned


def _replays(run: Records) -> Iterator[str]:
    """A step that was done again had the same samples and, on as many ranks, the same loss to the last bit."""
    for rank, rows in run.steps.items():
        first: dict[tuple[int, int], dict[str, Any]] = {}
        for row in rows:
            before = first.setdefault((row["global_step"], row["world_size"]), row)
            for key, what in (("sample_ids_hash", "other samples"), ("loss_hex", "another loss")):
                if before[key] != row[key]:
                    yield f"step {row['global_step']} of rank {rank}: attempt {row['attempt']} had {what}"
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


def _failures(run: Records) -> Iterator[str]:
    """Each failure that was planned has happened, in training, and what had to end did."""
    struck: dict[str, dict[str, Any]] = {}
    for attempt in run.supervisor["attempts"]:
        struck.update({key: attempt for key in attempt["struck"]})
    for strike in run.config["strikes"]:
        key, attempt = strike["key"], struck.get(strike["key"])
        if attempt is None:
            yield f"{key} has never struck"
        elif strike["ends"] and attempt["state"] == "completed":
            yield f"{key} did not end its attempt"
        elif strike["ends"] and not _landed(run, attempt):
            yield f"{key} struck before training had begun: it proves nothing"
        elif strike["fault"] in ("kill", *DAMAGING) and not _killed(run, attempt):
            yield f"{key} has killed no rank: they exited with {', '.join(map(str, attempt['exits']))}"
        elif strike["fault"] in DAMAGING and not attempt.get("broken"):
            yield f"{key} damaged no file: it proves nothing"
    if run.config["disk"] and not any(a["disk_errors"] for a in run.supervisor["attempts"]) and _fails(run):
        yield "the disk has never failed"


def _fails(run: Records) -> bool:
    return any(name != "slow" for name in run.config["disk"])


def _killed(run: Records, attempt: Mapping[str, Any]) -> bool:
    """Whether a rank ended by SIGKILL; None: it was given up alive, which is a leftover.

    torchrun says 1 whatever has happened, and a machine that is lost says nothing.
    """
    if run.config["launcher"] == ORCHESTRATED:
        return True
    codes = {*_KILLED, None, *([1] if run.config["launcher"] == "torchrun" else [])}
    return any(code in codes for code in attempt["exits"])


def _landed(run: Records, attempt: Mapping[str, Any]) -> bool:
    """Whether an attempt had trained when it ended, and the next one had something to go on from or to do again."""
    number = attempt["attempt"]
    logged = any(row["attempt"] == number for rows in run.steps.values() for row in rows)
    later = [one for one in run.supervisor["attempts"] if one["attempt"] == number + 1]
    resumed = bool(later) and ((later[0]["resumed_step"] or 0) > 0 or attempt["reached_step"] > 0)
    return logged and resumed


def _stories(run: Records) -> Iterator[str]:
    """Supervisor, ranks and checkpoints tell the same story; a job has kept what the orchestrator promises."""
    attempts = run.supervisor["attempts"]
    if [one["attempt"] for one in attempts] != list(range(len(attempts))):
        yield "attempts are not counted from 0"
    failed = sum(one["state"] != "completed" for one in attempts)
    if run.supervisor["state"] == "completed" and run.supervisor["restarts"] != failed:
        yield f"{run.supervisor['restarts']} restarts for {failed} attempts that failed"
    unplanned = [one["attempt"] for one in attempts if one["state"] != "completed" and not one["causes"]]
    if unplanned:
        yield f"attempt {unplanned[0]} failed, and nothing had been planned"
    yield from _ranks(run)
    yield from checkpoint_story.damage(run)
    yield from checkpoint_story.resumptions(run)
    yield from checkpoint_story.records(run)
    if run.config["launcher"] == ORCHESTRATED:
        yield from promises(run)


def _ranks(run: Records) -> Iterator[str]:
    """All ranks of an attempt went on from one step, and each was one of its world."""
    attempts = {one["attempt"]: one for one in run.supervisor["attempts"]}
    restored: dict[int, set[int]] = {}
    for row in (row for rows in run.all_events.values() for row in rows if row["event"] == "restored"):
        restored.setdefault(row["attempt"], set()).add(row["step"])
    for number, found in restored.items():
        if len(found) > 1:
            yield f"ranks of attempt {number} went on from steps {', '.join(map(str, sorted(found)))}"
        elif number in attempts and found != {attempts[number]["resumed_step"]}:
            said = attempts[number]["resumed_step"]
            yield f"attempt {number} went on from step {said}, and from {found.pop()} by its ranks"
    for rank, rows in run.steps.items():
        for row in rows:
            attempt = attempts.get(row["attempt"])
            if attempt is None:
                yield f"rank {rank} did step {row['global_step']} in attempt {row['attempt']}, which is not recorded"
                return
            if attempt["world"] != row["world_size"] or rank >= row["world_size"]:
                logged = f"rank {rank} of {row['world_size']}"
                yield f"attempt {row['attempt']} had a world of {attempt['world']}, and {logged} did a step"
                return


def _leftovers(run: Records) -> Iterator[str]:
    """Nothing is left: no process that went on writing, no half-written file, no order."""
    for rank, rows in run.steps.items():
        newest = -1
        for row in rows:
            if row["attempt"] < newest:
                yield f"attempt {row['attempt']} of rank {rank} went on writing beside attempt {newest}"
                return
            newest = max(newest, row["attempt"])
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


def _lives(pid: int, folder: Path) -> bool:
    """Whether a process is there that has files of the run open: numbers of processes are used again."""
    try:
        return any(str(folder.resolve()) in str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def _artefacts(run: Records) -> Iterator[str]:
    """All files that others audit are there."""
    names = [CONFIG, SUPERVISOR, *(steps_of(rank) for rank in range(run.config["world"]))]
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
    "failures": _failures,
    STORIES: _stories,
    "leftovers": _leftovers,
    ARTEFACTS: _artefacts,
}
"""By name, in the order of the design: what is wrong, nothing if the gate is passed."""


def verdicts(run: Records) -> dict[str, str]:
    """The first thing that is wrong, by gate; empty where it is passed. Raises DataError: records are damaged."""
    found: dict[str, str] = {}
    for name, gate in GATES.items():
        try:
            found[name] = next(gate(run), "")
        except MissingFileError as error:
            found[name] = f"{error.name} is missing"
        except (LookupError, TypeError, AttributeError, ValueError, OSError) as error:
            raise DataError(f"{run.folder}: damaged: {name}: {type(error).__name__}: {error}") from None
    return found
