"""What a run's records say of its checkpoints: which were saved, which were damaged, and who did that."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from deepvm.lab.audit.orchestrated import safe_steps
from deepvm.lab.records import CHECKPOINTS, ORCHESTRATED, Records

DAMAGING = ("torn", "flip")
"""Faults that kill all processes, and damage a file of the newest checkpoint."""
_UNNOTICED: Mapping[str, Collection[str]] = {
    "torn": ("deepvm-tcp",),  # has the version in the memory of its node
    "flip": ("deepvm-tcp", "torch-save", "dcp", "dcp-async"),  # no checksum: replays and parameters show it
}
"""Strategies that may go on without a word."""


def resumptions(run: Records) -> Iterator[str]:
    """What an attempt went on from had been saved."""
    if not _tells(run):
        return
    saved: set[int] = set()
    for one in run.supervisor["attempts"]:
        resumed = one["resumed_step"] or 0
        if resumed and resumed not in saved:
            yield f"attempt {one['attempt']} went on from step {resumed}, of which no checkpoint is recorded"
        saved |= _recorded(run, one) | possibly_saved(run, one) | safe_steps(one)
    for row in run.checkpoints:
        if row["step"] > run.config["steps"]:
            yield f"a checkpoint of step {row['step']} is recorded, of {run.config['steps']}"


def records(run: Records) -> Iterator[str]:
    """An attempt that came to its planned end has recorded each checkpoint that was due, if only with an error."""
    if not _tells(run):
        return
    every = run.config["checkpoint_every"]
    for one in run.supervisor["attempts"]:
        if _closed(run, one):
            told = {row["step"] for row in run.checkpoints if row["attempt"] == one["attempt"]}
            first = (one["resumed_step"] or 0) // every + 1
            missing = [step for step in range(first * every, one["until"] + 1, every) if step not in told]
            if missing:
                yield f"attempt {one['attempt']} recorded no checkpoint of step {missing[0]}"


def _tells(run: Records) -> bool:
    """Whether there is a log of checkpoints: a lost one is told as a missing artefact."""
    return run.config["strategy"] is not None and (run.folder / CHECKPOINTS).is_file()


def possibly_saved(run: Records, attempt: Mapping[str, Any]) -> set[int]:
    """Steps of checkpoints that an attempt may have finished without time to record it.

    They come after the last one of which it has recorded anything, and no more than can be in flight.
    """
    if _closed(run, attempt):
        return set()
    every = run.config["checkpoint_every"]
    told = [row["step"] for row in run.checkpoints if row["attempt"] == attempt["attempt"]]
    last = max([attempt["resumed_step"] or 0, *told])
    due = range((last // every + 1) * every, attempt["reached_step"] + 1, every)
    return set(due[-run.config["max_inflight"] - 1 :])


def _closed(run: Records, attempt: Mapping[str, Any]) -> bool:
    """Whether an attempt had time to record all: one that a job's next generation replaced has not."""
    replaced = run.config["launcher"] == ORCHESTRATED and attempt is not run.supervisor["attempts"][-1]
    return attempt["state"] == "completed" and not replaced


def _recorded(run: Records, attempt: Mapping[str, Any]) -> set[int]:
    return {row["step"] for row in run.checkpoints if row["attempt"] == attempt["attempt"] and not row["error"]}


def damage(run: Records) -> Iterator[str]:
    """What was damaged on purpose was noticed, and nothing else was damaged."""
    faults = {strike["key"]: strike["fault"] for strike in run.config["strikes"]}
    silent = {fault for fault, strategies in _UNNOTICED.items() if run.config["strategy"] in strategies}
    there: list[int] = []
    """Of each damaged checkpoint that may still be there: how far the attempt had come in which it was damaged."""
    unnoticed = ""
    for one in run.supervisor["attempts"]:
        if one["damaged"] > len(there):
            some = "a damaged checkpoint" if one["damaged"] == 1 else f"{one['damaged']} damaged checkpoints"
            known = f"only {len(there)} had been damaged" if there else "nothing had damaged one"
            yield f"attempt {one['attempt']} found {some}, and {known}"
        if unnoticed and one["resumed_step"] is not None:
            if not one["damaged"]:
                yield f"attempt {one['attempt']} did not notice the damage of {unnoticed}"
            unnoticed = ""
        newest = max(_recorded(run, one), default=0)
        there = [reached for reached in there if reached > newest]  # restoring looks no further than a good one
        keys = [key for key in one["struck"] if faults.get(key) in DAMAGING]
        broken = one.get("broken", ())[: len(keys)]  # each damages one file
        there += [one["reached_step"]] * len(broken)
        # what was not recorded may not have been whole when it was damaged: then there is nothing to notice
        if broken and not silent & {faults[key] for key in keys} and not possibly_saved(run, one):
            unnoticed = keys[-1]
