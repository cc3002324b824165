"""The one schema of the files that users write: catalogs (JSON, CSV) and quotas.

The pydantic models are validated against, never used as data. Each description states the unit and the range; it is
shown in the JSON Schema and, word for word, in the error about that field. Rules that join fields (prices, unique
names, curves) are in :mod:`deepvm.catalog.documents.validation`.
"""

from __future__ import annotations

import re
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from deepvm.catalog.documents.serialization import CATALOG_VERSION, QUOTAS_VERSION

MAX_USD_PER_HOUR = 100_000
MAX_MEMORY_GIB = 65_536
MAX_GPU_MEMORY_GIB = 4096
MAX_NETWORK_GBPS = 25_600
MAX_NODES = 1_000_000
MAX_EFLOPS = 1e30
MICRO = Decimal("0.000001")
_PRICE = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
# Line breaks would tear a CSV file apart, control characters a terminal, lone surrogates cannot be written at all.
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def _as_float(value: object) -> float:
    """A finite float of a JSON number; text and booleans are no numbers."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise ValueError("not a number")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError("too large") from None
    if not -1e300 < number < 1e300:
        raise ValueError("not finite")
    return number


def _as_whole(value: object) -> int:
    """A whole number; 4.0 counts, because spreadsheets write it."""
    number = _as_float(value)
    if not number.is_integer():
        raise ValueError("not whole")
    return int(number)


def _as_price(value: object) -> Decimal:
    """An exact price in $/h from a JSON number or its decimal form as text."""
    if isinstance(value, str) and not _PRICE.fullmatch(value):
        raise ValueError("not a number")
    if not isinstance(value, str):
        _as_float(value)
    price = value if isinstance(value, Decimal) else Decimal(str(value))
    # Comparisons are exact; abs() would round to the context and overflow on a price of a million digits.
    if not -MAX_USD_PER_HOUR <= price <= MAX_USD_PER_HOUR or price != price.quantize(MICRO):
        raise ValueError("too large, or too many decimals")
    return price


def _as_day(value: object) -> object:
    # Without this, pydantic takes 20231001 for seconds since 1970.
    if not isinstance(value, str) or not _DAY.fullmatch(value):
        raise ValueError("not a day")
    date.fromisoformat(value)
    return value


def _one_line(value: str) -> str:
    if _UNFIT.search(value) or value != value.strip():
        raise ValueError("not one line of text")
    return value


def _no_comment(value: str) -> str:
    if value.startswith("#"):
        raise ValueError("would be read as a comment line in CSV")
    return value


Number = Annotated[float, BeforeValidator(_as_float)]
Whole = Annotated[int, BeforeValidator(_as_whole)]
# Types that may be null carry their range themselves, inside the validator: only there pydantic writes it into the
# JSON Schema as a range.
Price = Annotated[Decimal, Field(gt=0, le=MAX_USD_PER_HOUR), BeforeValidator(_as_price)]
MemoryGib = Annotated[float, Field(gt=0, le=MAX_MEMORY_GIB), BeforeValidator(_as_float)]
GpuMemoryGib = Annotated[float, Field(gt=0, le=MAX_GPU_MEMORY_GIB), BeforeValidator(_as_float)]
NetworkGbps = Annotated[float, Field(gt=0, le=MAX_NETWORK_GBPS), BeforeValidator(_as_float)]
Eflops = Annotated[float, Field(gt=0, le=MAX_EFLOPS), BeforeValidator(_as_float)]
FittedTo = Annotated[float, Field(gt=0, le=MAX_NODES), BeforeValidator(_as_float)]
Day = Annotated[str, BeforeValidator(_as_day)]
Text = Annotated[str, AfterValidator(_one_line)]
TypeName = Annotated[str, AfterValidator(_one_line), AfterValidator(_no_comment)]
_REQUIRED: Any = ...


def _number(
    what: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float,
    whole: bool = False,
    default: Any = _REQUIRED,
) -> Any:
    """A numeric field: the constraint and the sentence that describes it, from one place."""
    low = f"above {_digits(above)} and at most" if above is not None else f"from {_digits(least or 0)} to"
    text = f"{what}: a {'whole ' if whole else ''}number {low} {_digits(most)}"
    return Field(default, ge=least, gt=above, le=most, description=text)


def _unknown(what: str, most: float, null: str = "when unknown") -> Any:
    """A numeric field that may be null; the type carries the constraint."""
    return Field(None, description=f"{what}: a number above 0 and at most {_digits(most)}, or null {null}")


def _price(market: str) -> Any:
    text = (
        f"{market} price in US dollars an hour ($/h): a number above 0 and at most {MAX_USD_PER_HOUR} with at most "
        f"6 decimals, or null where it is not sold that way; at least one of the two prices is needed"
    )
    return Field(None, description=text)


def _text(what: str, *, least: int = 0, most: int = 2000, default: Any = "") -> Any:
    size = f"{least} to {most}" if least else f"at most {most}"
    return Field(
        default,
        min_length=least,
        max_length=most,
        description=f"{what}: one line of {size} characters without blanks at the ends",
    )


def _rows(what: str, *, least: int = 0, most: int, default: Any) -> Any:
    return Field(default, min_length=least, max_length=most, description=f"{what}: a list of {least} to {most} objects")


def _digits(value: float) -> str:
    return f"{value:g}" if value > 1e9 else format(Decimal(repr(value)).normalize(), "f")


class _Object(BaseModel):
    # defer_build: parts are built once, as parts of the whole, and not each by itself too.
    model_config = ConfigDict(extra="forbid", defer_build=True)


class GpuDocument(_Object):
    """The GPUs of one VM."""

    name: Text = _text("GPU model, such as T4", least=1, most=100, default=_REQUIRED)
    count: Whole = _number("GPUs in one VM", least=1, most=1024, whole=True, default=1)
    memory_gib: GpuMemoryGib | None = _unknown("memory of each GPU in GiB", MAX_GPU_MEMORY_GIB)
    manufacturer: Text = _text("maker of the GPU", least=1, most=100, default="NVIDIA")


class _Curve(_Object):
    workload: Annotated[Text, Field(min_length=1, max_length=100)] | None = Field(
        None,
        description="the model that was trained: one line of 1 to 100 characters, or null for the general curve; "
        "one curve of each kind and workload",
    )
    source: Text = _text("where the curve comes from")


class _FittedCurve(_Curve):
    fitted_to: FittedTo | None = _unknown(
        "the largest n that it was fitted to, in VMs; used beyond, it is flagged", MAX_NODES
    )


class HybridDocument(_FittedCurve):
    """S(n) = c / (1 + exp(-a (n - b))) for n > b and its tangent at b for n <= b (DeepVM eq. 12)."""

    kind: Literal["hybrid"]
    a: Number = _number("steepness of the logistic, 1/VM", above=0, most=1000)
    b: Number = _number("inflection point of the logistic, VMs", least=0, most=1_000_000)
    c: Number = _number("speed-up approached for large n, dimensionless", above=0, most=1_000_000)


class RingParameters(_Object):
    """S(n) = n / (1 + c (n-1)/n + l (n-1)), the cost of a ring all-reduce."""

    c: Number = _number("gradient bytes over bandwidth, in step times of one VM", least=0, most=1_000_000)
    l: Number = _number("latency per hop of the ring, in step times of one VM", least=0, most=1_000_000)  # noqa: E741


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
        description="measured [n, S(n)] pairs: n a whole number of VMs from 1 to 1000000, increasing, at least one "
        "above 1; S(n) the speed-up over one VM, a number from 0.000001 to 1000000, exactly 1 at n = 1; at most 1000",
    )
    beyond: RingParameters | None = Field(
        None, description="ring used beyond the last point: an object with c and l, or null to fit it to the points"
    )


Curve = Annotated[HybridDocument | RingDocument | MeasuredDocument, Field(discriminator="kind")]


class ZoneRow(_Object):
    """The spot price of a type in one zone."""

    zone: Text = _text("id of the zone, such as use1-az4", least=1, most=100, default=_REQUIRED)
    usd_per_hour: Price = Field(
        description=f"spot price there in $/h: a number above 0 and at most {MAX_USD_PER_HOUR} with at most 6 decimals"
    )
    name: Text = _text("what an account calls the zone, such as us-east-1a", most=100)


_Zone = Annotated[Text, Field(min_length=1, max_length=100)]


class InstanceDocument(_Object):
    """One VM type in one region."""

    instance_type: TypeName = _text(
        "the provider's name of the type, such as g4dn.xlarge, unique and not starting with #",
        least=1,
        most=100,
        default=_REQUIRED,
    )
    vcpus: Whole = _number("virtual CPUs", least=1, most=4096, whole=True)
    memory_gib: MemoryGib | None = _unknown("main memory in GiB", MAX_MEMORY_GIB)
    network_gbps: NetworkGbps | None = _unknown("network bandwidth in Gbit/s", MAX_NETWORK_GBPS)
    network_baseline_gbps: NetworkGbps | None = _unknown(
        "what the network sustains in Gbit/s, for --network baseline", MAX_NETWORK_GBPS
    )
    on_demand_usd_per_hour: Price | None = _price("on-demand")
    spot_usd_per_hour: Price | None = _price("spot")
    quota_family: Annotated[Text, Field(min_length=1, max_length=100)] | None = Field(
        None,
        description="the quota its vCPUs count against: one line of 1 to 100 characters, or null for AWS's by the "
        "type's name (such as G and VT for g and vt types, P for p types, Standard for most others)",
    )
    gpu: GpuDocument | None = Field(None, description="its GPUs: an object, or null for a CPU type")
    eflops: Eflops | None = _unknown(
        "measured operations per second in the catalog's eflops_unit", MAX_EFLOPS, "when nobody has profiled it"
    )
    eflops_basis: Text = _text("how eflops was estimated, which needs --estimates; empty when it was measured")
    eflops_source: Text = _text("who measured eflops, where it was not the catalog's own source")
    speedups: list[Curve] = _rows("speed-up curves", most=100, default=[])
    default_speedup: Literal["", "hybrid", "ring", "measured"] = Field(
        "", description="kind of curve to use for this type: hybrid, ring or measured, empty for the catalog's"
    )
    speedup_basis: Text = _text("whose curves these are, which is said as a doubt; empty when its own")
    cpu_architecture: Literal["", "x86_64", "arm64"] = Field(
        "", description="processors: x86_64 or arm64, empty when unknown"
    )
    burstable: bool = Field(
        False, description="whether it runs at full speed only while it has credits: true or false", strict=True
    )
    current_generation: bool = Field(
        True, description="whether it is still sold as current: true or false", strict=True
    )
    interruption_band: Annotated[int, Field(ge=0, le=4), BeforeValidator(_as_whole)] | None = Field(
        None,
        description="how often it is taken away: 0 to 4 for below 5, 5 to 10, 10 to 15, 15 to 20, above 20 % a month, "
        "or null when unknown",
    )
    zones: list[_Zone] = Field(
        [], max_length=1000, description="ids of the zones that offer it: a list of at most 1000 texts; any when empty"
    )
    spot_zones: list[ZoneRow] = _rows(
        "spot prices by zone, the cheapest first, which is spot_usd_per_hour; untold when empty", most=1000, default=[]
    )
    unusable: Text = _text("why no cluster can have it, empty when one can")
    note: Text = _text("anything a reader should know")


class SaturationRow(_Object):
    """How many VMs may send to one memory node before its network saturates."""

    network_gbps: Number = _number("network bandwidth in Gbit/s", above=0, most=MAX_NETWORK_GBPS)
    n_sat: Whole = _number("senders at saturation, VMs", least=1, most=1_000_000, whole=True)


class QuotaRow(_Object):
    """The most vCPUs that an account may run in one family and market."""

    family: Text = _text("quota family, as in quota_family", least=1, most=100, default=_REQUIRED)
    market: Literal["spot", "on-demand"] = Field(description="market: spot or on-demand")
    vcpus: Whole = _number("limit in vCPUs, inclusive", least=0, most=100_000_000, whole=True)
    in_use: Whole = _number("vCPUs that run already", least=0, most=100_000_000, whole=True, default=0)


class CatalogDocument(_Object):
    """Instance types of one region with prices in US dollars an hour, as deepvm reads them."""

    schema_ref: str | None = Field(None, alias="$schema", description="for editors: where this JSON Schema is")
    schema_version: Literal["deepvm.catalog/1"] = Field(description=f"version of the format: {CATALOG_VERSION}")
    name: Text = _text("name of the catalog; the file's name when empty", most=100)
    region: Text = _text("the provider's region, empty when the types are invented", most=100)
    description: Text = _text("what this catalog is")
    prices_as_of: Day | None = Field(
        None, description="the day the prices were true: a date YYYY-MM-DD, or null when there is none"
    )
    source: Text = _text("where the figures come from")
    eflops_unit: Text = _text("what eflops counts, in words", least=1, default="eFLOPS")
    default_speedup: Literal["hybrid", "ring", "measured"] | None = Field(
        None,
        description="kind of curve to use unless asked otherwise: hybrid, ring or measured, or null for the first of "
        "these that a type carries",
    )
    memory_nodes: Literal["real", "paper"] = Field(
        "real",
        description="what a memory node must have: real or paper; real is room for the system and the node beside the "
        "checkpoints, a sustained network, 2 vCPUs, a current generation; paper is the memory of DeepVM's eq. 6 alone",
    )
    n_sat: Annotated[list[SaturationRow], Field(min_length=1, max_length=1000)] | None = Field(
        None,
        description="senders at saturation by bandwidth: a list of 1 to 1000 objects, one for each bandwidth, n_sat "
        "never decreasing with it; or null for DeepVM's Table V",
    )
    quotas: list[QuotaRow] = _rows(
        "account limits, one for each family and market; unlimited without one", most=1000, default=[]
    )
    instances: list[InstanceDocument] = _rows("instance types", least=1, most=20_000, default=_REQUIRED)


class QuotaDocument(_Object):
    """Limits of an account, to be used in place of a catalog's own."""

    schema_ref: str | None = Field(None, alias="$schema", description="for editors: where the JSON Schema is")
    schema_version: Literal["deepvm.quotas/1"] = Field(description=f"version of the format: {QUOTAS_VERSION}")
    quotas: list[QuotaRow] = _rows("account limits, one for each family and market", most=1000, default=_REQUIRED)


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a catalog, units and ranges in the descriptions."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "catalog.schema.json",
        **CatalogDocument.model_json_schema(),
    }
