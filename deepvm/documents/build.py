"""Documents made of the objects that hold their values, as ``data/documents`` declares them."""

from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import cache
from math import isfinite
from typing import Any

from deepvm.core.json_types import JsonDict
from deepvm.core.units import format_time, utc_text
from deepvm.documents.declared import FIRST, Schema, may_be_null, properties, without_null

ABSENT: Any = object()  # The value of a key that is left out


class With:
    """An object with more values, which also replace its own; they appear even if None."""

    def __init__(self, item: Any, **values: Any) -> None:
        self.item = item
        self.values = values

    def __getattr__(self, name: str) -> Any:
        if name in self.values:
            return self.values[name]
        return attribute(self.item, name)


def value_at(item: Any, path: str) -> Any:
    """The value at a path, such as ``costs.0``; None where an object on the way is None."""
    for name in filter(None, path.split(".")):
        if item is None:
            return None
        item = attribute(item, name)
    return item


def attribute(item: Any, name: str) -> Any:
    """A value of an object, a mapping or a sequence; ``#``: how many there are."""
    if name == "#":
        return len(item)
    if isinstance(item, Mapping):
        # Documents of an older deepvm lack some keys
        return item.get(name)
    if name.removeprefix("-").isdigit():
        return item[int(name)]
    return getattr(item, name)


@cache
def means() -> list[str]:
    """What a variant of the lab has means of, over its runs that pass all gates."""
    row = properties("lab.SummaryRow")
    return [key for key, schema in row.items() if "digits" in schema and "at" not in schema]


def with_means(variant: Any, **values: Any) -> With:
    """A variant of the lab with all its means."""
    return With(variant, **{name: variant.mean(name) for name in means()}, **values)


_NO_RUNS = {"mean": None, "low": None, "high": None, "n": 0}


def _cost_range(job: Any) -> Any:
    if job.costs_usd is None or not isfinite(job.total_s):
        return None
    low, high = job.costs_usd
    return {"low": low, "high": high}


def _if_it_ends(job: Any, value: float) -> float | None:
    if isfinite(job.total_s):
        return value
    return None


def percent(change: Any) -> float | None:
    """The change of a price in per cent, to four digits."""
    if change.percent is None:
        return None
    return float(round(change.percent, 4))


def _offer(instance: Any, usd_per_hour: Any) -> JsonDict | None:
    if usd_per_hour is None:  # not sold in that market
        return None
    return {"instance_type": instance.name, "usd_per_hour": usd_per_hour}


def _if_measured(about: Any, name: str) -> Any:
    if about.measured:
        return value_at(about, name)
    return ABSENT


def _memory_nodes(plan: Any) -> With | None:
    nodes = plan.cluster.memory
    return nodes and With(nodes, on_demand_price=plan.on_demand_price)


COMPUTED: dict[str, Callable[[Any], Any]] = {
    # jobs
    "bill_of_machines": lambda plan: plan.bill and With(plan.bill, total_usd=None),
    "created": lambda job: utc_text(job.created_s),
    "since": lambda machine: utc_text(machine.since_s),
    # lab
    "goodput": lambda variant: variant.estimate("goodput") or _NO_RUNS,
    "variants": lambda suite: {name: with_means(v) for name, v in suite.variants.items()},
    # performance
    "per_gpu": lambda speed: speed.interval.scaled(1 / speed.gpu_count),
    "batch_per_gpu": lambda speed: speed.workload.batch_on(speed.gpu_count),
    "spot_offer": lambda row: _offer(row.instance, row.instance.spot_usd_per_hour),
    "on_demand_offer": lambda row: _offer(row.instance, row.instance.on_demand_usd_per_hour),
    # plans
    "runs": lambda figure: figure.runs or None,
    "measured": lambda catalog: catalog.provenance.measured or None,
    "measured_file": lambda catalog: _if_measured(catalog.provenance, "measured_file"),
    "measured_doubts": lambda catalog: _if_measured(catalog.provenance, "doubts"),
    "memory_nodes": _memory_nodes,
    "late_share": lambda job: ABSENT if job.spread is None else job.spread.late,
    "software": lambda training: getattr(training.speeds, "software", None),
    "placement_group": lambda training: getattr(training.speeds, "placement_group", None),
    "excluded": lambda extras: sorted(extras.excluded),
    "undated": lambda origin: None if origin.dated else False,
    "price_basis": lambda about: about.basis or "current",
    "discount": lambda instance: instance.discount or None,
    "eflops_source": lambda instance: instance.eflops_source or None,
    "independent": lambda risk: True,
    "time_between": lambda risk: (risk.between_s[0] or None, risk.between_s[1]),
    "cost_range": _cost_range,
    "total_cost": lambda job: _if_it_ends(job, job.cost_usd),
    "preemptions": lambda job: _if_it_ends(job, job.preemptions),
    "by": lambda job: "closed form" if job.spread is None else "simulation",
    "binding": lambda plan: [limit.constraint for limit in plan.binding],
    "binding_reasons": lambda plan: [limit.reason for limit in plan.binding],
    # prices
    "gpu_types": lambda catalog: sum(one.gpu is not None for one in catalog),
    "cpu_types": lambda catalog: sum(one.gpu is None for one in catalog),
    "percent": percent,
    "changed": lambda diff: not diff.empty,
    # profiling
    "times": lambda pushes: [{"n": n, "seconds": own} for n, own in sorted(pushes.times.items())],
    "interval_of_knee": lambda pushes: [pushes.knee.low, pushes.knee.high],
    # simulation
    "deadline": lambda run: run if run.deadline else None,
    "sweep": lambda run: run.sweep or None,
    "machine_time": lambda own: sum(life.seconds for life in own.lives),
    "means": lambda replay: [row for row in replay["rows"] if not row.trace],
    "of_traces": lambda replay: [row for row in replay["rows"] if row.trace],
}


_PLAIN = {"boolean": bool, "integer": int, "number": float, "string": str}


def document_of(kind: str, item: Any) -> JsonDict:
    """The document of a kind, such as ``simulation.Survive``, with the values of ``item``."""
    # Numbers become float where the type is number, enums their values, dates ISO 8601. Where the
    # type allows null, "" and numbers that are not finite become null. A list of a mapping is one
    # of its items. Keys that are not required come last, and are left out where their value is
    # None. Raises AttributeError: ``item`` lacks a value.
    document = {}
    for key, schema in ordered(kind).items():
        raw = _raw(key, schema, item)
        if raw is ABSENT:
            continue
        if schema.get("exact"):
            value = _plain(None, raw)
        else:
            value = _value(schema, raw)
        # A value that a caller passes with ``With`` is in the document even if it is None
        given = "null" in schema or (isinstance(item, With) and key in item.values)
        if value is not None or given or not schema.get("optional"):
            document[key] = value
    return document


@cache
def ordered(kind: str) -> dict[str, Schema]:
    """The properties of an object, in the order of the document."""
    schemas = properties(kind)
    order = sorted(schemas, key=lambda key: bool(schemas[key].get("optional")))
    # Reversed: of several keys after the same one, the last that is inserted comes first
    for key in [key for key in reversed(order) if "after" in schemas[key]]:
        earlier = schemas[key]["after"]
        order.remove(key)
        order.insert(0 if earlier == FIRST else order.index(earlier) + 1, key)
    return {key: schemas[key] for key in order}


def _raw(key: str, schema: Schema, item: Any) -> Any:
    if "computed" in schema:
        return COMPUTED[schema["computed"]](value_at(item, schema.get("at", "")))
    if "const" in schema:
        return schema["const"]
    value = value_at(item, schema.get("at", key))
    if "digits" in schema and value is not None:
        return round(value, schema["digits"])
    return value


def _value(schema: Schema, value: Any) -> Any:
    # Objects have an empty text or infinity for what is unknown or unlimited
    if value is None:
        return None
    if may_be_null(schema) and (value == "" or (isinstance(value, float) and not isfinite(value))):
        return None
    schema = without_null(schema)
    if "$ref" in schema:
        return document_of(schema["$ref"], value)
    if "items" in schema:
        elements = value
        if isinstance(value, Mapping):
            elements = value.items()
        return [_value(schema["items"], element) for element in elements]
    if "additionalProperties" in schema:
        inner = schema["additionalProperties"]
        return {key: _value(inner, element) for key, element in dict(value).items()}
    return _plain(schema.get("type"), value)


def _plain(kind: Any, value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(kind, str):
        return _PLAIN[kind](value)
    if isinstance(value, Decimal):
        return float(value)
    return value
