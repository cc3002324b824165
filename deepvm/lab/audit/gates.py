"""The gates that each run must pass: what each asks, and the answer from the files that the run has left (ECRL 5.9).

What a rank did at a step is what the last attempt logged that did it: earlier ones were lost with their failure.
Nothing here is read from the code that trained; orders, windows and hashes are computed anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from deepvm.errors import DataError
from deepvm.lab.audit.orchestrated import left_of_job, promises, safe_steps
from deepvm.lab.geometry import Geometry, ids_hash
from deepvm.lab.records import (
    CHECKPOINTS,
    CONFIG,
    FINAL,
    ORCHESTRATED,
    SUPERVISOR,
    events_of,
    read_document,
    read_lines,
    steps_of,
)

_HIDDEN = re.compile(r"^\.step-|^\.last|^order-")

_NEEDED = (
    *("dataset", "dataset_size", "model", "failure", "variant", "strategy", "seed", "world", "worlds"),
    *("virtual_shards", "global_batch", "accumulate", "steps", "checkpoint_every", "strikes", "disk", "controls"),
)
"""Keys of a run's configuration that the audit reads."""


@dataclass(frozen=True)
class Records:
    """What one run has left in its folder."""

    folder: Path
    config: Mapping[str, Any]
    references: Sequence[str] = field(default_factory=tuple)
    """Final parameters of undisturbed runs of the same training."""

    @classmethod
    def read(cls, folder: Path) -> Records:
        """Raises DataError: it is no folder of a run, or its configuration is damaged."""
        config = read_document(folder / CONFIG)
        if missing := [key for key in _NEEDED if key not in config]:
            raise DataError(f"{folder / CONFIG}: damaged: it has no {missing[0]}")
        return cls(folder, config)

    @cached_property
    def steps(self) -> dict[int, list[dict[str, Any]]]:
        """Lines of each rank, in the order in which they were written. Raises DataError."""
        found: dict[int, list[dict[str, Any]]] = {}
        for path in self.folder.glob("rank_*.jsonl"):
            found[int(path.stem.partition("_")[2])] = list(read_lines(path))
        return found

    @cached_property
    def owners(self) -> dict[tuple[int, int], dict[str, Any]]:
        """By (step, rank): the line of the last attempt."""
        found: dict[tuple[int, int], dict[str, Any]] = {}
        for rank, rows in self.steps.items():
            for row in rows:
                key = (row["global_step"], rank)
                if key not in found or row["attempt"] >= found[key]["attempt"]:
                    found[key] = row
        return found

    @cached_property
    def supervisor(self) -> dict[str, Any]:
        """Raises DataError."""
        return read_document(self.folder / SUPERVISOR)

    @cached_property
    def checkpoints(self) -> list[dict[str, Any]]:
        """Raises DataError."""
        return list(read_lines(self.folder / CHECKPOINTS))

    def events(self, rank: int) -> list[dict[str, Any]]:
        """Raises DataError."""
        return list(read_lines(self.folder / events_of(rank)))

    @property
    def final(self) -> str:
        """Hex digest of the final parameters. Raises DataError."""
        try:
            text = (self.folder / FINAL).read_text(encoding="ascii").split()
        except OSError as error:
            raise DataError(f"{self.folder / FINAL}: {error.strerror}") from None
        except ValueError as error:
            raise DataError(f"{self.folder / FINAL}: {error}") from None
        return text[0] if text else ""


def _reached(run: Records) -> Iterator[str]:
    """Every rank did all steps."""
    steps = run.config["steps"]
    if run.supervisor["state"] != "completed":
        yield f"it has ended as {run.supervisor['state']}"
    last = max((step for step, _ in run.owners), default=-1)
    if last != steps - 1:
        yield f"step {last + 1} was the last one, of {steps}"


def _samples(run: Records) -> Iterator[str]:
    """Each step had the samples of its window, on the ranks of its world: none twice, none left out, none else."""
    config = run.config
    geometry = Geometry(config["dataset_size"], config["global_batch"])
    order, known_epoch = None, -1
    for step in range(config["steps"]):
        rows = {rank: row for rank in run.steps if (row := run.owners.get((step, rank))) is not None}
        newest = max((row["attempt"] for row in rows.values()), default=0)
        worlds = {row["world_size"] for row in rows.values() if row["attempt"] == newest}
        if len(worlds) != 1:
            yield f"step {step} is missing" if not rows else f"step {step} has ranks of {sorted(worlds)} worlds"
            return
        world = worlds.pop()
        epoch, cursor = geometry.place(step)
        if epoch != known_epoch:
            order, known_epoch = geometry.permutation(config["seed"], epoch), epoch
        assert order is not None
        window = geometry.window(order, cursor)
        for rank in range(world):
            row = rows.get(rank)
            if row is None:
                yield f"step {step} of rank {rank} is missing"
                return
            expected = geometry.shard(window, rank, world)
            if (row["epoch"], row["cursor_step"]) != (epoch, cursor):
                yield f"step {step} of rank {rank} is said to be {row['epoch']}, {row['cursor_step']}"
                return
            if row["sample_ids_hash"] != ids_hash(expected) or row["sample_ids_count"] != len(expected):
                yield f"step {step} of rank {rank} had other samples"
                return


def _replays(run: Records) -> Iterator[str]:
    """A step that was done again had the same samples and, on as many ranks, the same loss to the last bit."""
    for rank, rows in run.steps.items():
        first: dict[int, dict[str, Any]] = {}
        for row in rows:
            before = first.setdefault(row["global_step"], row)
            if before["world_size"] != row["world_size"]:
                continue
            for key in ("sample_ids_hash", "loss_hex"):
                if before[key] != row[key]:
                    what = "samples" if key == "sample_ids_hash" else "loss"
                    yield f"step {row['global_step']} of rank {rank}: attempt {row['attempt']} had another {what}"
                    return


def _parameters(run: Records) -> Iterator[str]:
    """Final parameters are those of an undisturbed run, bit for bit."""
    final = run.final
    if not re.fullmatch(r"[0-9a-f]{64}", final):
        yield f"{FINAL} has no SHA-256"
    elif not run.references:
        yield "there is no undisturbed run to compare with"
    elif set(run.references) != {final}:
        yield "other parameters than those of the undisturbed run"


def _failures(run: Records) -> Iterator[str]:
    """Each failure that was planned has happened, in training, and what had to end did."""
    struck: dict[str, dict[str, Any]] = {}
    for attempt in run.supervisor["attempts"]:
        struck.update({key: attempt for key in attempt["struck"]})
    for strike in run.config["strikes"]:
        attempt = struck.get(strike["key"])
        if attempt is None:
            yield f"{strike['key']} has never struck"
        elif strike["ends"] and attempt["state"] == "completed":
            yield f"{strike['key']} has ended nothing"
        elif strike["ends"] and not _landed(run, attempt):
            yield f"{strike['key']} struck before training had begun: it proves nothing"
    if run.config["disk"] and not any(a["disk_errors"] for a in run.supervisor["attempts"]) and _fails(run):
        yield "the disk has never failed"


def _fails(run: Records) -> bool:
    return any(name != "slow" for name in run.config["disk"])


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
    broken = any(strike["fault"] in ("torn", "flip") for strike in run.config["strikes"])
    for one in attempts:
        if one["damaged"] and not broken:
            yield f"attempt {one['attempt']} found a damaged checkpoint, and nothing had damaged one"
    saved: set[int] = set()
    rows = sorted(run.checkpoints, key=lambda row: row["attempt"])
    for one in attempts:
        resumed = one["resumed_step"] or 0
        if run.config["strategy"] is not None and resumed and resumed not in saved:
            yield f"attempt {one['attempt']} went on from step {resumed}, of which no checkpoint is recorded"
        saved |= {row["step"] for row in rows if row["attempt"] == one["attempt"] and not row["error"]}
        saved |= _begun(run, one)
    for row in rows:
        if run.config["strategy"] is not None and row["step"] > run.config["steps"]:
            yield f"a checkpoint of step {row['step']} is recorded, of {run.config['steps']}"
    if run.config.get("launcher") == ORCHESTRATED:
        yield from promises(run)


def _begun(run: Records, attempt: Mapping[str, Any]) -> set[int]:
    """Steps of checkpoints that an attempt may have finished without time to record it."""
    every, last = run.config["checkpoint_every"], attempt["reached_step"]
    ended = attempt["state"] != "completed"
    found = {step for step in range(every, last + 1, every)} if ended else {attempt["until"]}
    return found | safe_steps(attempt)


def _leftovers(run: Records) -> Iterator[str]:
    """Nothing is left: no process that went on writing, no half-written file, no order."""
    for rank, rows in run.steps.items():
        newest = -1
        for row in rows:
            if row["attempt"] < newest:
                yield f"attempt {row['attempt']} of rank {rank} went on writing beside attempt {newest}"
                return
            newest = max(newest, row["attempt"])
    for path in [*run.folder.iterdir(), *(run.folder / "checkpoints").glob("*")]:
        if _HIDDEN.match(path.name):
            yield f"{path.relative_to(run.folder)} is left"
            return
    for rank in run.steps:
        for row in run.events(rank):
            if row["event"] == "started" and _lives(row["pid"], run.folder):
                yield f"process {row['pid']} of attempt {row['attempt']} lives"
                return
    if run.config.get("launcher") == ORCHESTRATED:  # whose machines count processes by themselves
        yield from left_of_job(run)


def _lives(pid: int, folder: Path) -> bool:
    """Whether a process is there that has files of the run open: numbers of processes are used again."""
    try:
        return any(str(folder.resolve()) in str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def _artefacts(run: Records) -> Iterator[str]:
    """All files that others audit are there."""
    names = [CONFIG, SUPERVISOR, FINAL, *(steps_of(rank) for rank in range(run.config["world"]))]
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
    "stories": _stories,
    "leftovers": _leftovers,
    "artefacts": _artefacts,
}
"""By name, in the order of the design: what is wrong, nothing if the gate is passed."""


def judged(run: Records) -> dict[str, str]:
    """The first thing that is wrong, by gate; empty where it is passed. Raises DataError: records are damaged."""
    found: dict[str, str] = {}
    for name, gate in GATES.items():
        try:
            found[name] = next(gate(run), "")
        except (KeyError, TypeError, IndexError) as error:
            raise DataError(f"{run.folder}: damaged: {type(error).__name__}: {error}") from None
        except DataError as error:
            if "No such file" not in str(error):
                raise
            found[name] = str(error).replace(f"{run.folder}/", "")
    return found
