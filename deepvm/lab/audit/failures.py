"""The gate for real failures: an undisturbed run is right, and proves nothing."""

import itertools
import re
from collections.abc import Collection, Mapping

from deepvm.core.json_types import JsonObject as Row
from deepvm.lab.audit.checkpoint_story import DAMAGING
from deepvm.lab.records import EVENTS, NODE_LOG, Records, read_lines
from deepvm.lab.verdict import Problems

# How a fault ends the process of a rank; None: it was given up alive, which is a leftover
_CODES: Mapping[str, Collection[int | None]] = {
    "exit": (137,),
    "segfault": (-11,),
    "loader": (1,),
    **dict.fromkeys(("kill", *DAMAGING), (-9, 137, None)),
}
_HANGS = ("hang", "held-gil")
_RAISES = ("loader",)
# Faults that hit a rank before a step's end and right after it; others come later
_BEFORE, _AFTER = ("loader", "segfault", *_HANGS), ("exit",)
_EVERYWHERE = ("agent", "machine")  # Targets of kills that hit all ranks
_STARTED = re.compile(rb"^listening on ", re.MULTILINE)  # What a memory node prints as it starts
_WAIT_S = 0.1
_SEEN_S = 5.0
_TOLERANCE = 0.9


def failures(run: Records) -> Problems:
    """Each planned failure happened during training, and ended what it had to, as it should."""
    struck = {key: one for one in run.attempts for key in one["struck"]}
    for strike in run.config["strikes"]:
        key = strike["key"]
        attempt = struck.get(key)
        problem = "has never struck"
        if attempt is not None and strike["ends"]:
            problem = _ending(run, strike, attempt)
        elif attempt is not None:
            problem = _mistimed(run, strike, attempt) or _passing(run, strike, attempt)
        if problem:
            yield f"{key} {problem}"
    disk = set(run.config["disk"])
    if disk - {"slow"} and not any(one["disk_errors"] for one in run.attempts):
        yield "the disk has never failed"
    if "slow" in disk and not any(row["seconds"] for row in run.noted("slowed")):
        yield "the disk was never slow"


def _ending(run: Records, strike: Row, attempt: Row) -> str:
    if attempt["state"] == "completed":
        return "did not end its attempt"
    number = attempt["attempt"]
    later = [one for one in run.attempts if one["attempt"] == number + 1]
    progress = [attempt["reached_step"], *(one["resumed_step"] or 0 for one in later)]
    # It trained before its end, and the next one had something to resume
    if not (later and run.steps_in(number) and max(progress) > 0):
        return "struck before training had started: it proves nothing"
    if problem := _mistimed(run, strike, attempt):
        return problem
    if strike["fault"] in DAMAGING and not attempt.get("broken"):
        return "damaged no file: it proves nothing"
    others = [
        one for one in run.config["strikes"] if one["ends"] and one["key"] in attempt["struck"]
    ]
    if all(_other_way(run, one, attempt) for one in others):  # of several, one was first
        return _other_way(run, strike, attempt)
    return ""


def _mistimed(run: Records, strike: Row, attempt: Row) -> str:
    at = attempt["struck"][strike["key"]]
    number = attempt["attempt"]
    fault = strike["fault"]
    step = strike["step"]
    rank = strike["rank"]
    if strike["key"] != f"{fault}-{step}-{rank}":
        return f"is planned as {fault} at step {step} of rank {rank}"
    ended = attempt["detected"]
    if not strike["ends"]:
        ended = _first(run) + run.supervisor["wall_s"]
    if at < attempt["began"]:
        return f"struck {attempt['began'] - at:.1f} s before attempt {number}"
    if at > ended:
        return f"struck {at - ended:.1f} s after attempt {number}"
    # Steps that the rank had done at the end of the attempt, by its own log
    rows = [row["global_step"] + 1 for row in run.steps_in(number, rank)]
    done = max(rows, default=attempt["resumed_step"] or 0)
    least = step - (fault in _BEFORE)
    if done < least or (fault in (*_BEFORE, *_AFTER) and done > least):
        return f"was due at step {step}, and rank {rank} had done {done} steps in attempt {number}"
    return ""


def _first(run: Records) -> float:
    return float(min(one["began"] for one in run.attempts))


def _other_way(run: Records, strike: Row, attempt: Row) -> str:
    """How an attempt has ended, if not as the failure ends it."""
    fault = strike["fault"]
    rank = strike["rank"]
    exits = attempt["exits"]
    state = attempt["state"]
    if fault in _HANGS:
        if state == "hung":
            return ""
        return f"did not hang its attempt, which is recorded as {state}"
    ranks = [rank]
    who = f"rank {rank}"
    if fault in DAMAGING or strike["target"] in _EVERYWHERE:
        ranks = list(range(attempt["world"]))
        who = "any rank"
    if fault in _CODES and None not in exits:
        words = [_last_word(run, one, attempt) for one in ranks]
        if ("raised" if fault in _RAISES else "") not in words:
            noted = ", ".join(word or "nothing" for word in words)
            return f"has not ended {who}: the last that it noted is {noted}"
    # Whose codes are not by rank: machines that are lost give none
    if run.is_job:
        return ""
    codes = [exits[one] for one in ranks if one < len(exits)]
    ended = [code for code in codes if code != 0]
    if fault in _CODES and run.config["launcher"] != "torchrun":  # which says 1 in any case
        ended = [code for code in codes if code in _CODES[fault]]
    if ended:
        return ""
    return f"has not ended {who}: they exited with {', '.join(map(str, exits))}"


def _last_word(run: Records, rank: int, attempt: Row) -> str:
    """What a rank noted of its own end: ``ended``, ``raised``, or nothing, as who is killed."""
    rows = [row for row in run.events(rank) if row["attempt"] == attempt["attempt"]]
    return next((row["event"] for row in rows if row["event"] in ("ended", "raised")), "")


def _passing(run: Records, strike: Row, attempt: Row) -> str:
    """Why a failure that ends nothing has not happened; empty if it has, or nothing saw it."""
    if strike["fault"] == "stop":
        return _moved(run, strike, attempt)
    if strike["fault"] == "node" and run.is_job:
        return _anchor_stayed(run, attempt["struck"][strike["key"]])
    if strike["fault"] == "node":
        return _node_stayed(run)
    return ""


def _moved(run: Records, strike: Row, attempt: Row) -> str:
    struck = attempt["struck"][strike["key"]]
    rank = strike["rank"]
    seconds = strike["seconds"]
    times = sorted(row["time"] for row in run.steps_in(attempt["attempt"], rank))
    ended = max([*times, attempt["detected"]])
    pairs = itertools.pairwise([*times, ended])
    gap = max((after - before for before, after in pairs if after > struck), default=0.0)
    if ended < struck + seconds or gap >= _TOLERANCE * seconds:
        return ""
    return f"did not stop rank {rank}: it never stood still for {seconds:g} s"


def _node_stayed(run: Records) -> str:
    """Whether the memory node was restarted too rarely: after each loss, unless the run ended."""
    seconds = {one["key"]: one["seconds"] for one in run.config["strikes"]}
    lost = 0
    for one in run.attempts:
        for key, at in one["struck"].items():
            if key.startswith("node-") and key in seconds:
                seen = one["detected"] > at + seconds[key] + _WAIT_S
                lost += seen or one is not run.attempts[-1]
    log = run.folder / NODE_LOG
    starts = 0
    if log.is_file():
        starts = len(_STARTED.findall(log.read_bytes()))
    if starts > lost:
        return ""
    return f"has ended no memory node: one was started {starts} times"


def _anchor_stayed(run: Records, struck: float) -> str:
    """Whether a job lost no machine besides its ranks', though there was time to see it."""
    trainers = {machine for one in run.attempts for machine in one.get("machines", ())}
    rows = [row for row in read_lines(run.folder / EVENTS) if row["event"] == "machine"]
    lost = [row for row in rows if row.get("why") == "lost" and row["id"] not in trainers]
    seen = struck + _SEEN_S < _first(run) + run.supervisor["wall_s"]
    if not seen or any(row["time"] >= struck for row in lost):
        return ""
    return "has ended no machine that keeps checkpoints"
