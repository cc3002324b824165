"""A run's records of its checkpoints: which were saved, which were damaged, and by whom."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from deepvm.lab.audit.orchestrated import safe_steps
from deepvm.lab.records import CHECKPOINTS, ORCHESTRATED, Records
from deepvm.lab.strategies.strategy_registry import heeds_orchestrator

SKIPPED = "skipped"
"""The error of a checkpoint that was due while another one was being written."""
NODE = "node"
"""The fault that kills a memory node."""
DAMAGING = ("torn", "flip")
"""Faults that kill all processes, and damage a file of the newest checkpoint."""
_UNNOTICED: Mapping[str, Collection[str]] = {
    "torn": ("deepvm-tcp",),  # has the version in the memory of its node
    # No checksum: replays and parameters show it
    "flip": ("deepvm-tcp", "torch-save", "dcp", "dcp-async"),
}
"""Strategies that may continue silently."""
_ANY_ORDER = ("deepvm", "deepvm-tcp")
"""Strategies whose newer checkpoint may be complete first, as when a memory node is lost."""
_ONE_FILE = ("torch-save",)
"""Strategies that have nothing older than the newest checkpoint."""


def resumptions(run: Records) -> Iterator[str]:
    """Attempts resumed from the newest checkpoint, or one that may have been saved after it."""
    if not _tells(run):
        return
    saved, good, damaged = set[int](), set[int](), 0
    for one in run.supervisor["attempts"]:
        if one["resumed_step"] is not None:
            resumed, newest = one["resumed_step"], _newest(run, good, damaged)
            if resumed and resumed not in saved:
                yield (
                    f"attempt {one['attempt']} went on from step {resumed}, of which no checkpoint"
                    " is recorded"
                )
            if resumed < newest:
                yield (
                    f"attempt {one['attempt']} went on from step {resumed}, though there was a"
                    f" checkpoint of {newest}"
                )
            # Newer ones were damaged
            good, damaged = {step for step in good if step < resumed} | {resumed}, 0
        recorded = _recorded(run, one)
        good = {step for step in good | recorded if step not in _perhaps_lost(run, one)}
        saved |= recorded | possibly_saved(run, one) | safe_steps(one)
        damaged += _damaged(run, one)


def _perhaps_lost(run: Records, attempt: Mapping[str, Any]) -> set[int]:
    """Steps of checkpoints that may have existed only in a memory node killed in an attempt."""
    lost = [at for key, at in attempt["struck"].items() if key.startswith(f"{NODE}-")]
    rows = run.checkpoints if lost else ()
    return {
        row["step"]
        for row in rows
        if row["time"] <= max(lost) and row["attempt"] <= attempt["attempt"]
    }


def _newest(run: Records, good: Collection[int], damaged: int) -> int:
    """The newest checkpoint that must exist if so many files were damaged; 0: none."""
    if damaged and run.config["strategy"] in _ONE_FILE:
        return 0
    left = sorted(good, reverse=True)[damaged:]
    return max(left, default=0)


def _damaged(run: Records, attempt: Mapping[str, Any]) -> int:
    """How many checkpoints were damaged at the end of an attempt: one per failure."""
    faults = {strike["key"]: strike["fault"] for strike in run.config["strikes"]}
    keys = [key for key in attempt["struck"] if faults.get(key) in DAMAGING]
    return len(attempt.get("broken", ())[: len(keys)])


def due(run: Records) -> Iterator[str]:
    """Checkpoints are of steps done and due, or the last; on request, at other steps, too."""
    attempts, strategy = (
        {one["attempt"]: one for one in run.supervisor["attempts"]},
        run.config["strategy"],
    )
    asked = (
        run.config["launcher"] == ORCHESTRATED
        and strategy is not None
        and heeds_orchestrator(strategy)
    )
    for row in run.checkpoints:
        step, attempt = row["step"], attempts.get(row["attempt"])
        if attempt is None:
            yield (
                f"a checkpoint of step {step} is recorded by attempt {row['attempt']}, which is not"
            )
        elif not step <= max(attempt["resumed_step"] or 0, attempt["reached_step"]):
            yield (
                f"attempt {row['attempt']} recorded a checkpoint of step {step}, which it has not"
                " reached"
            )
        elif step % run.config["checkpoint_every"] and step != attempt["until"] and not asked:
            yield (
                f"attempt {row['attempt']} recorded a checkpoint of step {step}, at which none"
                " was due"
            )


def unplanned(run: Records) -> Iterator[str]:
    """No checkpoint failed by itself, such as for lack of space, except on hit ranks or orphans."""
    faults = {strike["fault"] for strike in run.config["strikes"]}
    # Whose machines take some along
    if run.config["disk"] or NODE in faults or run.config["launcher"] == ORCHESTRATED:
        return
    hits = {
        one["attempt"]: min(one["struck"].values(), default=math.inf)
        for one in run.supervisor["attempts"]
    }
    for row in run.checkpoints:
        if row["error"] not in ("", SKIPPED) and row["time"] < hits.get(row["attempt"], math.inf):
            yield (
                f"the checkpoint of step {row['step']} failed, and no fault was planned:"
                f" {row['error']}"
            )


def records(run: Records) -> Iterator[str]:
    """An attempt that ended as planned recorded each due checkpoint, if only with an error."""
    if run.config["strategy"] is None or not _tells(run):
        return
    every = run.config["checkpoint_every"]
    for one in run.supervisor["attempts"]:
        if _closed(run, one):
            told = {row["step"] for row in run.checkpoints if row["attempt"] == one["attempt"]}
            first = (one["resumed_step"] or 0) // every + 1
            missing = [
                step for step in range(first * every, one["until"] + 1, every) if step not in told
            ]
            if missing:
                yield f"attempt {one['attempt']} recorded no checkpoint of step {missing[0]}"


def _warned(run: Records, attempt: Mapping[str, Any]) -> str:
    """The first thing that a rank was warned of when it restored, to explain what is wrong."""
    rows = (row for rows in run.all_events.values() for row in rows)
    texts = [
        row["text"]
        for row in rows
        if row["event"] == "warned" and row["attempt"] == attempt["attempt"]
    ]
    return f": {texts[0]}" if texts else ""


def _tells(run: Records) -> bool:
    """Whether all is known of checkpoints: a log that is lost is told as a missing artefact."""
    return run.config["strategy"] is None or (run.folder / CHECKPOINTS).is_file()


def possibly_saved(run: Records, attempt: Mapping[str, Any]) -> set[int]:
    """Steps of checkpoints that an attempt may have finished without time to record it.

    They come after the last one of which it has recorded anything, unless the strategy finishes
    them in any order, and no more than can be in flight.
    """
    if run.config["strategy"] is None or _closed(run, attempt):
        return set()
    every, first = run.config["checkpoint_every"], attempt["resumed_step"] or 0
    told = {row["step"] for row in run.checkpoints if row["attempt"] == attempt["attempt"]}
    last = first if run.config["strategy"] in _ANY_ORDER else max([first, *told])
    due = [
        step
        for step in range((last // every + 1) * every, attempt["reached_step"] + 1, every)
        if step not in told
    ]
    return set(due[-run.config["max_inflight"] - 1 :])


def _closed(run: Records, attempt: Mapping[str, Any]) -> bool:
    """Whether an attempt had time to record all: a replaced generation of a job has not."""
    replaced = (
        run.config["launcher"] == ORCHESTRATED and attempt is not run.supervisor["attempts"][-1]
    )
    return attempt["state"] == "completed" and not replaced


def _recorded(run: Records, attempt: Mapping[str, Any]) -> set[int]:
    return {
        row["step"]
        for row in run.checkpoints
        if row["attempt"] == attempt["attempt"] and not row["error"]
    }


def damage(run: Records) -> Iterator[str]:
    """What was damaged on purpose was noticed, and nothing else was damaged."""
    faults = {strike["key"]: strike["fault"] for strike in run.config["strikes"]}
    silent = {
        fault for fault, strategies in _UNNOTICED.items() if run.config["strategy"] in strategies
    }
    there: list[int] = []
    """For each damaged checkpoint that may remain: the attempt's progress at the damage."""
    unnoticed = ""
    for one in run.supervisor["attempts"]:
        if one["damaged"] > len(there):
            some = (
                "a damaged checkpoint"
                if one["damaged"] == 1
                else f"{one['damaged']} damaged checkpoints"
            )
            known = f"only {len(there)} had been damaged" if there else "nothing had damaged one"
            yield f"attempt {one['attempt']} found {some}, and {known}{_warned(run, one)}"
        if unnoticed and one["resumed_step"] is not None:
            if not one["damaged"]:
                yield f"attempt {one['attempt']} did not notice the damage of {unnoticed}"
            unnoticed = ""
        newest = max(_recorded(run, one), default=0)
        # Restoring looks no further than a good one
        there = [reached for reached in there if reached > newest]
        keys = [key for key in one["struck"] if faults.get(key) in DAMAGING]
        broken = _damaged(run, one)
        there += [one["reached_step"]] * broken
        # what was not recorded may not have been whole when it was damaged: then there is nothing
        # to notice
        if broken and not silent & {faults[key] for key in keys} and not possibly_saved(run, one):
            unnoticed = keys[-1]
