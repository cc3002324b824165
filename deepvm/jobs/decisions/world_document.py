"""The world as JSON, so that a controller can be killed at any time and another continues."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.preemption.savepolicy import SavePolicy, parse_policy
from deepvm.jobs.decisions.states import replace
from deepvm.jobs.decisions.world import JobState, MachineRecord


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, localns={"Number": float})


def _written(value: Any) -> Any:
    """As JSON; a mapping whose keys are no texts is a list of pairs."""
    if isinstance(value, SavePolicy):
        return value.name
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {one.name: _written(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        pairs = [[_written(key), _written(each)] for key, each in value.items()]
        if any(isinstance(key, dict) for key, _ in pairs):
            return pairs
        return dict(pairs)
    if isinstance(value, frozenset):
        return sorted(_written(each) for each in value)
    if isinstance(value, tuple):
        return [_written(each) for each in value]
    return value


def _read(kind: Any, value: Any) -> Any:
    origin = get_origin(kind)
    args = get_args(kind)
    if kind is SavePolicy:
        return parse_policy(value)
    if NoneType in args:
        if value is None:
            return None
        return _read(args[0], value)
    if origin is tuple and args[-1] is not Ellipsis:
        return tuple(map(_read, args, value))
    if origin in (tuple, frozenset):
        return origin(_read(args[0], each) for each in value)
    if origin is Mapping:
        pairs = value.items() if isinstance(value, Mapping) else value
        return {_read(args[0], key): _read(args[1], each) for key, each in pairs}
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        known = {name: value[name] for name in hints if name in value}
        return kind(**{name: _read(hints[name], each) for name, each in known.items()})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    return value


def to_document(world: JobState) -> JsonDict:
    """All but the machines, which have rows of their own, and what heartbeats repeat."""
    document: JsonDict = _written(world)
    del document["machines"], document["cold"]
    document["blocked"] = [[pool, *times] for pool, times in document["blocked"]]
    return document


def from_document(document: JsonObject, machines: Mapping[str, MachineRecord]) -> JobState:
    """The state of a document, by an older deepvm too. Raises KeyError, TypeError, ValueError."""
    terms = dict(document["terms"])
    for name in ("anchor", "steady", "bought"):  # an older deepvm wrote one pool, or None
        pools = terms.get(name) or []
        terms[name] = [pools] if isinstance(pools, Mapping) else pools
    blocked = [[pool, times] for pool, *times in document["blocked"]]
    known = {"lasts": document["version"], **document, "terms": terms, "blocked": blocked}
    world: JobState = _read(JobState, {**known, "machines": {}})
    return replace(world, machines=machines)


def to_row(machine: MachineRecord) -> JsonDict:
    """A machine as the columns of a table."""
    row: JsonDict = _written(machine)
    pool = row.pop("pool")
    return {**row, **pool}


def from_row(row: JsonObject) -> MachineRecord:
    """The reverse of :func:`to_row`."""
    machine: MachineRecord = _read(MachineRecord, {**row, "pool": row})
    return machine
