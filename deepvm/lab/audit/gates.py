"""The gates that each run must pass, judged from the files that the run has left (ECRL 5.9)."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from deepvm.core.json_types import JsonObject as Row
from deepvm.errors import DataError
from deepvm.io.processes import open_files
from deepvm.lab.audit import checkpoint_story
from deepvm.lab.audit.failures import failures
from deepvm.lab.audit.orchestrated import left_of_job, promises
from deepvm.lab.records import CHECKPOINTS, CONFIG, FINAL, SUPERVISOR, Records, events_of, steps_of
from deepvm.lab.verdict import Problems, judge, replays

_RECOVERY = ("detect_s", "restart_s", "replay_s")


def stories(run: Records) -> Problems:
    """Supervisor, ranks and checkpoints agree; a job kept the orchestrator's promises."""
    attempts = run.attempts
    if [one["attempt"] for one in attempts] != list(range(len(attempts))):
        yield "attempts are not counted from 0"
    failed = [one for one in attempts if one["state"] != "completed"]
    restarts = run.supervisor["restarts"]
    if run.supervisor["state"] == "completed" and restarts != len(failed):
        yield f"{restarts} restarts for {len(failed)} attempts that failed"
    for one in failed:
        if not one["causes"]:
            yield f"attempt {one['attempt']} failed, and nothing had been planned"
    yield from _ranks(run)
    yield from _attempts_reached(run)
    yield from _times(run)
    yield from checkpoint_story.damage(run)
    yield from checkpoint_story.due(run)
    yield from checkpoint_story.unplanned(run)
    yield from checkpoint_story.resumptions(run)
    yield from checkpoint_story.records(run)
    if run.is_job:
        yield from promises(run)


def _ranks(run: Records) -> Problems:
    """All ranks of an attempt resumed from one step before others, each in its world."""
    attempts = {one["attempt"]: one for one in run.attempts}
    restored: dict[int, dict[int, int]] = {}
    for rank, events in run.all_events.items():
        for row in events:
            if row["event"] == "restored":
                restored.setdefault(row["attempt"], {})[rank] = row["step"]
    for number, by_rank in restored.items():
        steps = sorted(set(by_rank.values()))
        resumed = steps[0]
        if number in attempts:
            resumed = attempts[number]["resumed_step"]
        if len(steps) > 1:
            yield f"ranks of attempt {number} continued from steps {', '.join(map(str, steps))}"
        elif steps != [resumed]:
            yield (
                f"attempt {number} continued from step {resumed}, and from {steps[0]} by its ranks"
            )
    for rank, rows in run.steps.items():
        for row in rows:
            number = row["attempt"]
            world = row["world_size"]
            did = f"rank {rank} did step {row['global_step']} in attempt {number}"
            if number not in attempts:
                yield f"{did}, which is not recorded"
            elif attempts[number]["world"] != world or rank >= world:
                yield (
                    f"attempt {number} had a world of {attempts[number]['world']}, and rank {rank}"
                    f" of {world} did a step"
                )
            elif rank not in restored.get(number, ()):
                yield f"{did}, and has not noted from where it continued"


def _attempts_reached(run: Records) -> Problems:
    for one in run.attempts:
        number = one["attempt"]
        reached = one["reached_step"]
        until = one["until"]
        rows = run.steps_in(number)
        last_logged = max((row["global_step"] + 1 for row in rows), default=0)
        # An orphan continues after that
        before = [row["global_step"] + 1 for row in rows if row["time"] <= one["detected"]]
        if not max(before, default=0) <= reached <= last_logged:
            yield f"attempt {number} reached step {reached}, and {last_logged} by its ranks"
        last = max(reached, one["resumed_step"] or 0)
        if last > until or (one["state"] == "completed" and last != until):
            yield (
                f"attempt {number} is recorded as {one['state']} at step {last}, and was to end at"
                f" {until}"
            )


def _times(run: Records) -> Problems:
    """A run took at least as long as its ranks have trained, and as the parts of its recoveries."""
    attempts = run.attempts
    wall_s = run.supervisor["wall_s"]
    last = [row["time"] for row in run.steps_in(attempts[-1]["attempt"])]  # an orphan lives longer
    ended = max([*last, *(one["detected"] for one in attempts)])
    took_s = ended - min(one["began"] for one in attempts)
    if wall_s < took_s:
        yield f"the run took {wall_s:.1f} s, and {took_s:.1f} s by its logs"
    # Restoring is of the slowest rank, which may wait there for others that start
    restore_s = sum(one.get("restore_s") or 0.0 for one in attempts)
    parts_s = sum(one.get(part) or 0.0 for one in attempts for part in _RECOVERY)
    recovery_s = max(restore_s, parts_s)
    if recovery_s > wall_s:
        yield f"the run took {wall_s:.1f} s, and its recoveries {recovery_s:.1f} s"


class SampleRule:
    """The rule of docs/internals/explain/lab.md, without trainer code; fast for ordered steps."""

    def __init__(self, config: Row) -> None:
        self._size = config["dataset_size"]
        self._batch = config["global_batch"]
        self._seed = config["seed"]
        self._epoch = -1
        self._order = list[str]()

    def place(self, step: int) -> tuple[int, int]:
        per_epoch: int = self._size // self._batch
        return divmod(step, per_epoch)

    def samples(self, step: int, rank: int, world: int) -> Sequence[str]:
        epoch, cursor = self.place(step)
        if epoch != self._epoch:
            order = np.random.default_rng([self._seed, epoch]).permutation(self._size)
            self._epoch = epoch
            self._order = list(map(str, order.tolist()))
        local = self._batch // world
        first = cursor * self._batch + rank * local
        return self._order[first : first + local]


def hash_of(samples: Sequence[str]) -> str:
    """As logs have it: hex SHA-256 of the decimal ids in their order, joined by commas."""
    return hashlib.sha256(",".join(samples).encode()).hexdigest()


# Half-written files and orders; the Checkpointer keeps spares, locks and a generation
_HIDDEN = re.compile(r"\..*(?<!\.spare)\.tmp|\.(step-|last|latest).*|order-.*")
# Gates that ask of the files of a whole matrix, too: :mod:`deepvm.lab.checked`
ARTEFACTS, STORIES = "artefacts", "stories"


def _reached(run: Records) -> Problems:
    """Every rank did all steps."""
    steps = run.config["steps"]
    if run.supervisor["state"] != "completed":
        yield f"it has ended as {run.supervisor['state']}"
    last = max((step for step, _ in run.owners), default=-1)
    if last != steps - 1:
        yield f"step {last + 1} was the last one, of {steps}"


def _samples(run: Records) -> Problems:
    """Each step had the samples of its window, on the ranks of its world, each of them once."""
    yield from _order(run)
    rule = SampleRule(run.config)
    steps = dict[int, dict[int, Row]]()
    for (step, rank), row in run.owners.items():
        steps.setdefault(step, {})[rank] = row
    for step in range(max(steps, default=-1) + 1):
        if problem := _wrong_step(run, rule, step, steps.get(step, {})):
            yield problem


def _order(run: Records) -> Problems:
    """Each attempt did its steps in order, on each rank, from the step it resumed at."""
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
                yield f"{done} in attempt {number}, which continued from step {first}"
            if step < expected:
                yield f"{done} twice in attempt {number}"
            due[number] += 1


def _wrong_step(run: Records, rule: SampleRule, step: int, rows: Mapping[int, Row]) -> str:
    if not rows:
        return f"step {step} is missing"
    worlds = {row["world_size"] for row in rows.values()}
    if len(worlds) != 1:
        return f"step {step} has ranks of {sorted(worlds)} worlds"
    world = worlds.pop()
    planned = [ranks for first, ranks in run.config["worlds"] if first <= step][-1]
    least = min(run.config["min_world"] or planned, planned)
    if not least <= world <= planned or run.config["global_batch"] % world:
        allowed = str(planned)
        if least < planned:
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


def _replays(run: Records) -> Problems:
    """A step that was done again had the same samples and, on as many ranks, the same loss."""
    logs = [{**row, "rank": rank} for rank, rows in run.steps.items() for row in rows]
    return replays(logs, "sample_ids_hash")


def _parameters(run: Records) -> Problems:
    """Final parameters are those of an undisturbed run, bit for bit."""
    final = run.final
    if not re.fullmatch(r"[0-9a-f]{64}", final):
        yield f"{FINAL} has no SHA-256"
    elif not run.references:
        yield "no failure-free run to compare with"
    elif run.references != {final}:
        yield "other parameters than those of the undisturbed run"


def _leftovers(run: Records) -> Problems:
    """Nothing is left: no process that continued writing, no half-written file, no order."""
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


def _one_at_a_time(run: Records) -> Problems:
    """No attempt does a step once the next one exists, by order of lines and by times."""
    begins = {one["attempt"]: one["began"] for one in run.attempts}
    if run.is_job:
        # A job's next generation is formed while the older one trains, and meets after its end
        rows = sorted(run.noted("joined"), key=lambda row: float(row["time"]))
        begins = {row["attempt"]: row["time"] for row in rows}
    for rank, steps in run.steps.items():
        newest = -1
        for row in steps:
            number = row["attempt"]
            if number < newest:
                yield (
                    f"attempt {number} of rank {rank} continued writing alongside attempt {newest}"
                )
            newest = number
            later = [(at, other) for other, at in begins.items() if other > number]
            if number in begins and later and row["time"] > min(later)[0]:
                yield (
                    f"attempt {number} of rank {rank} did step {row['global_step']} alongside"
                    f" attempt {min(later)[1]}"
                )


def _artefacts(run: Records) -> Problems:
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


# By name, in the order of the design: what is wrong, nothing if the gate is passed
# The page of a matrix shows their docstrings
GATES: Mapping[str, Callable[[Records], Problems]] = {
    "steps": _reached,
    "samples": _samples,
    "replays": _replays,
    "parameters": _parameters,
    "failures": failures,
    STORIES: stories,
    "leftovers": _leftovers,
    ARTEFACTS: _artefacts,
}


def verdicts(run: Records) -> dict[str, str]:
    """The first thing that is wrong, by gate; empty where it is passed. Raises DataError."""
    try:
        return {gate.name: gate.reason for gate in judge(GATES, run)}
    except (LookupError, TypeError, AttributeError, ValueError, OSError) as error:
        raise DataError(f"{run.folder}: damaged: {type(error).__name__}: {error}") from None
