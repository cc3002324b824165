"""A run's records of its checkpoints: which were saved, which were damaged, and by whom."""

import math
from collections.abc import Collection, Mapping

from deepvm.core.json_types import JsonObject
from deepvm.lab.records import CHECKPOINTS, Records
from deepvm.lab.registry import obeys_orchestrator
from deepvm.lab.verdict import Problems

Attempt = JsonObject
SKIPPED = "skipped"  # The error of a checkpoint that was due while another one was being written
NODE = "node"  # The fault that kills a memory node
# Faults that kill all processes, and damage a file of the newest checkpoint
DAMAGING = ("torn", "flip")
# Strategies that may continue silently
_UNNOTICED: Mapping[str, Collection[str]] = {
    "torn": ("deepvm-tcp",),  # has the checkpoint in the memory of its node
    # No checksum: replays and parameters show it
    "flip": ("deepvm-tcp", "torch-save", "dcp", "dcp-async"),
}
# Strategies whose newer checkpoint may be complete first, as when a memory node is lost
_ANY_ORDER = ("deepvm", "deepvm-tcp")
_ONE_FILE = ("torch-save",)  # Strategies that have nothing older than the newest checkpoint


def resumptions(run: Records) -> Problems:
    """Attempts resumed from the newest checkpoint, or one that may have been saved after it."""
    if not _complete(run):
        return
    saved = set()
    good = set[int]()
    damaged = 0
    for one in run.attempts:
        resumed = one["resumed_step"]
        if resumed is not None:
            newest = max(sorted(good, reverse=True)[damaged:], default=0)
            if damaged and run.config["strategy"] in _ONE_FILE:
                newest = 0
            went_on = f"attempt {one['attempt']} continued from step {resumed}"
            if resumed and resumed not in saved:
                yield f"{went_on}, but no such checkpoint is recorded"
            if resumed < newest:
                yield f"{went_on}, though there was a checkpoint of {newest}"
            # Newer ones were damaged
            good = {step for step in good if step < resumed} | {resumed}
            damaged = 0
        recorded = _recorded(run, one, whole=True)
        good = (good | recorded) - _perhaps_lost(run, one)
        # A notice may kill a rank before it records a checkpoint that the orchestrator calls safe
        safe = {row[0] for row in one.get("safe", ())}
        saved |= recorded | possibly_saved(run, one) | safe
        damaged += len(_damaged(run, one))


def _complete(run: Records) -> bool:
    """Whether all is known of checkpoints: a lost log is a missing artefact."""
    return run.config["strategy"] is None or (run.folder / CHECKPOINTS).is_file()


def _perhaps_lost(run: Records, attempt: Attempt) -> set[int]:
    """Steps of checkpoints that may have existed only in a memory node killed in an attempt."""
    lost = [at for key, at in attempt["struck"].items() if key.startswith(f"{NODE}-")]
    rows = [row for row in run.checkpoints if row["attempt"] <= attempt["attempt"]]
    return {row["step"] for row in rows if row["time"] <= max(lost, default=-math.inf)}


def _damaged(run: Records, attempt: Attempt) -> list[str]:
    keys = [key for key in attempt["struck"] if run.faults.get(key) in DAMAGING]
    return keys[: len(attempt.get("broken", ()))]


def _recorded(run: Records, attempt: Attempt, *, whole: bool = False) -> set[int]:
    rows = [row for row in run.checkpoints if row["attempt"] == attempt["attempt"]]
    return {row["step"] for row in rows if not (whole and row["error"])}


def due(run: Records) -> Problems:
    """Checkpoints are of steps done and due, or the last; on request, at other steps, too."""
    attempts = {one["attempt"]: one for one in run.attempts}
    every = run.config["checkpoint_every"]
    on_request = run.is_job and obeys_orchestrator(run.config["strategy"])
    for row in run.checkpoints:
        step = row["step"]
        attempt = attempts.get(row["attempt"])
        recorded = f"attempt {row['attempt']} recorded a checkpoint of step {step}"
        if attempt is None:
            yield (
                f"a checkpoint of step {step} is recorded by attempt {row['attempt']}, which is not"
            )
        elif step > max(attempt["resumed_step"] or 0, attempt["reached_step"]):
            yield f"{recorded}, which it has not reached"
        elif step % every and step != attempt["until"] and not on_request:
            yield f"{recorded}, at which none was due"


def unplanned(run: Records) -> Problems:
    """No checkpoint failed by itself, such as for lack of space, except on hit ranks or orphans."""
    # A job's machines take some along
    if run.config["disk"] or NODE in run.faults.values() or run.is_job:
        return
    hits = {one["attempt"]: min(one["struck"].values(), default=math.inf) for one in run.attempts}
    for row in run.checkpoints:
        if row["error"] not in ("", SKIPPED) and row["time"] < hits.get(row["attempt"], math.inf):
            yield (
                f"the checkpoint of step {row['step']} failed, and no fault was planned:"
                f" {row['error']}"
            )


def records(run: Records) -> Problems:
    """An attempt that ended as planned recorded each due checkpoint, if only with an error."""
    if run.config["strategy"] is None or not _complete(run):
        return
    every = run.config["checkpoint_every"]
    for one in filter(lambda one: _closed(run, one), run.attempts):
        first = (one["resumed_step"] or 0) // every + 1
        missing = set(range(first * every, one["until"] + 1, every)) - _recorded(run, one)
        if missing:
            yield f"attempt {one['attempt']} recorded no checkpoint of step {min(missing)}"


def possibly_saved(run: Records, attempt: Attempt) -> set[int]:
    """Steps of checkpoints that an attempt may have finished without time to record it."""
    strategy = run.config["strategy"]
    every = run.config["checkpoint_every"]
    if strategy is None or _closed(run, attempt):
        return set()
    recorded = _recorded(run, attempt)
    last = attempt["resumed_step"] or 0
    if strategy not in _ANY_ORDER:
        last = max([last, *recorded])
    steps = range((last // every + 1) * every, attempt["reached_step"] + 1, every)
    unrecorded = [step for step in steps if step not in recorded]
    return set(unrecorded[-run.config["max_inflight"] - 1 :])


def _closed(run: Records, attempt: Attempt) -> bool:
    """Whether an attempt had time to record all: a replaced generation of a job has not."""
    replaced = run.is_job and attempt is not run.attempts[-1]
    return attempt["state"] == "completed" and not replaced


def damage(run: Records) -> Problems:
    """What was damaged on purpose was noticed, and nothing else was damaged."""
    strategy = run.config["strategy"]
    silent = {fault for fault, strategies in _UNNOTICED.items() if strategy in strategies}
    # For each damaged checkpoint that may remain: the attempt's progress at the damage
    damaged: list[int] = []
    unnoticed = ""
    for one in run.attempts:
        if one["damaged"] > len(damaged):
            yield _unexplained(run, one, len(damaged))
        if unnoticed and one["resumed_step"] is not None:
            if not one["damaged"]:
                yield f"attempt {one['attempt']} did not notice the damage of {unnoticed}"
            unnoticed = ""
        newest = max(_recorded(run, one, whole=True), default=0)
        # Restoring looks no further than a good one
        damaged = [reached for reached in damaged if reached > newest]
        keys = _damaged(run, one)
        damaged += [one["reached_step"]] * len(keys)
        # what was not recorded may not have been whole: then there is nothing to notice
        struck = [key for key in one["struck"] if run.faults.get(key) in DAMAGING]
        quiet = silent & {run.faults[key] for key in struck}
        if keys and not quiet and not possibly_saved(run, one):
            unnoticed = struck[-1]


def _unexplained(run: Records, attempt: Attempt, known: int) -> str:
    count = f"{attempt['damaged']} damaged checkpoints"
    if attempt["damaged"] == 1:
        count = "a damaged checkpoint"
    reason = "nothing had damaged one"
    if known:
        reason = f"only {known} had been damaged"
    warnings = [row["text"] for row in run.noted("warned") if row["attempt"] == attempt["attempt"]]
    return ": ".join([f"attempt {attempt['attempt']} found {count}, and {reason}", *warnings[:1]])
