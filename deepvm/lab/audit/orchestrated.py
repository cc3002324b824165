"""The orchestrator's promises, checked for runs that were jobs in addition to the gates."""

import itertools
import os
from pathlib import Path

from deepvm.io.processes import environment_of, processes
from deepvm.lab.records import EVENTS, Records, read_lines
from deepvm.lab.registry import obeys_orchestrator
from deepvm.lab.verdict import Problems

# The subfolder of a run with all that a job has (history, folder, machines), removed last
STATE = "job-state"
_INSURANCE = "insurance"


def promises(run: Records) -> Problems:
    """What a job has not kept. Raises DataError."""
    attempts = run.attempts
    events = list(read_lines(run.folder / EVENTS))
    formed = max((int(row["generation"]) for row in events), default=0)
    if formed != len(attempts):
        yield f"{len(attempts)} attempts are recorded of {formed} generations"
    if not obeys_orchestrator(run.config["strategy"]):
        return
    yield from _newest(run)
    for attempt, later in itertools.pairwise(attempts):
        lost = attempt["reached_step"] - (later["resumed_step"] or 0)
        if attempt["state"] == "preempted" and later["state"] != "superseded" and lost:
            causes = ", ".join(attempt["causes"])
            yield f"{causes} was announced in time, and {lost} steps were lost"
    # A checkpoint is requested after each recommendation, unless earlier ones are in flight
    asked = [row for row in events if row["event"] in ("safe", "unsaved")]
    insured = [row["time"] for row in asked if row.get("reason") == _INSURANCE]
    for one in attempts:
        for key, struck in one["struck"].items():
            if key.startswith("rebalance-") and struck >= max(insured, default=struck):
                yield f"{key} was announced, and no checkpoint was asked for"


def _newest(run: Records) -> Problems:
    """Each generation resumes from the newest safe checkpoint that was not damaged on purpose."""
    faults = run.faults.values()
    if "torn" in faults or "flip" in faults or run.config["disk"]:
        return
    newest = 0
    for one in run.attempts:
        resumed = one["resumed_step"]
        if resumed is not None and resumed < newest:
            yield (
                f"attempt {one['attempt']} continued from step {resumed}, though version {newest}"
                " was safe"
            )
        # Without an anchor only what is safe elsewhere
        safe = [row[0] for row in one["safe"] if row[2] or "node" not in faults]
        newest = max([newest, *safe])


def left_by(run: Path) -> list[int]:
    """The processes whose environment names the state folder of a run's job."""
    name = b"XDG_DATA_HOME=" + os.fsencode(run.resolve() / STATE) + b"/"
    return [
        pid for pid in processes() if any(word.startswith(name) for word in environment_of(pid))
    ]


def left_of_job(run: Records) -> Problems:
    """What a job has left on this computer."""
    if run.supervisor.get("left"):
        yield f"the job was over, and processes {run.supervisor['left']} lived"
    if (run.folder / STATE).exists():
        yield f"{STATE} is left"
    for pid in left_by(run.folder):
        yield f"process {pid} of the job still runs"
