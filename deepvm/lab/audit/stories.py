"""The gate that asks whether all that a run has left is consistent."""

from __future__ import annotations

from collections.abc import Iterator

from deepvm.lab.audit import checkpoint_story
from deepvm.lab.audit.orchestrated import promises
from deepvm.lab.records import Records

_RECOVERY = ("detect_s", "restart_s", "replay_s")
"""The parts of a recovery that exclude one another."""


def stories(run: Records) -> Iterator[str]:
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
    yield from _reached(run)
    yield from _times(run)
    yield from checkpoint_story.damage(run)
    yield from checkpoint_story.due(run)
    yield from checkpoint_story.unplanned(run)
    yield from checkpoint_story.resumptions(run)
    yield from checkpoint_story.records(run)
    if run.is_job:
        yield from promises(run)


def _ranks(run: Records) -> Iterator[str]:
    """All ranks of an attempt resumed from one step before others, each in its world."""
    attempts = {one["attempt"]: one for one in run.attempts}
    restored: dict[int, dict[int, int]] = {}
    for rank, events in run.all_events.items():
        for row in events:
            if row["event"] == "restored":
                restored.setdefault(row["attempt"], {})[rank] = row["step"]
    for number, by_rank in restored.items():
        steps = sorted(set(by_rank.values()))
        if number in attempts:
            resumed = attempts[number]["resumed_step"]
        else:
            resumed = steps[0]
        if len(steps) > 1:
            yield f"ranks of attempt {number} went on from steps {', '.join(map(str, steps))}"
        elif steps != [resumed]:
            yield f"attempt {number} went on from step {resumed}, and from {steps[0]} by its ranks"
    for rank, rows in run.steps.items():
        for row in rows:
            number = row["attempt"]
            world = row["world_size"]
            did = f"rank {rank} did step {row['global_step']} in attempt {number}"
            if number not in attempts:
                yield f"{did}, which is not recorded"
            elif attempts[number]["world"] != world or rank >= world:
                planned = f"attempt {number} had a world of {attempts[number]['world']}"
                yield f"{planned}, and rank {rank} of {world} did a step"
            elif rank not in restored.get(number, ()):
                yield f"{did}, and has not noted from where it went on"


def _reached(run: Records) -> Iterator[str]:
    """Each attempt came as far as its ranks have logged, and no further than it was to."""
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
            recorded = f"attempt {number} is recorded as {one['state']} at step {last}"
            yield f"{recorded}, and was to end at {until}"


def _times(run: Records) -> Iterator[str]:
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
