"""Jobs of the simulator in YAML; see docs/reference/job-file.md."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainValidator, TypeAdapter, ValidationError

from deepvm.core.cluster.instances import Market
from deepvm.core.preemption.gang_survival import MOST_VMS
from deepvm.core.preemption.job import Span
from deepvm.core.units import MOST_SECONDS
from deepvm.documents.fields import Number, Strict, Whole

_NUMBERS = TypeAdapter(list[Number])


def _numbers(value: Any) -> list[float]:
    """One or several numbers."""
    try:
        return _NUMBERS.validate_python(value if isinstance(value, list) else [value])
    except ValidationError:
        raise ValueError("not a number") from None


def _span(value: Any) -> Span:
    bounds = _numbers(value)
    if len(bounds) > 2 or max(bounds) > MOST_SECONDS:
        raise ValueError("too long")
    return Span(bounds[0], bounds[-1])


def _lifetimes(value: Any) -> tuple[float, ...]:
    if value is None:
        return (math.inf,)
    means = _numbers(value)
    if not means or min(means) <= 0:
        raise ValueError("not above 0")
    return tuple(means)


def _name(value: str) -> str:
    if not value.strip() or not value.isprintable():
        raise ValueError("expected visible characters")
    return value


_SPAN = (
    f"seconds from 0 without a unit, or [low, high] with low <= high, at most {MOST_SECONDS:.0e}"
)
_LIFETIMES = "seconds above 0, without a unit, or a list of them"
Name = Annotated[str, Field(max_length=200), AfterValidator(_name)]
Seconds = Annotated[Any, PlainValidator(_span), Field(description=_SPAN)]
Lifetimes = Annotated[Any, PlainValidator(_lifetimes), Field(description=_LIFETIMES)]
Usd = Annotated[Number, Field(ge=0, le=1e9)]
Steps = Annotated[Whole, Field(ge=1, le=10**12)]
_UNSET: Any = None


class JobDocument(Strict):
    """The keys of a job file; those that are not set have the defaults of a job."""

    name: Name = _UNSET
    steps: Steps
    step_s: Seconds
    save_s: Seconds = _UNSET
    backup_s: Seconds = _UNSET
    allocation_s: Seconds = _UNSET
    preparation_s: Seconds = _UNSET
    grace_s: Seconds = _UNSET
    mttp_s: Lifetimes = _UNSET
    save_every_steps: Steps | None = _UNSET
    spot_usd_per_hour: Usd = _UNSET
    on_demand_usd_per_hour: Usd = _UNSET
    market: Market = _UNSET
    missed_notice_rate: Annotated[Number, Field(ge=0, le=1)] = _UNSET
    stall_s: Seconds | None = _UNSET
    memory_node_s: Seconds | None = _UNSET
    warm_preparation_s: Seconds | None = _UNSET
    proactive_replacement: bool = _UNSET
    vms: Annotated[Whole, Field(ge=1, le=MOST_VMS)] = _UNSET
    elastic: bool = _UNSET
    lifetime: str = _UNSET
