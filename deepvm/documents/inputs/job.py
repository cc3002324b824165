"""Jobs of the simulator in YAML; see docs/reference/job-file.md."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainValidator

from deepvm.core.cluster.instances import Market
from deepvm.core.preemption.gang_survival import MOST_VMS
from deepvm.core.preemption.job import Span
from deepvm.core.units import MOST_SECONDS
from deepvm.documents.fields import Number, Strict, Whole, finite

_MAX_STEPS = 10**12
_MAX_USD = 1e9


def _span(value: Any) -> Span:
    bounds = value if isinstance(value, list) else [value, value]
    low, high = (float(finite(bound)) for bound in bounds)
    if high > MOST_SECONDS:
        raise ValueError("too long")
    return Span(low, high)


def _lifetimes(value: Any) -> tuple[float, ...]:
    if value is None:
        return (math.inf,)
    values = value if isinstance(value, list) else [value]
    means = tuple(float(finite(mean)) for mean in values)
    if not means or min(means) <= 0:
        raise ValueError("not above 0")
    return means


def _name(value: str) -> str:
    if not value.strip() or not value.isprintable():
        raise ValueError("not a name")
    return value


Seconds = Annotated[Any, PlainValidator(_span)]
Lifetimes = Annotated[Any, PlainValidator(_lifetimes)]
Usd = Annotated[Number, Field(ge=0, le=_MAX_USD)]
Steps = Annotated[Whole, Field(ge=1, le=_MAX_STEPS)]
_SPAN = (
    f"seconds from 0 without a unit, or [low, high] with low <= high, at most {MOST_SECONDS:.0e}"
)


def _key(text: str) -> Any:
    return Field(None, description=text)


def _span_key() -> Any:
    return Field(None, description=_SPAN)


class JobDocument(Strict):
    """The keys of a job file; those that are null have the defaults of a job."""

    name: Annotated[str, Field(max_length=200), AfterValidator(_name)] = _key(
        "a name of up to 200 characters"
    )
    steps: Steps = Field(description=f"a whole number from 1 to {_MAX_STEPS:.0e}")
    step_s: Seconds = Field(description=_SPAN)
    save_s: Seconds = _span_key()
    backup_s: Seconds = _span_key()
    allocation_s: Seconds = _span_key()
    preparation_s: Seconds = _span_key()
    grace_s: Seconds = _span_key()
    mttp_s: Lifetimes = _key("seconds above 0, without a unit, or a list of them")
    save_every_steps: Steps | None = _key(f"a whole number from 1 to {_MAX_STEPS:.0e}")
    spot_usd_per_hour: Usd = _key(f"dollars an hour, from 0 to {_MAX_USD:.0e}")
    on_demand_usd_per_hour: Usd = _key(f"dollars an hour, from 0 to {_MAX_USD:.0e}")
    market: Market = _key("spot or on-demand")
    missed_notice_rate: Annotated[Number, Field(ge=0, le=1)] = _key("a share from 0 to 1")
    stall_s: Seconds | None = _span_key()
    memory_node_s: Seconds | None = _span_key()
    warm_preparation_s: Seconds | None = _span_key()
    proactive_replacement: bool = _key("true or false")
    vms: Annotated[Whole, Field(ge=1, le=MOST_VMS)] = _key(f"a whole number from 1 to {MOST_VMS}")
    elastic: bool = _key("true or false")
    lifetime: str = _key("a law of lifetimes")
