"""Agents' messages as events: a machine that is taken over can lie only about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.io.agent_board import SaveReason
from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.world import JobState, Reason

_MAX_LINES = 100
_MAX_TEXT = 10_000
_MAX_DOING = 200


def _reason(value: object) -> Reason:
    if type(value) is not int:
        raise ValueError("not the number of a reason")
    # The training's own saves and those of `jobs save` have other names on boards
    return Reason.__members__.get(SaveReason(value).name, Reason.PERIODIC)


def _whole(limit: int) -> Any:
    return Annotated[int, Field(ge=0, le=limit)]


def _text(limit: int) -> Any:
    return Annotated[str, AfterValidator(lambda text: text[:limit])]


# Larger numbers are not the same in every reader of JSON
_COUNT = _whole(2**53)
_SECONDS = Annotated[float, Field(ge=0, le=1e10)]
_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(("version", "step", "done", "scheduled"), _COUNT),
    **dict.fromkeys(("taken_s", "stall_s", "took_s", "step_s", "wait_s"), _SECONDS),
    **dict.fromkeys(("code_s", "setup_s", "data_s", "load_s"), _SECONDS),
    **dict.fromkeys(("idle_s", "printed_s", "longest_s", "between_s", "of_s"), _SECONDS),
    **dict.fromkeys(("warm", "spare", "lasts", "pending", "own", "data"), bool),
    **dict.fromkeys(("seen", "action", "text"), str),
    "generation": _whole(2**31 - 1),
    "code": _whole(2**31),
    "port": _whole(65_535),
    "of": _whole(2**63 - 1),  # the history keeps 64 bits
    "why": _text(_MAX_TEXT),
    "preparing": _text(_MAX_DOING),
    "lines": list[str],
    "address": Annotated[str, Field(pattern=r"^[0-9A-Za-z.:_-]{1,253}$")],
    "reason": Annotated[Reason, BeforeValidator(_reason)],
    "save": Annotated[
        list[Annotated[int, Field(ge=0, le=2**53)]], Field(min_length=3, max_length=3)
    ],
}
"""The fields of all messages: a name has one meaning and one range, whichever message it is in."""
_READERS = {name: TypeAdapter(kind) for name, kind in _TYPES.items()}
_EVENTS: Mapping[str, type[d.Event]] = {
    "notice": d.Noticed,
    "started": d.Started,
    "ended": d.Ended,
    "saved": d.Safe,
    "lasts": d.CheckpointDurable,
    "alone": d.CheckpointOnAnchorOnly,
    "unsaved": d.Unsaved,
    "prepared": d.Prepared,
    "stepped": d.Stepped,
    "rebalance": d.Rebalanced,
    "deaf": d.MetadataUnavailable,
    "unusable": d.Failed,
}
"""What agents call the events that they report."""


@dataclass(frozen=True)
class AgentStatus:
    """What every heartbeat says of its agent; ``seen``: the digest of its desired state."""

    generation: int = 0
    step: int = 0
    warm: bool = False
    address: str = ""
    port: int = 0
    scheduled: int = 0
    seen: str = ""
    wait_s: float = 0.0

    @property
    def ordered_generation(self) -> int:
        """The generation of its desired state."""
        words = self.seen.split()
        if len(words) == _DIGEST_WORDS and words[2].isdigit():
            return int(words[2])
        return 0


_DIGEST_WORDS = 5


def field_of(message: JsonObject, name: str) -> Any:
    """A field of a message. Raises KeyError, ValueError."""
    return _READERS[name].validate_python(message[name], strict=True)


def _event(kind: type[d.Event], machine: str, message: JsonObject) -> Any:
    """An event by the fields of a message, as far as it has them, of the machine that sent it."""
    values: JsonDict = {}
    for one in fields(kind):
        if one.name == "id":
            values["id"] = machine
        elif one.name in message and (message[one.name], one.default) != (None, None):
            values[one.name] = field_of(message, one.name)
    return kind(**values)


def beat_of(machine: str, message: JsonObject) -> tuple[d.Heartbeat, AgentStatus]:
    """A heartbeat, and the fields that every one has. Raises KeyError, ValueError."""
    beat: d.Heartbeat = _event(d.Heartbeat, machine, message)
    status = {one.name: field_of(message, one.name) for one in fields(AgentStatus)}
    return beat, AgentStatus(**status)


def event_of(machine: str, report: JsonObject) -> tuple[d.Event, JsonObject] | None:
    """What a report says, and further facts; None if nothing follows from it.

    Raises KeyError, TypeError, ValueError.
    """
    kind = report["event"]
    if kind == "setup-failed":
        return d.Failed(machine, f"setup failed with exit code {field_of(report, 'code')}"), {}
    if kind not in _EVENTS:
        return None
    event = _event(_EVENTS[kind], machine, report)
    facts = dict[str, Any]()
    if kind == "notice":
        facts["action"] = field_of(report, "action")
    if kind == "ended":
        facts["lines"] = lines_of(report)
    return event, facts


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
    generation = field_of(message, "generation")
    step = field_of(message, "step")
    save = field_of(message, "save")
    SaveReason(save[0])
    return generation, step, save


def lines_of(report: JsonObject) -> list[str]:
    """The last lines of a process; none where no process is to blame. Raises ValueError."""
    if "lines" not in report:
        return []
    lines: list[str] = field_of(report, "lines")
    return [line[:_MAX_TEXT] for line in lines[-_MAX_LINES:]]
