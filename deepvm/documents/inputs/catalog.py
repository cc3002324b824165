"""Catalogs (JSON, CSV) and quotas as users write them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from deepvm.documents.fields import (
    MAX_NETWORK_GBPS,
    MAX_NODES,
    Day,
    Name,
    Number,
    Price,
    Strict,
    Text,
    TypeName,
    Whole,
    as_number,
    name_of,
    number,
    price,
    rows,
    text,
)

MAX_MEMORY_GIB = 65_536
MAX_GPU_MEMORY_GIB = 4096
MAX_EFLOPS = 1e30


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
    """S(n) = c / (1 + exp(-a (n - b))) for n > b, its tangent at b for n <= b (DeepVM eq. 12)."""

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


_Size = Annotated[int, Field(ge=1, le=1_000_000), BeforeValidator(as_number)]
_Speedup = Annotated[float, Field(ge=0.000001, le=1_000_000), BeforeValidator(as_number)]


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
    )
    current_generation: bool = Field(
        True, description="whether it is still sold as current: true or false"
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
        description="deepvm.catalog/1, the version of the format"
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
