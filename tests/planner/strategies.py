"""Random catalogues and requests, with everything that real price lists and users do to a planner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TypeVar

from hypothesis import strategies as st

from deepvm.core.instances import Catalog, InstanceType, Market, Quota
from deepvm.core.saturation import PAPER_TABLE, SaturationTable
from deepvm.core.speedup import HybridSpeedup, MeasuredSpeedup, RingSpeedup, SpeedupCurve
from deepvm.planner.request import Objective, PlanRequest, PolicyName, SpeedupKind
from tests import oracle
from tests.builders import catalog, cpu_type, gpu_type

# The order of names is neither that of numbers nor that of the catalogue, and case counts.
_T = TypeVar("_T")

GPU_NAMES = ("g2.x", "g10.x", "a1.x", "Z9.x")
CPU_NAMES = ("c5.x", "c10.x", "b1.x", "Y7.x", "m6.x")
FAMILIES = ("G", "Standard")


Prices = st.SearchStrategy[Decimal]


@dataclass(frozen=True)
class Case:
    """A catalogue and what is asked of it."""

    catalog: Catalog
    request: PlanRequest


def usd(micro: int) -> Decimal:
    return Decimal(micro) / 10**6


prices = st.one_of(
    st.sampled_from([100_000, 200_000, 300_000, 157_800, 333_333, 333_334]),
    st.integers(1, 2_000_000),
).map(usd)
# Prices at which a micro-dollar is far below the tolerances of any floating-point solver.
extreme_prices = st.sampled_from(
    [99_999_999_999, 99_999_999_998, 50_000_000_001, 49_999_999_999, 12_345_678, 12_345_679, 12_345_680, 1, 2, 3]
).map(usd)
bandwidths = st.sampled_from([0.1, 1.0, 5.0, 7.5, 10.0, 12.5, 25.0, 100.0])


def _mostly(strategy: st.SearchStrategy[_T]) -> st.SearchStrategy[_T | None]:
    """Unknown now and then."""
    return st.one_of(strategy, strategy, strategy, strategy, st.none())


vcpus = st.sampled_from([1, 4, 4, 8, 96])

# No whole n lies where a tangent is exactly 0: b - 2/a is never whole.
hybrid_curves = st.builds(
    HybridSpeedup,
    st.sampled_from([0.05, 0.09, 0.1339, 0.2, 0.5]),
    st.sampled_from([0.3, 1.7, 3.3, 9.9, 14.5, 20.1]),
    st.sampled_from([0.7, 1.0, 4.96, 6.2, 13.5, 40.0]),
)
ring_curves = st.builds(RingSpeedup, st.sampled_from([0.0, 0.5, 2.0, 6.7]), st.sampled_from([0.0, 0.03, 0.124, 1.0]))


@st.composite
def measured_curves(draw: st.DrawFn) -> MeasuredSpeedup:
    sizes = sorted(draw(st.sets(st.integers(2, 12), min_size=1, max_size=5)))
    values = [draw(st.sampled_from([0.5, 0.8, 1.2, 1.9, 2.5, 3.7, 20.0])) for _ in sizes]
    first = [(1.0, 1.0)] if draw(st.booleans()) else []
    points = (*first, *((float(n), s) for n, s in zip(sizes, values, strict=True)))
    return MeasuredSpeedup(points, draw(st.none() | ring_curves))


CURVES: dict[str, st.SearchStrategy[SpeedupCurve]] = {
    "hybrid": hybrid_curves,
    "ring": ring_curves,
    "measured": measured_curves(),
}


@st.composite
def curves_of_a_type(draw: st.DrawFn) -> tuple[SpeedupCurve, ...]:
    kinds = draw(st.sampled_from([("hybrid",), ("ring",), ("hybrid", "ring"), ("hybrid", "ring", "measured"), ()]))
    general = [draw(CURVES[k]) for k in kinds]
    # A curve of one workload stands first and must never be taken for the general one.
    special = [HybridSpeedup(0.2, 0.3, 40.0, workload="resnet")] if draw(st.booleans()) else []
    return (*special, *general)


@st.composite
def gpu_types(draw: st.DrawFn, prices: Prices = prices) -> list[InstanceType]:
    types: list[InstanceType] = []
    for name in draw(st.permutations(GPU_NAMES))[: draw(st.integers(1, 4))]:
        if types and draw(st.integers(0, 3)) == 0:
            types.append(replace(draw(st.sampled_from(types)), name=name))  # an identical twin
            continue
        types.append(
            gpu_type(
                name,
                on_demand_usd_per_hour=draw(_mostly(prices)),
                spot_usd_per_hour=draw(_mostly(prices)),
                network_gbps=draw(_mostly(bandwidths)),
                vcpus=draw(vcpus),
                eflops=draw(st.sampled_from([50.0, 100.0, 100.0, 200.0, 377.0, 696.5, 1e-3, 5e12, None])),
                speedups=draw(curves_of_a_type()),
                quota_family=draw(st.sampled_from(FAMILIES)),
            )
        )
    return types


@st.composite
def cpu_types(draw: st.DrawFn, prices: Prices = prices) -> list[InstanceType]:
    types: list[InstanceType] = []
    for name in draw(st.permutations(CPU_NAMES))[: draw(st.integers(0, 5))]:
        if types and draw(st.integers(0, 3)) == 0:
            types.append(replace(draw(st.sampled_from(types)), name=name))
            continue
        types.append(
            cpu_type(
                name,
                on_demand_usd_per_hour=draw(_mostly(prices)),
                memory_gib=draw(st.sampled_from([0.5, 1.0, 7.5, 16.0, 16.0, None])),
                network_gbps=draw(_mostly(bandwidths)),
                vcpus=draw(vcpus),
                quota_family=draw(st.sampled_from(FAMILIES)),
            )
        )
    return types


saturation_tables = st.sampled_from(
    [
        PAPER_TABLE,
        SaturationTable((1.0,), (1,)),
        SaturationTable((1.0, 5.0, 10.0, 25.0), (1, 2, 3, 5)),
        SaturationTable((0.5, 12.5), (2, 4)),
    ]
)


@st.composite
def quota_sets(draw: st.DrawFn) -> tuple[Quota, ...]:
    places = draw(st.sets(st.sampled_from([(f, m) for f in FAMILIES for m in Market]), max_size=4))
    limits = st.sampled_from([0, 1, 3, 4, 12, 31, 32, 33, 400])
    return tuple(Quota(f, m, draw(limits)) for f, m in sorted(places))


@st.composite
def cases(draw: st.DrawFn, prices: Prices = prices) -> Case:
    """A case that at least one type has curves for; about every third budget is the exact price of a plan."""
    instances = draw(gpu_types(prices).filter(lambda types: any(c.workload is None for t in types for c in t.speedups)))
    kinds = sorted({c.kind for t in instances for c in t.speedups if c.workload is None})
    mixed = draw(st.permutations([*instances, *draw(cpu_types(prices))]))
    shop = catalog(
        *mixed,
        n_sat=draw(saturation_tables),
        quotas=draw(st.one_of(st.just(()), quota_sets())),
        default_speedup=draw(st.sampled_from(kinds)),
    )
    request = PlanRequest(
        budget=Decimal(0),
        checkpoint_bytes=draw(st.sampled_from([1, 300_000_000, 2**29, 4 * 10**9])),
        buffers=draw(st.integers(1, 3)),
        objective=draw(st.sampled_from(Objective)),
        policy=draw(st.sampled_from([PolicyName.DEEPVM, PolicyName.DEEPVM, *PolicyName])),
        architectures=draw(st.sampled_from([(), (), ("tiering",), ("single-anchor",), ("tiering", "single-anchor")])),
        speedup=draw(st.none() | st.sampled_from([SpeedupKind(k) for k in kinds])),
        max_nodes=draw(st.integers(1, 12)),
        quotas=draw(st.one_of(st.none(), st.none(), quota_sets())),
        top=draw(st.integers(1, 5)),
    )
    return Case(shop, replace(request, budget=draw(budgets_for(shop, request))))


@st.composite
def budgets_for(draw: st.DrawFn, shop: Catalog, request: PlanRequest) -> Decimal:
    """Anything; the exact price of a plan; a micro-dollar or less on either side of it."""
    found = oracle.plans(shop, request)
    choice = draw(st.integers(0, 5)) if found else 0
    if choice < 2:
        return draw(st.one_of(st.just(Decimal(0)), st.integers(0, 20_000_000).map(usd), st.just(Decimal(10**6))))
    exact = usd(draw(st.sampled_from(found)).micro_usd)
    return max(Decimal(0), exact + {2: Decimal(0), 3: Decimal(0), 4: -usd(1), 5: -Decimal("0.0000005")}[choice])


def with_twins(shop: Catalog, rename: Callable[[str], str]) -> Catalog:
    """The catalogue with a twin of every type."""
    return replace(shop, instances=(*shop, *(replace(i, name=rename(i.name)) for i in shop)))
