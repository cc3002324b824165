"""A brute-force oracle for plans that train a model: nested loops over dictionaries, nothing of the
planner's.

A shop is a dictionary, as :mod:`support.planner.trained_cases` makes them. Money is whole
micro-dollars. The speed of a type is a table, of n = 1, 2, ... VMs; None where the model does not
fit. What preemptions leave of it is worked out here a second time, from the page of the method.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple

MONTH_S = 365.25 / 12 * 86400
BANDS = {0: 0.025, 1: 0.075, 2: 0.125, 3: 0.175, 4: 0.25, None: 0.25}
START_S = (62 + 218) / 2 + (143.2 + 183.2) / 2
TIE = 1e-9
Z80 = 1.2815515655446004
GROWTH = 0.05
"""How much less is known of a speed with each e-fold of VMs."""


class Plan(NamedTuple):
    """A feasible cluster at its price; ``value``: higher is better."""

    architecture: str
    gpu: str
    count: int
    memory: str
    memory_count: int
    price: int
    zone: str
    value: float
    vcpus: int
    band: int
    trusted: bool
    sd: float
    late: float
    speed: float
    bad: float
    """The speed at a bad time."""
    spread: float
    slow_s: float
    """The bill of a slow run at a bad time over that of a fast one at a good time."""

    @property
    def cluster(self) -> tuple[str, str, int, str, int]:
        return self[:5]


# --- what preemptions leave -----------------------------------------------------------------------


def lives_s(shop: dict[str, Any], gpu: dict[str, Any]) -> tuple[float, float, float]:
    """Of one spot VM: the user's figure, else four hours, AWS's band, and their geometric mean.

    In the order at a bad time, usual, at a good time.
    """
    if shop["life_s"] is not None:
        return (float(shop["life_s"]),) * 3
    good = -MONTH_S / math.log(1 - BANDS[gpu["band"]])
    return 4 * 3600, math.sqrt(4 * 3600 * good), good


def received_s(shop: dict[str, Any]) -> float:
    """In which memory nodes receive a version: ten seconds, or at the speed of one VM's writes to a
    bucket.
    """
    return max(10.0, shop["checkpoint"] / 1.25e9)


def kept(
    shop: dict[str, Any],
    gpu: dict[str, Any],
    count: int,
    spot: int,
    architecture: str,
    life_s: float,
) -> float:
    """Share of the throughput that is left with the best time between two saves."""
    if not spot:
        return 1.0
    each = shop["checkpoint"] / (count if shop["method"] == "fsdp" else 1)
    reach = (gpu["baseline"] or gpu["network"] or 5.0) / 8 * 1e9 * 0.8
    if architecture == "spot-storage":
        reach = min(reach, 1.25e9)
    # An anchor receives the parts of all others.
    parts = count - 1 if architecture == "single-anchor" and shop["method"] == "fsdp" else 1
    stall, moved = max(0.01, each / gpu["gpus"] / 6e9), parts * each / reach
    if architecture == "tiering":
        moved = max(moved, received_s(shop))
    rate = max(1e-15, spot / life_s)
    work = max(math.sqrt(2 * stall / rate), moved)
    waiting = rate * (START_S + 2 * moved)
    if waiting + rate * (work + stall) > 700:
        return 0.0
    return min(1.0, rate * work / math.exp(waiting) / math.expm1(rate * (work + stall)))


# --- constraints ----------------------------------------------------------------------------------


def n_sat(shop: dict[str, Any], gbps: float) -> int:
    found = shop["n_sat"][0][1]
    for row, senders in shop["n_sat"]:
        if row <= gbps:
            found = senders
    return int(found)


def node_n_sat(shop: dict[str, Any], gbps: float) -> int:
    row, senders = shop["n_sat"][0]
    if shop["rule"] == "paper" or gbps >= row:
        return n_sat(shop, gbps)
    return max(1, math.floor(Fraction(gbps) * senders / Fraction(row)))


def holds(shop: dict[str, Any], node: dict[str, Any], m: int) -> bool:
    """Whether m nodes hold all checkpoints: each alone by the paper's rule, else together."""
    memory, needed = int(node["gib"] * 2**30), shop["checkpoint"] * shop["buffers"]
    if shop["rule"] == "paper":
        return memory >= needed
    room = memory * 85 // 100 - 900_000_000
    if m == 1:
        return room >= needed
    return room >= needed or m * (room - 16_000_000 * shop["buffers"]) >= needed


def receives(shop: dict[str, Any], gbps: float, m: int) -> bool:
    """Whether m nodes, at four fifths of their networks, receive a version in time."""
    return m * gbps * 0.8 / 8 * 1e9 * (1 + 1e-12) >= shop["checkpoint"] / received_s(shop)


def nodes_for(
    shop: dict[str, Any], gpu: dict[str, Any], node: dict[str, Any], count: int
) -> int | None:
    """The fewest memory nodes, by trying; None if none will do."""
    gbps = node["network"]
    if shop["rule"] == "real" and node["baseline"] is not None:
        gbps = node["baseline"]
    if gpu["network"] is None or gbps is None or node["on_demand"] is None:
        return None
    if shop["rule"] == "real" and node["vcpus"] < 2:
        return None
    most = count + 200 if shop["rule"] == "paper" else 64
    senders = min(n_sat(shop, gpu["network"]), node_n_sat(shop, gbps))
    for m in range(1, most + 1):
        if count < senders * m and holds(shop, node, m) and receives(shop, gbps, m):
            return m
    return None


def within(shop: dict[str, Any], used: Iterable[tuple[dict[str, Any], str, int]]) -> bool:
    need: dict[tuple[str, str], int] = {}
    for vm, market, count in used:
        need[vm["family"], market] = need.get((vm["family"], market), 0) + count * vm["vcpus"]
    return all(amount <= shop["quotas"].get(place, math.inf) for place, amount in need.items())


# --- all plans ------------------------------------------------------------------------------------


def plans(shop: dict[str, Any], *, on_demand: bool = False) -> list[Plan]:
    """Every feasible plan at any price, each in its cheapest zone; ``on_demand``: those of
    on-demand VMs alone.
    """
    best: dict[tuple[str, str, int, str, int], Plan] = {}
    for plan in _plans(shop, on_demand):
        other = best.get(plan.cluster)
        if other is None or (plan.price, plan.zone) < (other.price, other.zone):
            best[plan.cluster] = plan
    return list(best.values())


def _plans(shop: dict[str, Any], only_on_demand: bool) -> Iterator[Plan]:
    wanted = shop["architectures"] or ("on-demand", "single-anchor", "spot-storage", "tiering")
    for name, gpu in shop["gpus"].items():
        if isinstance(gpu["speed"], str):
            continue
        for n in range(1, shop["max_nodes"] + 1):
            speed = gpu["speed"][n - 1] if n <= len(gpu["speed"]) else None
            if speed is None:
                continue
            if only_on_demand:
                found = _plan(shop, "on-demand", name, gpu, n, 0, n, speed, "", 0)
                yield from [found] if found else []
                continue
            if "on-demand" in wanted:
                found = _plan(shop, "on-demand", name, gpu, n, 0, n, speed, "", 0)
                yield from [found] if found else []
            for zone, price in gpu["spot"].items():
                if "single-anchor" in wanted and n >= 2:
                    found = _plan(shop, "single-anchor", name, gpu, n, n - 1, 1, speed, zone, price)
                    yield from [found] if found else []
                if "spot-storage" in wanted:
                    found = _plan(shop, "spot-storage", name, gpu, n, n, 0, speed, zone, price)
                    yield from [found] if found else []
                for other, node in shop["nodes"].items() if "tiering" in wanted else ():
                    places = {zone} if zone else set(gpu["zones"])
                    m = nodes_for(shop, gpu, node, n)
                    if m is None or (places and node["zones"] and not places & set(node["zones"])):
                        continue
                    found = _plan(
                        shop, "tiering", name, gpu, n, n, 0, speed, zone, price, (other, node, m)
                    )
                    yield from [found] if found else []


def _plan(
    shop: dict[str, Any],
    architecture: str,
    name: str,
    gpu: dict[str, Any],
    n: int,
    spot: int,
    paid: int,
    speed: float,
    zone: str,
    spot_price: int,
    nodes: tuple[str, dict[str, Any], int] | None = None,
) -> Plan | None:
    if paid and gpu["on_demand"] is None:
        return None
    memory, node, m = nodes or ("", {}, 0)
    used = [(gpu, "spot", spot), (gpu, "on-demand", paid)] + ([(node, "on-demand", m)] if m else [])
    if not within(shop, used):
        return None
    price = spot * spot_price + paid * (gpu["on_demand"] or 0) + m * (node["on_demand"] if m else 0)
    bad, left, good = (kept(shop, gpu, n, spot, architecture, s) for s in lives_s(shop, gpu))
    if left < 0.05:
        return None  # it never ends
    effective = speed * left
    work_s = shop["units"] / effective if shop["units"] else 0.0
    total_s = START_S + work_s if work_s else 0.0
    if shop["deadline_s"] is not None and total_s > shop["deadline_s"]:
        return None
    if shop["most_usd"] is not None and price * total_s > shop["most_usd"] * 3600 * 10**6 * (
        1 + 1e-12
    ):
        return None
    # Large gangs are ranked little better than at a bad time.
    counted = min(left, max(bad, 1e-6) * 1.1)
    longer = left / counted
    z = left * speed / n * 10**6 * (spot / (spot_price or 1) + paid / (gpu["on_demand"] or 1))
    value = {
        "throughput": speed * counted,
        "flopp": z,
        "cost-per-work": -price / (speed * counted),
        "makespan": 3600 / (total_s * longer) if total_s else 0.0,
        "total-cost": -price * total_s * longer / 3600,
    }[shop["objective"]]
    vcpus = n * gpu["vcpus"] + (m * node["vcpus"] if m else 0)
    band = -1 if not spot else 5 if gpu["band"] is None else gpu["band"]
    trusted = shop["extrapolate"] or (n <= 1.5 * gpu["fitted"] and n * shop["batch"] <= 8192)
    sd = math.sqrt(0.09 + (GROWTH * math.log(n)) ** 2 + gpu["sd"] ** 2 + 0.04 + 0.01)
    late = _late(shop["deadline_s"], total_s, sd)
    doubt = math.exp(Z80 * sd)
    slow_s = START_S + work_s * doubt * left / max(bad, 1e-9)  # At a bad time
    spread = slow_s / (START_S + work_s / doubt * left / good) if work_s else 0.0
    if shop["most_usd"] is not None and price * slow_s > shop["most_usd"] * 3600 * 10**6 * (
        1 + 1e-12
    ):
        late = 1.0
    zone = zone if spot else ""
    return Plan(
        architecture,
        name,
        n,
        memory,
        m,
        price,
        zone,
        value,
        vcpus,
        band,
        trusted,
        gpu["sd"],
        late,
        speed,
        speed * bad,
        spread,
        slow_s,
    )


def _late(deadline_s: float | None, total_s: float, sd: float) -> float:
    """How often it takes longer: the logarithm of the speed is normal around that of the expected
    time.
    """
    if deadline_s is None:
        return 0.0
    return 0.5 * math.erfc(
        math.log((deadline_s - START_S) / (total_s - START_S)) / sd / math.sqrt(2)
    )


# --- rankings -------------------------------------------------------------------------------------


def ranked(found: Iterable[Plan], budget: int, top: int) -> list[Plan]:
    """Repeatedly the best of what is left.

    Of all that tie with it the cheapest, then the fewest nodes, then names.
    """
    left = [p for p in found if p.price <= budget]
    order: list[Plan] = []
    while left and len(order) < top:
        best = max(p.value for p in left)
        tied = [p for p in left if p.value >= best - abs(best) * TIE]
        first = min(
            tied, key=lambda p: (p.price, p.memory_count, p.architecture, p.gpu, p.count, p.memory)
        )
        order.append(first)
        left.remove(first)
    return order


def better_by(high: float, low: float) -> float:
    """How many times as good: speeds are above 0, prices of a unit below."""
    return high / low if low > 0 else low / high


def weighed(found: Iterable[Plan], budget: int, top: int, *, machines: bool = True) -> list[Plan]:
    """The rules of the ranking, read plainly.

    Plans come in the order of :func:`ranked` among equals.
    """
    found = list(found)
    in_time = [p for p in found if p.trusted and p.late <= 0.1 and p.speed > 0]
    steady = [p for p in in_time if p.band < 0]
    narrow = [p for p in in_time if p.spread <= 3]
    left = sorted(
        (p for p in found if p.price <= budget),
        key=lambda p: (p.price, p.memory_count, p.architecture, p.gpu, p.count, p.memory),
    )
    order: list[Plan] = []
    while left and len(order) < top:
        choice = [p for p in left if p.trusted] or left
        choice = [p for p in choice if p.late <= 0.1] or [
            p for p in choice if p.late <= max(0.1, min(q.late for q in choice) + 0.05)
        ]
        choice = [p for p in choice if not refuted(p, steady, narrow)] or choice
        first = _to_show(choice, _kept(choice))
        order.append(first)
        left = [p for p in left if (p.gpu != first.gpu if machines else p != first)]
    return order


def refuted(plan: Plan, steady: list[Plan], narrow: list[Plan]) -> bool:
    """By a warning of its own: what its bill may be, or what is better at a bad time."""
    much = 1.05 + TIE
    wild = plan.spread > 3 and any(
        other.price <= plan.price and other.slow_s <= plan.slow_s for other in narrow
    )
    return wild or (
        plan.band >= 0
        and any(
            other.speed > much * plan.bad
            and plan.price * other.speed > much * other.price * plan.bad
            for other in steady
        )
    )


def _kept(choice: list[Plan]) -> Plan:
    """From the cheapest on, the one that none of the dearer ones takes the place of."""
    kept, *dearer = choice
    best = kept.value
    for plan in dearer:
        best = max(best, plan.value)
        if better_by(best, plan.value) <= (1.01 + TIE if best > 0 else 1.05 + TIE) and _takes_over(
            plan, kept, best
        ):
            kept = plan
    return kept


def _takes_over(plan: Plan, kept: Plan, best: float) -> bool:
    dearer = plan.price / kept.price
    if best < 0:  # dollars: less, or hardly more for what is much faster
        speeds = dearer * kept.value / plan.value
        return plan.value > kept.value or speeds > max(
            1.1 + TIE, 1 + TIE + 10 * (plan.value / best - 1)
        )
    times = plan.value / kept.value
    if times <= 1:
        return False
    if times < 1.05 + TIE and dearer > max(1.1 + TIE, 1 + TIE + 10 * (times - 1)):
        return False
    return times > 1.25 + TIE or times * (1 + TIE) >= dearer or _surely_faster(plan, kept)


def _surely_faster(plan: Plan, kept: Plan) -> bool:
    """By more than 1 %, in two cases of three."""
    ahead = math.log(plan.value / kept.value / (1.01 + TIE))
    variance = (GROWTH * math.log(plan.count / kept.count)) ** 2
    if plan.gpu != kept.gpu:  # what is wrong with a type is wrong with any number of its VMs
        variance += plan.sd**2 + kept.sd**2
    if variance == 0:
        return ahead >= 0
    return 0.5 * math.erfc(-ahead / math.sqrt(2 * variance)) >= 2 / 3


def _to_show(choice: list[Plan], kept: Plan) -> Plan:
    """Of what is within 1 %, for about the price, and not worse than something cheaper."""
    near = [kept]
    for place, plan in enumerate(choice):
        best = max(p.value for p in choice[: place + 1])
        most = 1.01 + TIE
        alike = (
            1 / most <= better_by(plan.value, kept.value) <= most
            and better_by(best, plan.value) <= most
        )
        if alike and 1 / (1.1 + TIE) <= plan.price / kept.price <= 1.1 + TIE:
            near.append(plan)
    return min(near, key=lambda p: (p.vcpus, p.band, p.price, choice.index(p)))
