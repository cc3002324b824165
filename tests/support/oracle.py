"""A brute-force oracle for the planner: nested loops and exact fractions, nothing clever.

Written from the specification alone. It shares only the catalog's dataclasses with deepvm: curves,
saturation, money, quotas, objectives and the ranking are worked out here a second time. A request
is anything with the attributes of a ``PlanRequest``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import lru_cache
from typing import Any

from deepvm.core.cluster.instances import Catalog, InstanceType, Market, Quota
from deepvm.core.cluster.memory_nodes import MemoryNodeRule, SaturationTable
from deepvm.core.cluster.speedup import HybridSpeedup, MeasuredSpeedup, RingSpeedup, SpeedupCurve

Value = tuple[Fraction, ...]
TIE = Fraction(1, 10**9)


@dataclass(frozen=True)
class Plan:
    """A feasible cluster at its price.

    ``value`` is what the policy maximizes, as a tuple that sorts: one number for the objectives and
    Cost-First, (eFLOPS, n) for Performance-First. ``zone`` is where the spot VMs stand, empty where
    prices are not told by zone.
    """

    architecture: str
    gpu: str
    count: int
    memory: str
    memory_count: int
    micro_usd: int
    value: Value
    zone: str = ""

    @property
    def cluster(self) -> tuple[str, str, int, str, int]:
        return (self.architecture, self.gpu, self.count, self.memory, self.memory_count)


# --- curves ---------------------------------------------------------------------------------------


def speedup(curve: SpeedupCurve, n: int) -> Fraction:
    """S(n), exact but for exp()."""
    if isinstance(curve, HybridSpeedup):
        a, b, c = (Fraction(x) for x in (curve.a, curve.b, curve.c))
        if n <= b:
            return c / 2 + c * a / 4 * (n - b)
        return c / (1 + Fraction(math.exp(float(-a * (n - b)))))
    if isinstance(curve, RingSpeedup):
        return ring(Fraction(curve.c), Fraction(curve.l), Fraction(n))
    assert isinstance(curve, MeasuredSpeedup)
    points = [(Fraction(x), Fraction(y)) for x, y in curve.points]
    if points[0][0] != 1:
        points.insert(0, (Fraction(1), Fraction(1)))
    last_n, last_s = points[-1]
    if n <= last_n:
        return pchip(points, Fraction(n))
    assert curve.beyond is not None, (
        "the oracle fits nothing: say which ring goes on beyond the points"
    )
    return (
        last_s
        * speedup(curve.beyond, n)
        / ring(Fraction(curve.beyond.c), Fraction(curve.beyond.l), last_n)
    )


def ring(c: Fraction, latency: Fraction, n: Fraction) -> Fraction:
    return n / (1 + c * (n - 1) / n + latency * (n - 1))


def pchip(points: Sequence[tuple[Fraction, Fraction]], x: Fraction) -> Fraction:
    """Monotone cubic Hermite interpolation (Fritsch and Butland 1984, with the usual three-point
    ends).
    """
    steps = [b[0] - a[0] for a, b in zip(points, points[1:], strict=False)]
    slopes = [(b[1] - a[1]) / h for a, b, h in zip(points, points[1:], steps, strict=False)]
    if len(slopes) == 1:
        return points[0][1] + slopes[0] * (x - points[0][0])

    def inner(i: int) -> Fraction:
        before, after = slopes[i - 1], slopes[i]
        if before * after <= 0:
            return Fraction(0)
        w1, w2 = 2 * steps[i] + steps[i - 1], steps[i] + 2 * steps[i - 1]
        return (w1 + w2) / (w1 / before + w2 / after)

    def end(h0: Fraction, h1: Fraction, m0: Fraction, m1: Fraction) -> Fraction:
        d = ((2 * h0 + h1) * m0 - h0 * m1) / (h0 + h1)
        if d * m0 <= 0:
            return Fraction(0)
        return 3 * m0 if m0 * m1 <= 0 and abs(d) > 3 * abs(m0) else d

    tangents = [
        end(steps[0], steps[1], slopes[0], slopes[1]),
        *(inner(i) for i in range(1, len(slopes))),
        end(steps[-1], steps[-2], slopes[-1], slopes[-2]),
    ]
    i = max(i for i in range(len(steps)) if points[i][0] <= x)
    h, t = steps[i], (x - points[i][0]) / steps[i]
    return (
        (1 + 2 * t) * (1 - t) ** 2 * points[i][1]
        + t * (1 - t) ** 2 * h * tangents[i]
        + t * t * (3 - 2 * t) * points[i + 1][1]
        + t * t * (t - 1) * h * tangents[i + 1]
    )


@lru_cache(maxsize=200_000)
def scaling_factor(curve: SpeedupCurve, n: int) -> Fraction:
    """K(n) = S(n)/n held in [0, 1]."""
    return min(Fraction(1), max(Fraction(0), speedup(curve, n) / n))


# --- constraints ----------------------------------------------------------------------------------


def n_sat(table: SaturationTable, gbps: float) -> int:
    """The row at or below the bandwidth, else the first."""
    found = table.n_sat[0]
    for bandwidth, senders in zip(table.network_gbps, table.n_sat, strict=True):
        if bandwidth <= gbps:
            found = senders
    return int(found)


def node_n_sat(catalog: Catalog, gbps: float) -> int:
    """That of a memory node.

    Where networks count as what they sustain, less than the first row goes through 0.
    """
    table = catalog.n_sat
    if not catalog.memory_nodes.sustained or gbps >= table.network_gbps[0]:
        return n_sat(table, gbps)
    return max(
        [
            n
            for n in range(1, table.n_sat[0] + 1)
            if n * Fraction(table.network_gbps[0]) <= table.n_sat[0] * Fraction(gbps)
        ],
        default=1,
    )


def smallest_memory_count(count: int, limit: int) -> int:
    """The smallest m with n/m < n_sat, by trying."""
    m = 1
    while not Fraction(count, m) < limit:
        m += 1
    return m


def micro(price: Decimal | None) -> int | None:
    """Whole micro-dollars."""
    if price is None:
        return None
    exact = Fraction(price) * 10**6
    assert exact.denominator == 1
    return int(exact)


def within_quotas(
    quotas: Iterable[Quota], used: Sequence[tuple[InstanceType, Market, int]]
) -> bool:
    """Every family and market has enough vCPUs for all VMs of the cluster together, inclusive."""
    return all(
        sum(
            i.vcpus * n
            for i, market, n in used
            if i.quota_family == q.family and market is q.market
        )
        <= max(0, q.vcpus - q.in_use)
        for q in quotas
    )


# --- enumeration and ranking ----------------------------------------------------------------------


def plans(catalog: Catalog, request: Any) -> list[Plan]:
    """Every feasible plan at any budget, with the smallest number of memory nodes for each (type,
    n, memory type).

    The same cluster in several zones is one plan, in the zone where it costs least; among equals
    the first by id.
    """
    cheapest: dict[tuple[str, str, int, str, int], Plan] = {}
    for plan in _plans(catalog, request):
        other = cheapest.get(plan.cluster)
        if other is None or (plan.micro_usd, plan.zone) < (other.micro_usd, other.zone):
            cheapest[plan.cluster] = plan
    return list(cheapest.values())


def places(gpu: InstanceType) -> list[tuple[int | None, frozenset[str], str]]:
    """Where spot VMs may stand: price in micro-dollars, the zones that means (none: nobody knows),
    the zone's name.

    Each zone with a price of its own is a place. Where prices are not told by zone, but offers are,
    the price holds in all zones that offer the type.
    """
    if gpu.spot_zones:
        return [(micro(z.usd_per_hour), frozenset({z.zone}), z.zone) for z in gpu.spot_zones]
    return [(micro(gpu.spot_usd_per_hour), frozenset(gpu.zones), "")]


def _plans(catalog: Catalog, request: Any) -> Iterator[Plan]:
    quotas = catalog.quotas if request.quotas is None else request.quotas
    kind = request.speedup.value if request.speedup else catalog.default_speedup
    baseline = request.policy.value in ("cost-first", "performance-first")
    for architecture in ("on-demand", "single-anchor", "spot-storage", "tiering"):
        if (request.architectures and architecture not in request.architectures) or (
            baseline and architecture != "single-anchor"
        ):
            continue
        if (
            architecture in ("on-demand", "spot-storage")
            and not request.architectures
            and request.training is None
        ):
            continue
        for gpu in catalog:
            if gpu.gpu is None or gpu.eflops is None or not _wanted_gpu(gpu, request):
                continue
            if architecture != "on-demand" and gpu.spot_usd_per_hour is None:
                continue
            curves = [c for c in gpu.speedups if c.kind == kind and c.workload is None]
            for n in range(1, request.max_nodes + 1) if curves else ():
                k = scaling_factor(curves[0], n)
                if not k > 0 and request.policy.value == "deepvm":
                    # A cluster that never trains is no answer, to the one policy that looks
                    continue
                if architecture == "on-demand":
                    yield from _on_demand(request, quotas, gpu, n, k)
                    continue
                for spot, zones, zone in places(gpu):
                    found = (
                        _tiering(catalog, request, quotas, gpu, spot, zones, n, k)
                        if architecture == "tiering"
                        else (
                            _single_anchor(request, quotas, gpu, spot, n, k)
                            if architecture == "single-anchor"
                            else _spot_storage(request, quotas, gpu, spot, n, k)
                        )
                    )
                    yield from (replace(plan, zone=zone) for plan in found)


def _on_demand(
    request: Any, quotas: Iterable[Quota], gpu: InstanceType, n: int, k: Fraction
) -> Iterator[Plan]:
    price = micro(gpu.on_demand_usd_per_hour)
    if price is not None and within_quotas(quotas, [(gpu, Market.ON_DEMAND, n)]):
        yield Plan(
            "on-demand",
            gpu.name,
            n,
            "",
            0,
            n * price,
            value(request, gpu, None, 0, n, k, n * price),
        )


def _single_anchor(
    request: Any, quotas: Iterable[Quota], gpu: InstanceType, spot: int | None, n: int, k: Fraction
) -> Iterator[Plan]:
    on_demand = micro(gpu.on_demand_usd_per_hour)
    if n < 2 or spot is None or on_demand is None:
        return
    if within_quotas(quotas, [(gpu, Market.SPOT, n - 1), (gpu, Market.ON_DEMAND, 1)]):
        price = (n - 1) * spot + on_demand
        yield Plan(
            "single-anchor",
            gpu.name,
            n,
            "",
            0,
            price,
            value(request, gpu, spot, n - 1, 1, k, price),
        )


def _spot_storage(
    request: Any, quotas: Iterable[Quota], gpu: InstanceType, spot: int | None, n: int, k: Fraction
) -> Iterator[Plan]:
    if spot is not None and within_quotas(quotas, [(gpu, Market.SPOT, n)]):
        yield Plan(
            "spot-storage",
            gpu.name,
            n,
            "",
            0,
            n * spot,
            value(request, gpu, spot, n, 0, k, n * spot),
        )


def _tiering(
    catalog: Catalog,
    request: Any,
    quotas: Iterable[Quota],
    gpu: InstanceType,
    spot: int | None,
    zones: frozenset[str],
    n: int,
    k: Fraction,
) -> Iterator[Plan]:
    for cpu in catalog:
        on_demand = micro(cpu.on_demand_usd_per_hour)
        if (
            cpu.gpu is not None
            or on_demand is None
            or not _wanted_cpu(cpu, catalog, request)
            or cpu.memory_gib is None
        ):
            continue
        rule = catalog.memory_nodes
        gbps = cpu.network_gbps
        if rule.sustained and cpu.network_baseline_gbps is not None:
            gbps = cpu.network_baseline_gbps
        if gpu.network_gbps is None or gbps is None:
            continue
        if zones and cpu.zones and not zones & set(cpu.zones):
            continue
        limit = min(n_sat(catalog.n_sat, gpu.network_gbps), node_n_sat(catalog, gbps))
        m = smallest_memory_count(n, limit)
        while m <= 64 and not holds(cpu, m, rule, request.checkpoint_bytes, request.buffers):
            m += 1
        if m > 64 and (
            rule.shared or not holds(cpu, m, rule, request.checkpoint_bytes, request.buffers)
        ):
            continue
        if within_quotas(quotas, [(gpu, Market.SPOT, n), (cpu, Market.ON_DEMAND, m)]):
            assert spot is not None
            price = n * spot + m * on_demand
            yield Plan(
                "tiering",
                gpu.name,
                n,
                cpu.name,
                m,
                price,
                value(request, gpu, spot, n, 0, k, price),
            )


def holds(cpu: InstanceType, m: int, rule: MemoryNodeRule, size: int, buffers: int) -> bool:
    """Whether m nodes have room for all buffers: each for itself, or together, with 16 MB more for
    each part.
    """
    assert cpu.memory_gib is not None
    taken = rule.reserved_bytes + Fraction(cpu.memory_gib) * 2**30 * rule.reserved_percent / 100
    room = Fraction(cpu.memory_gib) * 2**30 - taken
    return room >= size * buffers or (
        rule.shared and m * (math.floor(room) - buffers * 16 * 10**6) >= size * buffers
    )


def _wanted_gpu(gpu: InstanceType, request: Any) -> bool:
    assert gpu.gpu is not None
    memory = None if gpu.gpu.memory_gib is None else Fraction(gpu.gpu.memory_gib) * 2**30
    return (
        _wanted(gpu, request)
        and (request.estimates or not gpu.eflops_basis)
        and _between(gpu.gpu.count, request.gpus_per_vm)
        and _between(memory, request.gpu_memory_bytes)
        and _between(memory and memory * gpu.gpu.count, request.gpu_total_memory_bytes)
        and (not request.gpus or any(fnmatchcase(gpu.gpu.name, g) for g in request.gpus))
        and (
            not request.instance_types
            or any(fnmatchcase(gpu.name, g) for g in request.instance_types)
        )
        and not any(fnmatchcase(gpu.name, g) for g in request.exclude)
    )


def _wanted_cpu(cpu: InstanceType, catalog: Catalog, request: Any) -> bool:
    rule = catalog.memory_nodes
    unloved = (
        (cpu.burstable and not request.burstable)
        or (rule.current and request.generation.value == "auto" and not cpu.current_generation)
        or cpu.vcpus < rule.least_vcpus
    )
    if not _wanted(cpu, request) or (unloved and cpu.name not in request.memory_nodes):
        return False
    return (
        not request.memory_nodes or any(fnmatchcase(cpu.name, g) for g in request.memory_nodes)
    ) and not any(fnmatchcase(cpu.name, g) for g in request.exclude)


def _wanted(instance: InstanceType, request: Any) -> bool:
    if instance.unusable or (
        request.generation.value == "current" and not instance.current_generation
    ):
        return False
    return (
        request.cpu_architecture is None
        or instance.cpu_architecture == request.cpu_architecture.value
    )


def _between(number: Fraction | int | None, bounds: Any) -> bool:
    if bounds.least is None and bounds.most is None:
        return True
    if number is None:
        return False
    return (bounds.least is None or number >= bounds.least) and (
        bounds.most is None or number <= bounds.most
    )


def value(
    request: Any,
    gpu: InstanceType,
    spot_price: int | None,
    spot: int,
    on_demand: int,
    k: Fraction,
    price: int,
) -> Value:
    """What the policy maximizes; ``spot_price`` is that of one VM where it stands, micro-dollars an
    hour.
    """
    policy, objective = request.policy.value, request.objective.value
    assert gpu.eflops is not None
    eflops, n = Fraction(gpu.eflops), spot + on_demand
    if policy == "cost-first":
        return (Fraction(n),)
    if policy == "performance-first":
        return (eflops, Fraction(n))
    if policy == "noscale":
        k = Fraction(1)
    if objective == "throughput":
        return (eflops * n * k,)
    if objective == "cost-per-work":
        return (-Fraction(price, 10**6) / (eflops * n * k),)
    assert objective == "flopp"
    z = Fraction(0)
    for count, price_of_one in ((spot, spot_price), (on_demand, micro(gpu.on_demand_usd_per_hour))):
        if count:
            assert price_of_one is not None
            z += count * eflops / Fraction(price_of_one, 10**6)
    return (z * k,)


def as_good_as(value: Value, best: Value) -> bool:
    """Whether a value ties with the best: within 1e-9, or equal for Performance-First."""
    if len(best) > 1:
        return value == best
    return value[0] >= best[0] - abs(best[0]) * TIE


def ranking(found: Iterable[Plan], budget: Decimal, top: int) -> list[Plan]:
    """Repeatedly the best of what is left.

    Of all that tie with it the cheapest, then the fewest nodes, then names.
    """
    left = [p for p in found if Fraction(p.micro_usd, 10**6) <= Fraction(budget)]
    ranked: list[Plan] = []
    while left and len(ranked) < top:
        best = max(p.value for p in left)
        tied = [p for p in left if as_good_as(p.value, best)]
        first = min(
            tied,
            key=lambda p: (p.micro_usd, p.memory_count, p.architecture, p.gpu, p.count, p.memory),
        )
        ranked.append(first)
        left.remove(first)
    return ranked


def answer(catalog: Catalog, request: Any) -> list[Plan]:
    """The ranked plans that a request asks for."""
    return ranking(plans(catalog, request), request.budget, request.top)
