"""The schema of the files that users write: catalogs (JSON, CSV) and quotas.

The models validate and are never used as data. Each description states the unit and the range; it
is shown in the JSON Schema and, word for word, in the error about that field. Rules that join
fields are in :mod:`deepvm.catalog.documents.findings`.
"""

from __future__ import annotations

import json
import math
import re
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from deepvm.catalog.documents.serialization import CATALOG_VERSION
from deepvm.core.units import MICRO

MAX_USD = 100_000
MAX_MEMORY_GIB = 65_536
MAX_GPU_MEMORY_GIB = 4096
MAX_NETWORK_GBPS = 25_600
MAX_NODES = 1_000_000
MAX_EFLOPS = 1e30
_PRICE = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
# Line breaks would tear a CSV file apart, control characters a terminal, lone surrogates cannot be
# written at all; the rest reverses the text after it, or is invisible, so that two names look the
# same.
_UNFIT = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def _as_float(value: object) -> float:
    """A finite float of a JSON number; text and booleans are no numbers."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float, Decimal))
        or not math.isfinite(value)
    ):
        raise ValueError("not a number")
    return float(value)


def _as_whole(value: object) -> int:
    """A whole number; 4.0 counts, because spreadsheets write it."""
    number = _as_float(value)
    if not number.is_integer():
        raise ValueError("not whole")
    return int(number)


def _as_price(value: object) -> Decimal:
    """An exact price in $/h from a JSON number or its decimal form as text."""
    if not isinstance(value, str):
        _as_float(value)
    elif not _PRICE.fullmatch(value):
        raise ValueError("not a number")
    price = Decimal(str(value))
    # Comparisons are exact; abs() would round to the context and overflow on a price of a million
    # digits.
    if not -MAX_USD <= price <= MAX_USD or price != price.quantize(MICRO):
        raise ValueError("too large, or too many decimals")
    return price


def _as_day(value: object) -> date:
    # Without this, pydantic takes 20231001 for seconds since 1970.
    if not isinstance(value, str) or not _DAY.fullmatch(value):
        raise ValueError("not a day")
    return date.fromisoformat(value)


def _one_line(value: str) -> str:
    if _UNFIT.search(value) or value != value.strip():
        raise ValueError("not one line of text")
    return value


def _no_comment(value: str) -> str:
    if value.startswith("#"):
        raise ValueError("would be read as a comment line in CSV")
    return _one_line(value)


Number = Annotated[float, BeforeValidator(_as_float)]
Whole = Annotated[int, BeforeValidator(_as_whole)]
Price = Annotated[Decimal, Field(gt=0, le=MAX_USD), BeforeValidator(_as_price)]
Day = Annotated[date, BeforeValidator(_as_day)]
Text = Annotated[str, AfterValidator(_one_line)]
Name = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_one_line)]
# One validator: of two of a kind, pydantic before 2.12 loses the first where the field says
# something too.
TypeName = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_no_comment)]


def number(
    what: str,
    most: float,
    *,
    least: float | None = None,
    whole: bool = False,
    default: Any = ...,
    null: str = "",
) -> Any:
    """A numeric field: its range, above 0 where no ``least`` is given, and when it may be null, in words."""
    low = "above 0 and at most" if least is None else f"from {_digits(least)} to"
    text = f"{what}: a {'whole ' if whole else ''}number {low} {_digits(most)}"
    if null:
        default, text = None, f"{text}, or null {null}"
    return Field(default, ge=least, gt=0 if least is None else None, le=most, description=text)


def described(text: str, null: str = "") -> Any:
    """A field with this description, required unless ``null`` says when it may be null."""
    return Field(None, description=f"{text}, or null {null}") if null else Field(description=text)


def price(what: str, null: str = "") -> Any:
    """A field for a price, required unless it may be null."""
    money = f"a number above 0 and at most {MAX_USD} with at most 6 decimals"
    return described(f"{what} in US dollars an hour ($/h): {money}", null)


def text(what: str, most: int = 2000, default: str = "") -> Any:
    """A field for one line of text that may be left out."""
    size = f"1 to {most}" if default else f"at most {most}"
    description = f"{what}: one line of {size} visible characters without blanks at the ends"
    return Field(default, min_length=1 if default else 0, max_length=most, description=description)


def name_of(what: str, null: str = "") -> Any:
    """A field for a :data:`Name`, required unless it may be null."""
    return described(
        f"{what}: one line of 1 to 100 visible characters without blanks at the ends", null
    )


def rows(
    what: str, most: int, *, least: int = 0, required: bool = False, of: str = "objects"
) -> Any:
    """A field for a list."""
    text = f"{what}: a list of {least} to {most} {of}"
    return Field(... if required else [], min_length=least, max_length=most, description=text)


def _digits(value: float) -> str:
    return f"{value:g}" if value > 1e9 else format(Decimal(repr(value)).normalize(), "f")


class Strict(BaseModel):
    """An object that people write: unknown fields are refused."""

    # defer_build: parts are built once, as parts of the whole, and not each by itself too.
    model_config = ConfigDict(extra="forbid", defer_build=True)


class Lenient(BaseModel):
    """An object that deepvm writes: later versions may say more."""

    model_config = ConfigDict(extra="ignore", defer_build=True)


class GpuDocument(Strict):
    """The GPUs of one VM."""

    name: Name = name_of("GPU model, such as T4")
    count: Whole = number("GPUs in one VM", 1024, least=1, whole=True, default=1)
    memory_gib: Number | None = number(
        "memory of each GPU in GiB", MAX_GPU_MEMORY_GIB, null="when unknown"
    )
    manufacturer: Text = text("maker of the GPU", 100, "NVIDIA")


class _Curve(Strict):
    workload: Name | None = name_of(
        "the model that was trained", "for the general curve; one curve of each kind and workload"
    )
    source: Text = text("where the curve comes from")


class _FittedCurve(_Curve):
    fitted_to: Number | None = number(
        "the largest n that it was fitted to, in VMs; larger clusters are flagged",
        MAX_NODES,
        null="when unknown",
    )


class HybridDocument(_FittedCurve):
    """S(n) = c / (1 + exp(-a (n - b))) for n > b and its tangent at b for n <= b (DeepVM eq. 12)."""

    kind: Literal["hybrid"]
    a: Number = number("steepness of the logistic, 1/VM", 1000)
    b: Number = number("inflection point of the logistic, VMs", 1_000_000, least=0)
    c: Number = number("speed-up approached for large n, dimensionless", 1_000_000)


class RingParameters(Strict):
    """S(n) = n / (1 + c (n-1)/n + l (n-1)), the cost of a ring all-reduce."""

    c: Number = number("gradient bytes over bandwidth, in step times of one VM", 1_000_000, least=0)
    l: Number = number("latency per hop of the ring, in step times of one VM", 1_000_000, least=0)  # noqa: E741


class RingDocument(RingParameters, _FittedCurve):
    """S(n) = n / (1 + c (n-1)/n + l (n-1)), the cost of a ring all-reduce."""

    kind: Literal["ring"]


_Size = Annotated[int, Field(ge=1, le=1_000_000), BeforeValidator(_as_whole)]
_Speedup = Annotated[float, Field(ge=0.000001, le=1_000_000), BeforeValidator(_as_float)]


class MeasuredDocument(_Curve):
    """Measured speed-ups; a monotone cubic between the points, a ring all-reduce beyond them."""

    kind: Literal["measured"]
    points: list[tuple[_Size, _Speedup]] = Field(
        min_length=1,
        max_length=1000,
        description=(
            "measured [n, S(n)] pairs: n a whole number of VMs from 1 to 1000000, increasing, at"
            " least one above 1; S(n) the speed-up over one VM, a number from 0.000001 to 1000000,"
            " exactly 1 at n = 1; at most 1000"
        ),
    )
    beyond: RingParameters | None = Field(
        None,
        description=(
            "ring used beyond the last point: an object with c and l, or null to fit it to the"
            " points"
        ),
    )


Curve = Annotated[HybridDocument | RingDocument | MeasuredDocument, Field(discriminator="kind")]


class ZoneRow(Strict):
    """The spot price of a type in one zone."""

    zone: Name = name_of("id of the zone, such as use1-az4")
    usd_per_hour: Price = price("spot price there")
    name: Text = text("what an account calls the zone, such as us-east-1a", 100)


_NOT_SOLD = "where it is not sold that way; at least one of the two prices is needed"


class InstanceDocument(Strict):
    """One VM type in one region."""

    instance_type: TypeName = name_of(
        "the provider's name of the type, such as g4dn.xlarge, unique and not starting with #"
    )
    vcpus: Whole = number("virtual CPUs", 4096, least=1, whole=True)
    memory_gib: Number | None = number("main memory in GiB", MAX_MEMORY_GIB, null="when unknown")
    network_gbps: Number | None = number(
        "network bandwidth in Gbit/s", MAX_NETWORK_GBPS, null="when unknown"
    )
    network_baseline_gbps: Number | None = number(
        "what the network sustains in Gbit/s, for --network baseline",
        MAX_NETWORK_GBPS,
        null="when unknown",
    )
    on_demand_usd_per_hour: Price | None = price("on-demand price", _NOT_SOLD)
    spot_usd_per_hour: Price | None = price("spot price", _NOT_SOLD)
    gpu: GpuDocument | None = Field(None, description="its GPUs: an object, or null for a CPU type")
    eflops: Number | None = number(
        "measured operations per second in the catalog's eflops_unit",
        MAX_EFLOPS,
        null="when nobody has profiled it",
    )
    eflops_basis: Text = text(
        "how eflops was estimated, which needs --estimates; empty when it was measured"
    )
    eflops_source: Text = text("who measured eflops, where it was not the catalog's own source")
    quota_family: Name | None = name_of(
        "the quota its vCPUs count against",
        "for AWS's by the type's name (such as G and VT for g and vt types, P for p types, Standard"
        " for most others)",
    )
    speedups: list[Curve] = rows("speed-up curves", 100)
    speedup_basis: Text = text(
        "the type whose curves these are, shown as a doubt; empty for its own"
    )
    default_speedup: Literal["", "hybrid", "ring", "measured"] = Field(
        "",
        description=(
            "kind of curve to use for this type: hybrid, ring or measured, empty for the catalog's"
        ),
    )
    cpu_architecture: Literal["", "x86_64", "arm64"] = Field(
        "", description="processors: x86_64 or arm64, empty when unknown"
    )
    burstable: bool = Field(
        False,
        description="whether it runs at full speed only while it has credits: true or false",
        strict=True,
    )
    current_generation: bool = Field(
        True, description="whether it is still sold as current: true or false", strict=True
    )
    interruption_band: Whole | None = Field(
        None,
        ge=0,
        le=4,
        description=(
            "share of its VMs preempted in a month: 0 to 4 for below 5, 5 to 10, 10 to 15, 15 to"
            " 20, above 20 %, or null when unknown"
        ),
    )
    zones: list[Name] = rows("ids of the zones that offer it, any when empty", 1000, of="texts")
    spot_zones: list[ZoneRow] = rows(
        "spot prices by zone, the cheapest first, which is spot_usd_per_hour; unknown when empty",
        1000,
    )
    unusable: Text = text("why it cannot be used; empty if it can")
    note: Text = text("anything a reader should know")


class SaturationRow(Strict):
    """How many VMs may send to one memory node before its network saturates."""

    network_gbps: Number = number("network bandwidth in Gbit/s", MAX_NETWORK_GBPS)
    n_sat: Whole = number("senders at saturation, VMs", 1_000_000, least=1, whole=True)


class QuotaRow(Strict):
    """The most vCPUs that an account may run in one family and market."""

    family: Name = name_of("quota family, as in quota_family")
    market: Literal["spot", "on-demand"] = Field(description="market: spot or on-demand")
    vcpus: Whole = number("limit in vCPUs, inclusive", 100_000_000, least=0, whole=True)
    in_use: Whole = number("vCPUs that run already", 100_000_000, least=0, whole=True, default=0)


class CatalogDocument(Strict):
    """Instance types of one region with prices in US dollars an hour, as deepvm reads them."""

    schema_ref: str | None = Field(
        None, alias="$schema", description="for editors: where this JSON Schema is"
    )
    schema_version: Literal["deepvm.catalog/1"] = Field(
        description=f"{CATALOG_VERSION}, the version of the format"
    )
    name: Text = text("name of the catalog; the file's name when empty", 100)
    region: Text = text("the provider's region, empty when the types are invented", 100)
    description: Text = text("what this catalog is")
    prices_as_of: Day | None = Field(
        None,
        description="the day the prices were true: a date YYYY-MM-DD, or null when there is none",
    )
    source: Text = text("where the figures come from")
    eflops_unit: Text = text("what eflops counts, in words", default="eFLOPS")
    default_speedup: Literal["hybrid", "ring", "measured"] | None = Field(
        None,
        description=(
            "kind of curve to use unless asked otherwise: hybrid, ring or measured, or null for the"
            " first of these that a type carries"
        ),
    )
    memory_nodes: Literal["real", "paper"] = Field(
        "real",
        description=(
            "what a memory node must have: real or paper; real is room for the system and the node"
            " beside the checkpoints, a sustained network, 2 vCPUs, a current generation; paper is"
            " the memory of DeepVM's eq. 6 alone"
        ),
    )
    n_sat: list[SaturationRow] | None = Field(
        None,
        min_length=1,
        max_length=1000,
        description=(
            "senders at saturation by bandwidth: a list of 1 to 1000 objects, one for each"
            " bandwidth, n_sat never decreasing with it; or null for DeepVM's Table V"
        ),
    )
    quotas: list[QuotaRow] = rows(
        "account limits, one for each family and market; unlimited without one", 1000
    )
    instances: list[InstanceDocument] = rows("instance types", 20_000, least=1, required=True)


class QuotaDocument(Strict):
    """Limits of an account, to be used in place of a catalog's own."""

    schema_ref: str | None = Field(
        None, alias="$schema", description="for editors: where the JSON Schema is"
    )
    schema_version: Literal["deepvm.quotas/1"] = Field(
        description="deepvm.quotas/1, the version of the format"
    )
    quotas: list[QuotaRow] = rows(
        "account limits, one for each family and market", 1000, required=True
    )


def schema_of(model: type[BaseModel], name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a file, units and ranges in the descriptions."""
    found = json.dumps(model.model_json_schema())
    # Where a field may be null, pydantic writes ranges by its own words.
    for word, standard in (("gt", "exclusiveMinimum"), ("ge", "minimum"), ("le", "maximum")):
        found = found.replace(f'"{word}": ', f'"{standard}": ')
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"{name}.schema.json",
        **json.loads(found),
    }
