"""Random catalogs and requests, with everything that real price lists and users do to a planner.

Types come from pools that are made once from a fixed seed; Hypothesis chooses among them. That is
several times faster than drawing every field of every type, and a failing example still shrinks to
few types and to the first of the pool.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from hypothesis import assume
from hypothesis import strategies as st

from deepvm.core.cluster.instances import Catalog, Gpu, InstanceType, Market, Quota, ZonePrice
from deepvm.core.cluster.memory_nodes import PAPER_NODES, PAPER_TABLE, REAL_NODES, SaturationTable
from deepvm.core.cluster.speedup import HybridSpeedup, MeasuredSpeedup, RingSpeedup, SpeedupCurve
from deepvm.planner.request import (
    ANY_NUMBER,
    WORK_OBJECTIVES,
    CpuArchitecture,
    Generation,
    Objective,
    PlanRequest,
    PolicyName,
    Range,
    SpeedupKind,
)
from support import oracle
from support.builders import catalog, cpu_type, gpu_type

# The order of names is neither that of numbers nor that of the catalog, and case counts.
GPU_NAMES = ("g2.x", "g10.x", "a1.x", "Z9.x")
CPU_NAMES = ("c5.x", "c10.x", "b1.x", "Y7.x", "m6.x")
FAMILIES = ("G", "Standard")
KINDS = ("hybrid", "ring", "measured")


@dataclass(frozen=True)
class Case:
    """A catalog and what is asked of it."""

    catalog: Catalog
    request: PlanRequest


@dataclass(frozen=True)
class Pool:
    """Types to choose from."""

    gpus: tuple[InstanceType, ...]
    cpus: tuple[InstanceType, ...]


def usd(micro: int) -> Decimal:
    return Decimal(micro) / 10**6


def ordinary_price(rng: random.Random) -> int:
    """Micro-dollars an hour: often one of a few equal ones, else any with six decimals."""
    few = (100_000, 200_000, 300_000, 157_800, 333_333, 333_334, 66_000)
    return rng.choice(few) if rng.random() < 0.5 else rng.randint(1, 2_000_000)


def extreme_price(rng: random.Random) -> int:
    """From the cheapest VM to the dearest that anybody rents out ($250/h), often a micro-dollar
    apart.
    """
    return rng.choice(
        (
            249_999_999,
            249_999_998,
            125_000_001,
            124_999_999,
            12_345_678,
            12_345_679,
            12_345_680,
            2_001,
            2_000,
            1_999,
        )
    )


def absurd_price(rng: random.Random) -> int:
    """Prices at which a micro-dollar is far below what floating-point solvers can tell apart."""
    return rng.choice(
        (
            99_999_999_999,
            99_999_999_998,
            50_000_000_001,
            49_999_999_999,
            12_345_678,
            12_345_679,
            1,
            2,
            3,
        )
    )


def curve(rng: random.Random, kind: str) -> SpeedupCurve:
    """A sane curve as often as one that is negative, exceeds n, or falls.

    No tangent is exactly 0 at a whole n (b - 2/a is never whole): there, rounding decides whether a
    cluster trains.
    """
    if kind == "hybrid":
        return HybridSpeedup(
            rng.choice((0.05, 0.09, 0.1339, 0.2, 0.5)),
            rng.choice((0.3, 1.7, 3.3, 9.9, 14.5, 20.1)),
            rng.choice((0.7, 1.0, 4.96, 6.2, 13.5, 40.0)),
        )
    ring = RingSpeedup(rng.choice((0.0, 0.5, 2.0, 6.7)), rng.choice((0.0, 0.03, 0.124, 1.0)))
    if kind == "ring":
        return ring
    sizes = sorted(rng.sample(range(2, 13), rng.randint(1, 5)))
    points = [(float(n), rng.choice((0.5, 0.8, 1.2, 1.9, 2.5, 3.7, 20.0))) for n in sizes]
    if rng.random() < 0.5:
        points.insert(0, (1.0, 1.0))
    # `beyond` is always given: the fit has tests of its own, and an exact oracle has no use for a
    # second optimiser.
    return MeasuredSpeedup(tuple(points), ring)


def traits_of(some: Callable[[object, object], object]) -> dict[str, object]:
    """What the filters look at, and what makes a type useless."""
    return {
        "cpu_architecture": some("arm64", some("", "x86_64")),
        "current_generation": some(False, True),
        "unusable": some("a share of a GPU", "") if some(True, False) else "",
    }


def make_pool(price: Callable[[random.Random], int], seed: int = 2023, size: int = 400) -> Pool:
    rng, traits = random.Random(seed), random.Random(seed + 1)

    def some(value: object, otherwise: object) -> object:
        return value if traits.random() < 0.15 else otherwise

    def mostly(value: object, unknown: float = 0.07) -> object:
        return None if rng.random() < unknown else value

    def network() -> object:
        return mostly(rng.choice((0.1, 1.0, 5.0, 7.5, 10.0, 12.5, 25.0, 100.0)))

    def zoned(spot: Decimal | None) -> dict[str, object]:
        """Spot prices by zone, or the zones alone, or neither.

        Zones may cost the same, and a micro-dollar more.
        """
        kind = traits.random()
        names = traits.sample("ABC", traits.randint(1, 3))
        if spot is None or kind < 0.4:
            return {"zones": tuple(sorted(names)) if 0.2 < kind < 0.4 else ()}
        prices = [
            spot,
            *(spot + usd(traits.choice((0, 1, 1000, price(traits)))) for _ in names[1:]),
        ]
        rows = sorted(zip(prices, sorted(names) if kind < 0.7 else names, strict=True))
        return {
            "spot_zones": tuple(ZonePrice(z, p) for p, z in rows),
            "zones": tuple(names) if kind < 0.8 else (),
        }

    gpus, cpus = [], []
    for _ in range(size):
        spot = mostly(usd(price(rng)))
        curves = [curve(rng, kind) for kind in KINDS if rng.random() < 0.85]
        # The curve of one workload stands first and must never be taken for the general one
        if rng.random() < 0.3:
            curves.insert(0, HybridSpeedup(0.2, 0.3, 40.0, workload="resnet"))
        gpus.append(
            gpu_type(
                on_demand_usd_per_hour=mostly(usd(price(rng))),
                spot_usd_per_hour=spot,
                network_gbps=network(),
                vcpus=rng.choice((1, 4, 4, 8, 96)),
                eflops=mostly(rng.choice((50.0, 100.0, 100.0, 200.0, 377.0, 696.5))),
                speedups=tuple(curves),
                quota_family=rng.choice(FAMILIES),
                gpu=Gpu("T4", traits.choice((1, 1, 1, 2, 8)), traits.choice((16.0, 22.352, None))),
                eflops_basis=some("guessed", ""),
                **zoned(spot),
                **traits_of(some),
            )
        )
        cpus.append(
            cpu_type(
                on_demand_usd_per_hour=mostly(usd(price(rng))),
                memory_gib=mostly(rng.choice((0.5, 1.0, 7.5, 16.0, 16.0))),
                network_gbps=network(),
                network_baseline_gbps=some(traits.choice((0.1, 0.2, 0.7, 5.0, 25.0)), None),
                vcpus=rng.choice((1, 4, 4, 8, 96)),
                quota_family=rng.choice(FAMILIES),
                burstable=some(True, False),
                zones=traits.choice(((), ("A",), ("B",), ("C",), ("A", "B"), ("A", "B", "C"))),
                **traits_of(some),
            )
        )
    return Pool(tuple(gpus), tuple(cpus))


# By name: Hypothesis writes the arguments of a strategy into its messages.
POOLS = {
    "ordinary": make_pool(ordinary_price),
    "extreme": make_pool(extreme_price),
    "absurd": make_pool(absurd_price),
}

SATURATION = (
    PAPER_TABLE,
    SaturationTable((1.0,), (1,)),
    SaturationTable((1.0, 5.0, 10.0, 25.0), (1, 2, 3, 5)),
    SaturationTable((0.5, 12.5), (2, 4)),
)
NODE_RULES = (
    PAPER_NODES,
    REAL_NODES,
    replace(REAL_NODES, reserved_bytes=2**28 + 1, reserved_percent=33),
)
ARCHITECTURES = (
    (),
    (),
    (),
    ("tiering",),
    ("single-anchor",),
    ("tiering", "single-anchor"),
    ("tiering", "spot-storage"),
    ("on-demand", "single-anchor"),
)
PLACES = tuple((f, m) for f in FAMILIES for m in Market)


@st.composite
def types(
    draw: st.DrawFn, kind: str, pool: str, names: Sequence[str], fewest: int
) -> list[InstanceType]:
    """Some types of a pool under some of the names; a type drawn as None is a twin of the first."""
    count = draw(st.sampled_from([n for n in (2, 3, 4, 5, 1, 0) if fewest <= n <= len(names)]))
    order = draw(st.permutations(names))[:count]
    choices: tuple[InstanceType, ...] = getattr(POOLS[pool], kind)
    rows = [draw(st.one_of(*[st.integers(0, len(choices) - 1)] * 4, st.none())) for _ in order]
    bodies = [choices[0 if row is None else row] for row in rows]
    return [
        replace(bodies[0] if row is None else body, name=name)
        for name, row, body in zip(order, rows, bodies, strict=True)
    ]


@st.composite
def quota_sets(draw: st.DrawFn) -> tuple[Quota, ...]:
    places = draw(st.sets(st.sampled_from(range(len(PLACES))), max_size=4))
    limits = st.sampled_from([400, 400, 96, 33, 32, 31, 12, 4, 3, 1, 0])
    in_use = st.sampled_from([0, 0, 0, 1, 40])
    return tuple(Quota(*PLACES[p], draw(limits), draw(in_use)) for p in sorted(places))


BOUNDS = (ANY_NUMBER, *[ANY_NUMBER] * 5)
GIB = 2**30


@st.composite
def filters(draw: st.DrawFn) -> dict[str, object]:
    """None in most cases: each leaves out types, and a case without types shows little."""
    if draw(st.integers(0, 3)):
        return {"estimates": draw(st.booleans()), "burstable": draw(st.booleans())}
    each = (Range(16 * GIB, None), Range(None, 16 * GIB), Range(17 * GIB, 30 * GIB), Range(1, None))
    return {
        "gpus_per_vm": draw(
            st.sampled_from([*BOUNDS, Range(1, 1), Range(2, None), Range(None, 2)])
        ),
        "gpu_memory_bytes": draw(st.sampled_from([*BOUNDS, *each])),
        "gpu_total_memory_bytes": draw(
            st.sampled_from([*BOUNDS, Range(32 * GIB, None), Range(None, 40 * GIB)])
        ),
        "cpu_architecture": draw(st.sampled_from([None, None, *CpuArchitecture])),
        "generation": draw(st.sampled_from(Generation)),
        "estimates": draw(st.booleans()),
        "burstable": draw(st.booleans()),
    }


@st.composite
def cases(draw: st.DrawFn, pool: str = "ordinary") -> Case:
    """A case in which at least one type has a curve.

    Half of the budgets lie exactly at, or just below, a plan.
    """
    gpus = draw(
        types("gpus", pool, GPU_NAMES, 1).filter(
            lambda found: any(t.curve(k) for t in found for k in KINDS)
        )
    )
    kinds = [k for k in KINDS if any(t.curve(k) for t in gpus)]
    instances = [*gpus, *draw(types("cpus", pool, CPU_NAMES, 0))]
    unit = draw(st.sampled_from([1.0, 1e-3, 5e10]))  # what eFLOPS counts is up to the catalog
    instances = [replace(i, eflops=i.eflops * unit) if i.eflops else i for i in instances]
    random.Random(draw(st.integers(0, 99))).shuffle(instances)
    shop = catalog(
        *instances,
        n_sat=draw(st.sampled_from(SATURATION)),
        quotas=draw(st.one_of(*[st.just(())] * 3, quota_sets())),
        default_speedup=draw(st.sampled_from(kinds)),
        memory_nodes=draw(st.sampled_from(NODE_RULES)),
    )
    request = PlanRequest(
        budget=Decimal(0),
        checkpoint_bytes=draw(
            st.sampled_from(
                [300_000_000, 300_000_000, 2**28, 1, 4 * 10**9, 40 * 10**9, 500 * 10**9]
            )
        ),
        buffers=draw(st.integers(1, 3)),
        objective=draw(st.sampled_from([o for o in Objective if o not in WORK_OBJECTIVES])),
        policy=draw(st.sampled_from([*[PolicyName.DEEPVM] * 3, *PolicyName])),
        architectures=draw(st.sampled_from(ARCHITECTURES)),
        speedup=draw(st.sampled_from([None, *map(SpeedupKind, kinds)])),
        max_nodes=draw(st.sampled_from([12, 11, 8, 5, 3, 2, 1])),
        quotas=draw(st.one_of(*[st.none()] * 5, quota_sets())),
        top=draw(st.integers(1, 5)),
        **draw(filters()),  # type: ignore[arg-type]
    )
    return Case(shop, replace(request, budget=draw(budgets_for(shop, request))))


@st.composite
def budgets_for(draw: st.DrawFn, shop: Catalog, request: PlanRequest) -> Decimal:
    """Anything; the exact price of a plan; a micro-dollar or less below it."""
    found = oracle.plans(shop, request)
    assume(found or draw(st.integers(0, 4)) == 0)
    # An index far above the number of plans: Hypothesis prefers small numbers, and the first plans
    # are small clusters.
    price = found[draw(st.integers(0, 10**6)) % len(found)].micro_usd if found else 0
    below = draw(st.sampled_from([Decimal(0), Decimal(0), usd(1), Decimal("0.0000005"), None]))
    if below is None or not found:
        return draw(
            st.sampled_from(
                [Decimal(10**6), Decimal(2), Decimal("7.123456"), Decimal("0.5"), Decimal(0)]
            )
        )
    return max(Decimal(0), usd(price) - below)


def repriced(instance: InstanceType, spot: Callable[[Decimal], Decimal]) -> InstanceType:
    """The type with other spot prices, that of each zone included."""
    price = instance.spot_usd_per_hour
    zones = tuple(replace(z, usd_per_hour=spot(z.usd_per_hour)) for z in instance.spot_zones)
    return replace(
        instance, spot_usd_per_hour=None if price is None else spot(price), spot_zones=zones
    )


def with_twins(shop: Catalog, rename: Callable[[str], str]) -> Catalog:
    """The catalog with a twin of every type."""
    return replace(shop, instances=(*shop, *(replace(i, name=rename(i.name)) for i in shop)))
