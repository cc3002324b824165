"""The gate for real failures: an undisturbed run is right, and proves nothing."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from deepvm.lab.audit.checkpoint_story import DAMAGING
from deepvm.lab.records import EVENTS, NODE_LOG, ORCHESTRATED, Records, read_lines

Row = Mapping[str, Any]
_CODES: Mapping[str, Collection[int | None]] = {
    "exit": (137,),
    "segfault": (-11,),
    "loader": (1,),
    **dict.fromkeys(("kill", *DAMAGING), (-9, 137, None)),
}
"""How a fault ends the process of a rank; None: it was given up alive, which is a leftover."""
_HANGS, _RAISES = ("hang", "held-gil"), ("loader",)
_BEFORE, _AFTER = ("loader", "segfault", *_HANGS), ("exit",)
"""Faults that hit a rank before a step's end and right after it; others come later."""
_EVERYWHERE = ("agent", "machine")
"""Targets of kills that hit all ranks."""
_STARTED = re.compile(rb"^listening on ", re.MULTILINE)
"""What a memory node prints as it starts."""
_WAIT_S, _SEEN_S, _TOLERANCE = 0.1, 5.0, 0.9


def failures(run: Records) -> Iterator[str]:
    """Each planned failure happened during training, and ended what it had to, as it should."""
    attempts: Sequence[Row] = run.supervisor["attempts"]
    struck = {key: one for one in attempts for key in one["struck"]}
    for strike in run.config["strikes"]:
        key, attempt = strike["key"], struck.get(strike["key"])
        if attempt is None:
            yield f"{key} has never struck"
        elif strike["ends"]:
            yield from _ending(run, strike, attempt)
        elif wrong := _mistimed(run, strike, attempt) or _passing(run, strike, attempt):
            yield f"{key} {wrong}"
    yield from _disk(run)


def _ending(run: Records, strike: Row, attempt: Row) -> Iterator[str]:
    """What is wrong with a failure that should have ended its attempt."""
    key = strike["key"]
    if attempt["state"] == "completed":
        yield f"{key} did not end its attempt"
    elif not _landed(run, attempt):
        yield f"{key} struck before training had begun: it proves nothing"
    elif wrong := _mistimed(run, strike, attempt):
        yield f"{key} {wrong}"
    elif strike["fault"] in DAMAGING and not attempt.get("broken"):
        yield f"{key} damaged no file: it proves nothing"
    else:
        others = [
            one for one in run.config["strikes"] if one["ends"] and one["key"] in attempt["struck"]
        ]
        ways = [_other_way(run, one, attempt) for one in others]  # of several, one was first
        if all(ways):
            yield f"{key} {_other_way(run, strike, attempt)}"


def _landed(run: Records, attempt: Row) -> bool:
    """Whether an attempt trained before its end, and the next one had something to resume."""
    number = attempt["attempt"]
    logged = any(row["attempt"] == number for rows in run.steps.values() for row in rows)
    later = [one for one in run.supervisor["attempts"] if one["attempt"] == number + 1]
    resumed = bool(later) and ((later[0]["resumed_step"] or 0) > 0 or attempt["reached_step"] > 0)
    return logged and resumed


def _mistimed(run: Records, strike: Row, attempt: Row) -> str:
    """Why a failure cannot have struck when it is said to; empty if it can."""
    at, fault, step, rank = (
        attempt["struck"][strike["key"]],
        strike["fault"],
        strike["step"],
        strike["rank"],
    )
    if strike["key"] != f"{fault}-{step}-{rank}":
        return f"is planned as {fault} at step {step} of rank {rank}"
    ended = attempt["detected"] if strike["ends"] else _first(run) + run.supervisor["wall_s"]
    if not attempt["began"] <= at <= ended:
        return f"struck {_outside(at, attempt['began'], ended)} attempt {attempt['attempt']}"
    done = _done(run, rank, attempt)
    least = step - (fault in _BEFORE)
    if done < least or (fault in (*_BEFORE, *_AFTER) and done > least):
        return (
            f"was due at step {step}, and rank {rank} had done {done} steps in attempt"
            f" {attempt['attempt']}"
        )
    return ""


def _first(run: Records) -> float:
    return float(min(one["began"] for one in run.supervisor["attempts"]))


def _outside(at: float, began: float, ended: float) -> str:
    return f"{began - at:.1f} s before" if at < began else f"{at - ended:.1f} s after"


def _done(run: Records, rank: int, attempt: Row) -> int:
    """Steps that a rank had done at the end of an attempt, by its own log."""
    rows = (
        row["global_step"] + 1
        for row in run.steps.get(rank, ())
        if row["attempt"] == attempt["attempt"]
    )
    return max(rows, default=attempt["resumed_step"] or 0)


def _other_way(run: Records, strike: Row, attempt: Row) -> str:
    """How an attempt has ended if not as the failure ends it; empty if it has ended so."""
    fault, rank, exits, state = strike["fault"], strike["rank"], attempt["exits"], attempt["state"]
    if fault in _HANGS:
        return "" if state == "hung" else f"did not hang its attempt, which is recorded as {state}"
    everywhere = fault in DAMAGING or strike["target"] in _EVERYWHERE
    ranks, who = (range(attempt["world"]), "any rank") if everywhere else ((rank,), f"rank {rank}")
    if fault in _CODES and None not in exits:
        said = [_last_words(run, one, attempt) for one in ranks]
        if ("raised" if fault in _RAISES else "") not in said:
            return (
                f"has not ended {who}: the last that it noted is"
                f" {', '.join(word or 'nothing' for word in said)}"
            )
    # Whose codes are not by rank: machines that are lost give none
    if run.config["launcher"] == ORCHESTRATED:
        return ""
    by_rank = run.config["launcher"] != "torchrun"  # it says 1 whatever has happened
    allowed = _CODES.get(fault) if by_rank else None
    codes = [exits[one] for one in ranks if one < len(exits)]
    if any(code != 0 if allowed is None else code in allowed for code in codes):
        return ""
    return f"has not ended {who}: they exited with {', '.join(map(str, exits))}"


def _last_words(run: Records, rank: int, attempt: Row) -> str:
    """What a rank noted of its own end: ``ended``, ``raised``, or nothing, as who is killed."""
    rows = (row["event"] for row in run.events(rank) if row["attempt"] == attempt["attempt"])
    return next((event for event in rows if event in ("ended", "raised")), "")


def _passing(run: Records, strike: Row, attempt: Row) -> str:
    """Why a failure that ends nothing has not happened; empty if it has, or nothing saw it."""
    if strike["fault"] == "stop":
        return _moved(run, strike, attempt)
    if strike["fault"] == "node":
        at = attempt["struck"][strike["key"]]
        return (
            _anchor_stayed(run, at) if run.config["launcher"] == ORCHESTRATED else _node_stayed(run)
        )
    return ""


def _moved(run: Records, strike: Row, attempt: Row) -> str:
    """Whether a rank that was to stand still has logged steps all the time."""
    struck, rank, seconds = attempt["struck"][strike["key"]], strike["rank"], strike["seconds"]
    times = [row["time"] for row in run.steps.get(rank, ()) if row["attempt"] == attempt["attempt"]]
    ended = max([*times, attempt["detected"]])
    if ended < struck + seconds:
        return ""
    marks = [*sorted(times), ended]
    gap = max((b - a for a, b in zip(marks, marks[1:], strict=False) if b > struck), default=0.0)
    return (
        ""
        if gap >= _TOLERANCE * seconds
        else f"did not stop rank {rank}: it never stood still for {seconds:g} s"
    )


def _node_stayed(run: Records) -> str:
    """Whether the memory node was restarted too rarely: after each loss, unless the run ended."""
    attempts, seconds = (
        run.supervisor["attempts"],
        {one["key"]: one["seconds"] for one in run.config["strikes"]},
    )
    lost = 0
    for one in attempts:
        for key, at in one["struck"].items():
            if key.startswith("node-") and key in seconds:
                lost += one is not attempts[-1] or one["detected"] > at + seconds[key] + _WAIT_S
    log = run.folder / NODE_LOG
    starts = len(_STARTED.findall(log.read_bytes())) if log.is_file() else 0
    return "" if starts > lost else f"has ended no memory node: one was started {starts} times"


def _anchor_stayed(run: Records, struck: float) -> str:
    """Whether a job lost no machine besides its ranks', though there was time to see it."""
    trainers = {
        machine for one in run.supervisor["attempts"] for machine in one.get("machines", ())
    }
    for row in read_lines(run.folder / EVENTS):
        if (
            row["event"] == "machine"
            and row.get("why") == "lost"
            and row["time"] >= struck
            and row["id"] not in trainers
        ):
            return ""
    seen = struck + _SEEN_S < _first(run) + run.supervisor["wall_s"]
    return "has ended no machine that keeps versions" if seen else ""


def _disk(run: Records) -> Iterator[str]:
    """What is wrong with a disk that should have misbehaved."""
    events = [row for rows in run.all_events.values() for row in rows]
    if any(name != "slow" for name in run.config["disk"]) and not any(
        one["disk_errors"] for one in run.supervisor["attempts"]
    ):
        yield "the disk has never failed"
    if "slow" in run.config["disk"] and not any(
        row["event"] == "slowed" and row["seconds"] for row in events
    ):
        yield "the disk was never slow"
