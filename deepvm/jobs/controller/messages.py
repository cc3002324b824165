"""Agents' messages as events: a machine that is taken over can lie only about itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deepvm.core.json_types import JsonObject
from deepvm.io.agent_board import SaveReason
from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.world import JobState, Reason

_MOST = 2**53  # larger numbers are not the same in every reader of JSON
_MOST_GENERATION = 2**31 - 1
_MOST_NUMBER = 2**63 - 1  # the history keeps 64 bits
_MOST_S = 1e10
_LONGEST, _MOST_LINES, _LONGEST_DOING = 10_000, 100, 200
_ADDRESS = re.compile(r"[0-9A-Za-z.:_-]{1,253}")
_OF_AGENT = {
    SaveReason.NONE: Reason.PERIODIC,
    SaveReason.USER: Reason.PERIODIC,
    SaveReason.INSURANCE: Reason.INSURANCE,
    SaveReason.EMERGENCY: Reason.EMERGENCY,
    SaveReason.RESIZE: Reason.RESIZE,
    SaveReason.STOP: Reason.STOP,
}


@dataclass(frozen=True)
class HeartbeatMessage:
    """A heartbeat: the machine's address, the newest save it marked, the state it has seen."""

    address: str
    port: int
    scheduled: int
    seen: str
    wait_s: float
    heard: d.Heartbeat


def beat_of(machine: str, message: JsonObject) -> HeartbeatMessage:
    """Read a heartbeat. Raises KeyError, ValueError."""
    address = text(message, "address")
    if not _ADDRESS.fullmatch(address):
        raise ValueError("address: not an address")
    heard = d.Heartbeat(
        machine,
        whole(message, "generation", _MOST_GENERATION),
        whole(message, "step"),
        truth(message, "warm"),
        whole(message, "step_ns", _MOST_NUMBER) / 1e9,
        truth(message, "spare") if "spare" in message else True,
        text(message, "preparing")[:_LONGEST_DOING] if "preparing" in message else "",
        idle_s=_seconds_if_any(message, "idle_s"),
        printed_s=_seconds_if_any(message, "printed_s"),
        longest_s=_seconds_if_any(message, "longest_s"),
        between_s=_seconds_if_any(message, "between_s") or 0.0,
        of_s=_seconds_if_any(message, "of_s") or 0.0,
    )
    return HeartbeatMessage(
        address,
        whole(message, "port", 65_535),
        whole(message, "scheduled"),
        text(message, "seen"),
        seconds(message, "wait_s"),
        heard,
    )


def number_of(report: Any) -> int:
    """The number of a report. Raises KeyError, ValueError."""
    if not isinstance(report, Mapping):
        raise ValueError("a report that is not an object")
    return whole(report, "of", _MOST_NUMBER)


def event_of(machine: str, report: JsonObject) -> tuple[d.Event, JsonObject] | None:
    """What a report says, and further facts; None if nothing follows from it.

    Raises KeyError, ValueError.
    """
    kind = report["event"]
    if kind == "notice":
        return d.Noticed(machine, seconds(report, "taken_s")), {"action": text(report, "action")}
    if kind == "started":
        version = None if report.get("version") is None else whole(report, "version")
        done = whole(report, "done") if "done" in report else 0
        return d.Started(machine, _generation(report), version, done), {}
    if kind == "ended":
        ended = d.Ended(
            machine, _generation(report), whole(report, "code", 2**31), whole(report, "step")
        )
        return ended, {"lines": lines_of(report)}
    if kind == "saved":
        reason, version = _OF_AGENT[SaveReason(whole(report, "reason"))], whole(report, "version")
        stall_s, took_s = seconds(report, "stall_s"), seconds(report, "took_s")
        lasts = truth(report, "lasts") if "lasts" in report else True
        pending = truth(report, "pending") if "pending" in report else False
        return d.Safe(_generation(report), version, reason, stall_s, took_s, lasts, pending), {}
    if kind == "lasts":
        return d.CheckpointDurable(
            _generation(report), whole(report, "version"), seconds(report, "took_s")
        ), {}
    if kind == "alone":
        return (
            d.CheckpointOnAnchorOnly(
                _generation(report), whole(report, "version"), text(report, "why")[:_LONGEST]
            ),
            {},
        )
    if kind == "unsaved":
        reason = _OF_AGENT[SaveReason(whole(report, "reason"))]
        return d.Unsaved(_generation(report), text(report, "why")[:_LONGEST], reason), {}
    if kind == "prepared":
        parts = ("code_s", "setup_s", "data_s", "load_s")
        return d.Prepared(machine, *(seconds(report, part) for part in parts)), {}
    if kind == "stepped":
        return d.Stepped(machine, _generation(report), seconds(report, "took_s")), {}
    if kind == "rebalance":
        return d.Rebalanced(machine), {}
    if kind == "deaf":
        return d.MetadataUnavailable(machine, text(report, "why")[:_LONGEST]), {}
    if kind == "unusable":
        own, data = (truth(report, name) if name in report else False for name in ("own", "data"))
        return d.Failed(machine, text(report, "why")[:_LONGEST], own, data), {}
    if kind == "setup-failed":
        return d.Failed(machine, f"setup failed with exit code {whole(report, 'code', 2**31)}"), {}
    return None


def can_know(world: JobState, machine: str, event: d.Event) -> bool:
    """Whether this machine may report it: rank 0 what is safe, any member what is not."""
    record = world.machines.get(machine)
    if record is None or (record.state.over and not isinstance(event, d.Failed)):
        return False
    if isinstance(event, d.Safe | d.CheckpointDurable):
        return world.members[:1] == (machine,)
    return machine in world.members or not isinstance(event, d.Unsaved)


def schedule_of(message: JsonObject) -> tuple[int, int, list[int]]:
    """The generation, the step and the save of which rank 0 wants all to know.

    Raises KeyError, ValueError.
    """
    save = message["save"]
    if not isinstance(save, list) or len(save) != 3:
        raise ValueError("save: not three numbers")
    found = {"reason": save[0], "left_ms": save[1], "request": save[2]}
    SaveReason(whole(found, "reason"))
    return _generation(message), whole(message, "step"), [whole(found, name) for name in found]


def lines_of(report: JsonObject) -> list[str]:
    """The last lines of a process; none where no process is to blame. Raises ValueError."""
    lines = report.get("lines", [])
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise ValueError("lines: not a list of texts")
    return [line[:_LONGEST] for line in lines[-_MOST_LINES:]]


def _generation(message: JsonObject) -> int:
    return whole(message, "generation", _MOST_GENERATION)


def whole(message: JsonObject, key: str, most: int = _MOST) -> int:
    """A whole number from 0. Raises KeyError, ValueError."""
    found = message[key]
    if type(found) is not int or not 0 <= found <= most:
        raise ValueError(f"{key}: not a whole number from 0 to {most}")
    return found


def seconds(message: JsonObject, key: str) -> float:
    """A time or a duration. Raises KeyError, ValueError."""
    found = message[key]
    if type(found) not in (int, float) or not 0 <= found <= _MOST_S:  # neither NaN nor infinity is
        raise ValueError(f"{key}: not a number of seconds")
    return float(found)


def _seconds_if_any(message: JsonObject, key: str) -> float | None:
    return None if message.get(key) is None else seconds(message, key)


def text(message: JsonObject, key: str) -> str:
    """A text. Raises KeyError, ValueError."""
    found = message[key]
    if not isinstance(found, str):
        raise ValueError(f"{key}: not a text")
    return found


def truth(message: JsonObject, key: str) -> bool:
    """True or false. Raises KeyError, ValueError."""
    found = message[key]
    if not isinstance(found, bool):
        raise ValueError(f"{key}: neither true nor false")
    return found
