"""The gate that asks whether all that a run has left tells the same story."""

from __future__ import annotations

from collections.abc import Iterator

from deepvm.lab.audit import checkpoint_story
from deepvm.lab.audit.orchestrated import promises
from deepvm.lab.record_checks import RECOVERY
from deepvm.lab.records import ORCHESTRATED, Records


def stories(run: Records) -> Iterator[str]:
    """Supervisor, ranks and checkpoints agree; a job kept the orchestrator's promises."""
    attempts = run.supervisor["attempts"]
    if [one["attempt"] for one in attempts] != list(range(len(attempts))):
        yield "attempts are not counted from 0"
    failed = sum(one["state"] != "completed" for one in attempts)
    if run.supervisor["state"] == "completed" and run.supervisor["restarts"] != failed:
        yield f"{run.supervisor['restarts']} restarts for {failed} attempts that failed"
    unplanned = [
        one["attempt"] for one in attempts if one["state"] != "completed" and not one["causes"]
    ]
    if unplanned:
        yield f"attempt {unplanned[0]} failed, and nothing had been planned"
    yield from _ranks(run)
    yield from _reached(run)
    yield from _times(run)
    yield from checkpoint_story.damage(run)
    yield from checkpoint_story.due(run)
    yield from checkpoint_story.unplanned(run)
    yield from checkpoint_story.resumptions(run)
    yield from checkpoint_story.records(run)
    if run.config["launcher"] == ORCHESTRATED:
        yield from promises(run)


def _ranks(run: Records) -> Iterator[str]:
    """All ranks of an attempt resumed from one step before others, each in its world."""
    attempts = {one["attempt"]: one for one in run.supervisor["attempts"]}
    restored: dict[int, dict[int, int]] = {}
    for rank, rows in run.all_events.items():
        for row in rows:
            if row["event"] == "restored":
                restored.setdefault(row["attempt"], {})[rank] = row["step"]
    for number, by_rank in restored.items():
        found = set(by_rank.values())
        if len(found) > 1:
            yield (
                f"ranks of attempt {number} went on from steps {', '.join(map(str, sorted(found)))}"
            )
        elif number in attempts and found != {attempts[number]["resumed_step"]}:
            said = attempts[number]["resumed_step"]
            yield f"attempt {number} went on from step {said}, and from {found.pop()} by its ranks"
    for rank, rows in run.steps.items():
        for row in rows:
            number = row["attempt"]
            attempt = attempts.get(number)
            if attempt is None:
                yield (
                    f"rank {rank} did step {row['global_step']} in attempt {number}, which is not"
                    " recorded"
                )
                return
            if attempt["world"] != row["world_size"] or rank >= row["world_size"]:
                logged = f"rank {rank} of {row['world_size']}"
                yield f"attempt {number} had a world of {attempt['world']}, and {logged} did a step"
                return
            if rank not in restored.get(number, ()):
                yield (
                    f"rank {rank} did steps in attempt {number}, and has not noted from where it"
                    " went on"
                )
                return


def _reached(run: Records) -> Iterator[str]:
    """Each attempt came as far as its ranks have logged, and no further than it was to."""
    for one in run.supervisor["attempts"]:
        number, reached = one["attempt"], one["reached_step"]
        done = [
            (row["time"], row["global_step"] + 1)
            for rows in run.steps.values()
            for row in rows
            if row["attempt"] == number
        ]
        most = max((step for _, step in done), default=0)
        # An orphan continues after that
        least = max((step for at, step in done if at <= one["detected"]), default=0)
        if not least <= reached <= most:
            yield f"attempt {number} reached step {reached}, and {most} by its ranks"
        last = max(reached, one["resumed_step"] or 0)
        if last > one["until"] or (one["state"] == "completed" and last != one["until"]):
            yield (
                f"attempt {number} is recorded as {one['state']} at step {last}, and was to end at"
                f" {one['until']}"
            )


def _times(run: Records) -> Iterator[str]:
    """A run took at least as long as its ranks have trained, and as the parts of its recoveries."""
    attempts, wall_s = run.supervisor["attempts"], run.supervisor["wall_s"]
    numbers = {one["attempt"] for one in attempts[-1:]}  # an orphan may live longer
    ends = [row["time"] for rows in run.steps.values() for row in rows if row["attempt"] in numbers]
    took_s = max([*ends, *(one["detected"] for one in attempts)]) - min(
        one["began"] for one in attempts
    )
    if wall_s < took_s:
        yield f"the run took {wall_s:.1f} s, and {took_s:.1f} s by its logs"
    parts = {part: sum(one.get(part) or 0.0 for one in attempts) for part in RECOVERY}
    # Of the slowest rank, which may wait there for others that start
    restore_s = parts.pop("restore_s")
    recovery_s = max(restore_s, sum(parts.values()))
    if recovery_s > wall_s:
        yield f"the run took {wall_s:.1f} s, and its recoveries {recovery_s:.1f} s"
