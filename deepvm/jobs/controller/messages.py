"""Agents' messages as events, and the answer: the desired state, with rendezvous addresses."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.io.agent_board import SaveReason
from deepvm.jobs.agent.controller_client import DesiredState
from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.reconcile import Decisions
from deepvm.jobs.decisions.world import JobState, Reason
from deepvm.jobs.history.pools import learnt
from deepvm.jobs.steady_clock import SteadyClock

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
_COUNT = Annotated[int, Field(ge=0, le=2**53)]
_NAMES = Annotated[
    list[Annotated[str, Field(max_length=_MAX_TEXT)]],
    Field(max_length=_MAX_LINES),
    AfterValidator(tuple),
]
_SECONDS = Annotated[float, Field(ge=0, le=1e10)]
# The fields of all messages: a name has one meaning and one range, whichever message it is in
_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(("version", "step", "done", "scheduled", "files", "bytes"), _COUNT),
    **dict.fromkeys(("taken_s", "stall_s", "took_s", "step_s", "wait_s"), _SECONDS),
    **dict.fromkeys(("code_s", "setup_s", "data_s", "load_s"), _SECONDS),
    **dict.fromkeys(("idle_s", "printed_s", "longest_s", "between_s", "of_s"), _SECONDS),
    **dict.fromkeys(("warm", "spare", "lasts", "pending", "own", "data"), bool),
    **dict.fromkeys(("seen", "action", "text"), str),
    "generation": _whole(2**31 - 1),
    "code": _whole(2**31),
    **dict.fromkeys(("port", "local_rank"), _whole(65_535)),
    "of": _whole(2**63 - 1),  # the history keeps 64 bits
    "why": _text(_MAX_TEXT),
    "preparing": _text(_MAX_DOING),
    "lines": list[str],
    **dict.fromkeys(("unmatched", "others"), _NAMES),
    "address": Annotated[str, Field(pattern=r"^[0-9A-Za-z.:_-]{1,253}$")],
    "reason": Annotated[Reason, BeforeValidator(_reason)],
    "save": Annotated[list[_COUNT], Field(min_length=3, max_length=3)],
}
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
    "outputs": d.OutputsLooked,
}
_OF_ALL = {"generation", "step", "warm", "address", "port", "scheduled", "seen", "wait_s"}
_UNHEARD = d.Heartbeat("")


def field_of(message: JsonObject, name: str) -> Any:
    """A field of a message. Raises KeyError, ValueError."""
    return _READERS[name].validate_python(message[name], strict=True)


def _event(kind: type[d.Event], machine: str, message: JsonObject) -> Any:
    values: JsonDict = {}
    for one in fields(kind):
        if one.name == "id":
            values["id"] = machine
        elif one.name in message and (message[one.name], one.default) != (None, None):
            values[one.name] = field_of(message, one.name)
    return kind(**values)


def beat_of(machine: str, message: JsonObject) -> d.Heartbeat:
    """A heartbeat. Raises KeyError, ValueError."""
    if missing := _OF_ALL - message.keys():
        raise KeyError(*sorted(missing))
    beat: d.Heartbeat = _event(d.Heartbeat, machine, message)
    return beat


def event_of(machine: str, report: JsonObject) -> d.Event | None:
    """What a report says; None: nothing follows from it. Raises KeyError, TypeError, ValueError."""
    kind = report["event"]
    if kind == "setup-failed":
        return d.Failed(machine, f"setup failed with exit code {field_of(report, 'code')}")
    if kind not in _EVENTS:
        return None
    # What fails names its lines only for the error of the job
    shown = {k: v for k, v in report.items() if k != "lines"}
    if kind == "notice":
        field_of(report, "action")
    if kind == "ended":
        shown["lines"] = lines_of(report)
    event: d.Event = _event(_EVENTS[kind], machine, shown)
    return event


def can_know(world: JobState, machine: str, event: d.Event) -> bool:
    """Whether this machine may report it: rank 0 what is safe, any member what is not."""
    record = world.machines.get(machine)
    if record is None or (record.state.over and not isinstance(event, d.Failed)):
        return False
    if isinstance(event, d.Safe | d.CheckpointDurable):
        return world.members[:1] == (machine,)
    return machine in world.members or not isinstance(event, d.Unsaved)


def schedule_of(message: JsonObject) -> tuple[int, int, list[int]]:
    """The generation, step and save that rank 0 wants all to know. Raises KeyError, ValueError."""
    save = field_of(message, "save")
    SaveReason(save[0])
    return field_of(message, "generation"), field_of(message, "step"), save


def lines_of(report: JsonObject) -> list[str]:
    """The last lines of a process; none where no process is to blame. Raises ValueError."""
    if "lines" not in report:
        return []
    lines: list[str] = field_of(report, "lines")
    return [line[:_MAX_TEXT] for line in lines[-_MAX_LINES:]]


class HeartbeatResponder:
    """Of one job, by one controller; for one thread."""

    def __init__(self, spec: JsonObject, clock: SteadyClock) -> None:
        self._spec = spec
        self._clock = clock
        self._agents: dict[str, d.Heartbeat] = {}
        self._ports: dict[int, int] = {}
        self._doubtful = 0
        # The step that all save: ``generation``, ``step``, ``save`` with its limit, ``number``
        self.schedule: JsonObject | None = None

    def take_up(self, world: JobState) -> None:
        """Doubt a generation that an earlier controller may have sent to some machines only."""
        if world.formed and not world.started.issuperset(world.members):
            self._doubtful = world.generation

    def receive(self, beat: d.Heartbeat) -> bool:
        """Returns whether it is the first of a machine."""
        is_new = beat.id not in self._agents
        self._agents[beat.id] = beat
        return is_new

    def unscheduled(self, members: tuple[str, ...], number: int) -> list[str]:
        return [m for m in members if self._agents.get(m, _UNHEARD).scheduled != number]

    def splits(self, orders: Decisions) -> bool:
        """Whether an earlier controller sent a rendezvous that others will not get; asked once."""
        generation = orders.generation
        agents = [self._agents[m] for m in orders.members if m in self._agents]
        if not generation or self._doubtful != generation or len(agents) < len(orders.members):
            return False
        self._doubtful = 0
        run = [a.generation == generation for a in agents]
        # The third word in the digest of a desired state is its generation
        ordered = [a.seen.split()[2:3] for a in agents]
        sent = any(run) or [str(generation)] in ordered
        return sent and not all(run)

    def can_begin(self, machine: str, orders: Decisions, world: JobState) -> bool:
        if not orders.generation:
            return True
        if all(m in self._agents for m in (*orders.members, *world.anchors)):
            return True
        return machine in world.started and self._doubtful != orders.generation

    def digest(self, orders: Decisions, nonce: str) -> str:
        """Differs where the orders do: the members of a generation do not change."""
        save = orders.save
        schedule = self._schedule_of(orders)
        asked_s = 0.0 if save is None else save.asked_s
        number = 0 if schedule is None else schedule["number"]
        if orders.serve:
            return "serving"
        return f"{nonce[:8]} {orders.shutdown:d} {orders.generation} {asked_s} {number}"

    def response(self, orders: Decisions, nonce: str, world: JobState) -> JsonDict:
        found = DesiredState(
            digest=self.digest(orders, nonce),
            shutdown=orders.shutdown,
            generation=orders.generation,
            schedule=self._schedule_of(orders),
            save_s=float(world.facts.save_s),
            took_s=float(world.facts.emergency_s),
        )
        if orders.generation:
            agents = {m: self._agents.get(m, _UNHEARD) for m in (*orders.members, *world.anchors)}
            port = agents[orders.members[0]].port
            found.port = self._ports.setdefault(orders.generation, port)
            mttp_s, found.missed_rate = learnt(world)
            if mttp_s < math.inf:
                found.mttp_s = mttp_s
            nodes = ",".join(f"{agents[m].address}:{agents[m].port}" for m in world.anchors)
            found.tiers = [*([f"tcp://{nodes}"] if nodes else []), *self._spec["tiers"]]
            each = int(self._spec["per_machine"])
            found.ranks = [
                {"machine": m, "address": agents[m].address, "processes": each}
                for m in orders.members
            ]
            if (save := orders.save) is not None:
                # Periodic saves that the controller wants are the user's: `deepvm jobs save`
                reason = SaveReason.__members__.get(save.reason.name, SaveReason.USER)
                found.save = {
                    "reason": int(reason),
                    "asked_s": save.asked_s,
                    "left_s": max(save.limit_s - self._clock.now_s(), 0.0),
                }
        return vars(found)

    def _schedule_of(self, orders: Decisions) -> JsonDict | None:
        found = self.schedule
        if found is None or found["generation"] != orders.generation:
            return None
        # As time that is left: clocks of machines may differ
        reason, until_ms, request = found["save"]
        left_ms = max(until_ms - int(self._clock.now_s() * 1000), 0)
        return {**found, "save": [reason, left_ms, request]}
