"""DeepVM's tables and figures, computed by the planner from two embedded catalogs.

Figures are named for what they are, so that most are computed from their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from deepvm.catalog.store import load_catalog
from deepvm.core.arrays import FloatArray
from deepvm.core.cluster.cluster import Cluster, Recommendation
from deepvm.core.cluster.instances import Catalog, InstanceType, Market
from deepvm.core.cluster.speedup import HybridSpeedup, MeasuredSpeedup
from deepvm.core.units import MICRO_USD
from deepvm.errors import DeepVMError
from deepvm.planner.recommend import Recommendations
from deepvm.planner.request import Objective, PolicyName
from deepvm.planner.sweep import parse_budgets
from deepvm.reports.reproduction.published_figures import Part, Value
from deepvm.services.recommend import recommend, sweep

PROFILED = ("g3s.xlarge", "g4dn.xlarge", "g5.xlarge")
"""The types of Figure 5."""
WORKLOADS = {"ResNet-18": "resnet18", "ResNet-152": "resnet152", "EfficientNet": "efficientnet"}
"""The rows of Table IV, and what the catalog calls them."""
BUDGETS = "0:10:0.1"
"""Figure 7's, $/h."""
BETTER = 1 + 1e-9
"""Two sums of floats that differ by less are equal."""


@cache
def paper() -> Catalog:
    """The types that were measured."""
    return load_catalog("paper")


@cache
def simulated() -> Catalog:
    """The types of Table VI."""
    return load_catalog("simulated")


def table_ii(part: Part, name: str) -> Value:
    """Prices of a type."""
    instance = paper()[name]
    return f"{_exact(instance.on_demand_usd_per_hour)} / {_exact(instance.spot_usd_per_hour)}"


def table_vi(part: Part, name: str) -> Value:
    """Spot prices to three decimals, as Table VI rounds them."""
    instance = simulated()[name]
    spot = round(instance.spot_usd_per_hour or Decimal(0), 3)
    cells = [_exact(instance.on_demand_usd_per_hour), _exact(spot), _exact(instance.network_gbps)]
    if instance.eflops is not None:
        cells.append(_exact(instance.eflops))
    return " / ".join(cells)


def _exact(figure: Decimal | float | None) -> str:
    """Without zeros at the end."""
    return f"{float(figure or 0):g}"


def table_v(part: Part, name: str) -> Value:
    """``10 Gbit/s``: of a memory node with this network."""
    gbps = float(name.split()[0])
    return float(paper().memory_nodes.n_sat(paper().n_sat, gbps))


def table_iv(part: Part, name: str) -> Value:
    """A parameter: the mean of the rows, or that of g4dn.xlarge's general curve (eq. 11)."""
    which, parameter = name.split(", ")
    curves: list[Any] = [paper()["g4dn.xlarge"].curve("hybrid")]
    if which == "mean of the rows":
        curves = [workload_curve(title) for title in WORKLOADS]
    return float(np.mean([getattr(curve, parameter) for curve in curves]))


def workload_curve(title: str) -> HybridSpeedup:
    """Table IV's curve of g4dn.xlarge, by the name of its row."""
    curves = [c for c in paper()["g4dn.xlarge"].speedups if isinstance(c, HybridSpeedup)]
    return next(curve for curve in curves if curve.workload == WORKLOADS[title])


def measured_points(name: str) -> tuple[tuple[float, float], ...]:
    """(n, S(n)) of a type as measured for Figure 5: ResNet-50, 30 epochs, means of 5 runs."""
    curve = paper()[name].curve("measured")
    assert isinstance(curve, MeasuredSpeedup)
    return curve.points


def _errors(name: str, kind: str, from_vms: int = 1) -> FloatArray:
    """Per cent of the measured speed-up by which a curve is off, at each size of Figure 5."""
    n, measured = np.array(measured_points(name)).T
    curve = paper()[name].curve(kind)
    assert curve is not None
    errors: FloatArray = np.abs(curve.speedup(n) / measured - 1)[n >= from_vms]
    return 100 * errors


def figure_5(part: Part, name: str) -> Value:
    """``g5.xlarge, mean from 2 VMs``: error of the hybrid curve (section V-B1)."""
    instance, what = name.split(", ")
    statistic, _, sizes = what.partition(" from ")
    errors = _errors(instance, "hybrid", int(sizes.removesuffix(" VMs") or 1))
    return float(errors.max() if statistic == "largest" else errors.mean())


def figure_5_curves(part: Part, name: str) -> Value:
    """``ring, all three``: mean error of a curve over all sizes."""
    kind, which = name.split(", ")
    names = PROFILED if which == "all three" else (which,)
    return float(np.mean([_errors(own, kind) for own in names]))


def figure_6(part: Part, name: str) -> Value:
    """The plan with c4.xlarge, and how many memory nodes the budget would pay for."""
    best = _solved(part.plans["recommended"])[0].cluster
    if name == "recommended":
        return _plan(best)
    node = paper()["c4.xlarge"].micro_usd_per_hour(Market.ON_DEMAND)
    assert best.memory is not None and node is not None
    training = best.micro_usd_per_hour - best.memory.micro_usd_per_hour
    budget = int(part.plans["recommended"]["budget"] * MICRO_USD)
    return float((budget - training) // node)


@cache
def throughputs(objective: Objective) -> dict[PolicyName, FloatArray]:
    """Of each policy at the budgets of Figure 7, eFLOPS x n x K(n); 0 where nothing is feasible."""
    series: dict[PolicyName, list[float]] = {policy: [] for policy in PolicyName}
    for row in sweep(simulated(), parse_budgets(BUDGETS), objective=objective.value):
        best = row.recommendation
        series[row.policy].append(best.throughput if best else 0.0)
    return {policy: np.array(values) for policy, values in series.items()}


def figure_7(part: Part, name: str) -> Value:
    """What section V-C2 says of the policies."""
    series = throughputs(Objective.THROUGHPUT)
    budgets = np.array(parse_budgets(BUDGETS), dtype=float)
    if name == "budgets with a better policy than DeepVM":
        return float(
            (np.max(list(series.values()), axis=0) > series[PolicyName.DEEPVM] * BETTER).sum()
        )
    if name == "budgets > 2.5 $/h, NoScale < Cost-First":
        wins = series[PolicyName.COST_FIRST] > series[PolicyName.NOSCALE] * BETTER
        return float(wins[budgets > 2.5].sum())
    return first_fall(budgets, series[PolicyName.PERFORMANCE_FIRST])


def first_fall(budgets: FloatArray, throughput: FloatArray) -> Value:
    """The first budget that buys less than the one before."""
    for budget, (before, now) in zip(budgets[1:], pairwise(throughput), strict=True):
        if now < before:
            return float(budget)
    return "never"


def table_vii(part: Part, name: str) -> Value:
    """``DeepVM 2nd``: a cluster; ``... over 1st, cost``: of a unit of work, over DeepVM's first.

    The paper's costs follow from measured makespans.
    """
    if not name.endswith(" over 1st, cost"):
        return _plan(_place(part, name).cluster)
    own = _place(part, name.removesuffix(" over 1st, cost"))
    first = _place(part, "DeepVM 1st")
    assert own.usd_per_work is not None and first.usd_per_work is not None
    return own.usd_per_work / first.usd_per_work


def _place(part: Part, title: str) -> Recommendation:
    """``DeepVM 2nd``: the second of a plan; the first without a number."""
    places = {"1st": 0, "2nd": 1, "3rd": 2}
    plan, _, place = title.rpartition(" ")
    if place in places:
        return _solved(part.plans[plan])[places[place]]
    return _solved(part.plans[title])[0]


def examples(part: Part, name: str) -> Value:
    """``PW 3, speed-up``: of a plan, what comes after its name."""
    if name == "sweep, flopp, budgets lost":
        series = throughputs(Objective.FLOPP)
        wins = series[PolicyName.PERFORMANCE_FIRST] > series[PolicyName.DEEPVM] * BETTER
        return float(wins.sum())
    plan = name
    what = "first"
    if name not in part.plans:
        plan, _, what = name.rpartition(", ")
    answer = _solved(part.plans[plan])
    if what == "plans":
        return float(len(answer))
    if what == "cheapest":
        assert answer.cheapest is not None
        return _priced(answer.cheapest)
    places = ("first", "second", "third")
    if what in places:
        return _priced(answer[places.index(what)])
    attribute = {"Z (eq. 8)": "z", "Z": "z", "speed-up": "speedup"}.get(what, what)
    return float(getattr(answer[0], attribute.replace(" ", "_")))


def _solved(plan: Mapping[str, Any]) -> Recommendations:
    return _recommended(**plan)


@cache
def _recommended(*, budget: float, catalog: str = "paper", **options: Any) -> Recommendations:
    """By the integer program, as the command does; a DeepVMError if that proves no answer."""
    answer = recommend(load_catalog(catalog), Decimal(str(budget)), **options)
    if answer.doubt:
        raise DeepVMError(f"catalog {catalog} at {budget} $/h: {answer.doubt}")
    return answer


def _priced(best: Recommendation) -> str:
    return f"{_plan(best.cluster)}, {_exact(best.usd_per_hour)}"


def _plan(cluster: Cluster) -> str:
    """``17 g4dn + 1 c5``: VMs that train, then memory nodes; all types of the paper are .xlarge."""
    parts = [f"{cluster.gpu_count} {_short(cluster.gpu)}"]
    if cluster.memory:
        parts.append(f"{cluster.memory.count} {_short(cluster.memory.instance)}")
    return " + ".join(parts)


def _short(instance: InstanceType) -> str:
    return instance.name.removesuffix(".xlarge")


COMPUTE = {
    "table-2": table_ii,
    "table-4": table_iv,
    "table-5": table_v,
    "table-6": table_vi,
    "figure-5": figure_5,
    "figure-5-curves": figure_5_curves,
    "figure-6": figure_6,
    "figure-7": figure_7,
    "table-7": table_vii,
    "examples": examples,
}
