"""DeepVM's tables and figures, computed by the planner from two embedded catalogs."""

from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np

from deepvm.catalog.store import load_catalog
from deepvm.core.arrays import FloatArray
from deepvm.core.cluster.cluster import Cluster
from deepvm.core.cluster.speedup import HybridSpeedup, MeasuredSpeedup
from deepvm.errors import DeepVMError
from deepvm.planner.recommend import Recommendations
from deepvm.planner.request import Objective, PolicyName
from deepvm.planner.sweep import parse_budgets
from deepvm.reports.reproduction.published_figures import Value, read_paper
from deepvm.services.keywords import recommend
from deepvm.services.recommend import sweep

PROFILED = ("g3s.xlarge", "g4dn.xlarge", "g5.xlarge")  # The types of Figure 5
BUDGETS = parse_budgets("0:10:0.1")  # Figure 7's, $/h
BETTER = 1 + 1e-9  # Two sums of floats that differ by less are equal


def instance_facts(catalog: str, decimals: Mapping[str, int], name: str) -> Value:
    """What a catalog has of a type, as tables print it, to so many decimals."""
    instance = load_catalog(catalog)[name]
    facts = [(getattr(instance, attribute), digits) for attribute, digits in decimals.items()]
    return " / ".join(f"{float(round(fact, n)):g}" for fact, n in facts if fact is not None)


def table_v(gbps: float) -> Value:
    """Of a memory node with this network."""
    catalog = load_catalog("paper")
    return float(catalog.memory_nodes.n_sat(catalog.n_sat, gbps))


def table_iv(which: str, parameter: str) -> Value:
    """A parameter: the mean of the rows, or that of g4dn.xlarge's general curve (eq. 11)."""
    instance = load_catalog("paper")["g4dn.xlarge"]
    curves: list[Any] = [instance.curve("hybrid")]
    if which == "mean of the rows":
        curves = list(workload_curves().values())
    return float(np.mean([getattr(curve, parameter) for curve in curves]))


def workload_curves() -> Mapping[str, HybridSpeedup]:
    """Table IV's curves of g4dn.xlarge, by the catalog's names of the rows."""
    curves = load_catalog("paper")["g4dn.xlarge"].speedups
    return {c.workload: c for c in curves if isinstance(c, HybridSpeedup) and c.workload}


def measured_points(name: str) -> tuple[tuple[float, float], ...]:
    """(n, S(n)) of a type as measured for Figure 5: ResNet-50, 30 epochs, means of 5 runs."""
    curve = load_catalog("paper")[name].curve("measured")
    assert isinstance(curve, MeasuredSpeedup)
    return curve.points


def curve_error(kind: str, which: str, statistic: str = "mean", from_vms: int = 1) -> Value:
    """Per cent of the measured speed-ups by which a curve is off (section V-B1)."""
    errors = []
    for name in PROFILED if which == "all three" else [which]:
        n, measured = np.array(measured_points(name)).T
        curve = load_catalog("paper")[name].curve(kind)
        assert curve is not None
        off = 100 * np.abs(curve.speedup(n) / measured - 1)
        errors.append(getattr(off[n >= from_vms], statistic)())
    return float(np.mean(errors))


@cache
def throughputs(objective: Objective) -> dict[PolicyName, FloatArray]:
    """Of each policy at the budgets of Figure 7, eFLOPS x n x K(n); 0 where nothing is feasible."""
    series: dict[PolicyName, list[float]] = {policy: [] for policy in PolicyName}
    for row in sweep(load_catalog("simulated"), BUDGETS, objective=objective.value):
        best = row.recommendation
        series[row.policy].append(best.throughput if best else 0.0)
    return {policy: np.array(values) for policy, values in series.items()}


def budgets_won(objective: str, better: str, worse: str, above: float = 0.0) -> Value:
    """At how many budgets of Figure 7 a policy, or any, is better than another (section V-C2)."""
    series = throughputs(Objective(objective))
    if better == "any":
        best = np.max(list(series.values()), axis=0)
    else:
        best = series[PolicyName(better)]
    wins = best > series[PolicyName(worse)] * BETTER
    return float(wins[np.array(BUDGETS, dtype=float) > above].sum())


def first_fall(policy: str) -> Value:
    """The first budget of Figure 7 that buys less than the one before."""
    throughput = throughputs(Objective.THROUGHPUT)[PolicyName(policy)]
    falls = np.flatnonzero(np.diff(throughput) < 0)
    if not falls.size:
        return "never"
    return float(BUDGETS[falls[0] + 1])


def planned(name: str, what: str, place: int = 0) -> Value:
    """A cluster of the plan as the paper prints it, with its price, or one of its attributes."""
    answer = solved(name)
    if what == "plans":
        return float(len(answer))
    best = answer.cheapest
    if what != "cheapest":
        best = answer[place]
    assert best is not None
    if what == "cluster":
        return _plan(best.cluster)
    if what in ("price", "cheapest"):
        return f"{_plan(best.cluster)}, {float(best.usd_per_hour):g}"
    if what == "cost of work":
        first = solved("PW 3")[0]
        assert best.usd_per_work is not None and first.usd_per_work is not None
        return best.usd_per_work / first.usd_per_work
    if what == "memory nodes for the budget":
        memory = best.cluster.memory
        assert memory is not None
        training = best.cluster.micro_usd_per_hour - memory.micro_usd_per_hour
        node = memory.micro_usd_per_hour // memory.count
        return float((answer.request.budget_micro_usd - training) // node)
    return float(getattr(best, what))


@cache
def solved(name: str) -> Recommendations:
    """The answer of a plan, by the integer program, as the command gives it."""
    options = dict(read_paper("deepvm")["plans"][name])
    catalog = load_catalog(options.pop("catalog", "paper"))
    answer = recommend(catalog, Decimal(str(options.pop("budget"))), **options)
    if answer.doubt:
        raise DeepVMError(f"{name}: {answer.doubt}")
    return answer


def _plan(cluster: Cluster) -> str:
    vms = [(cluster.gpu_count, cluster.gpu)]
    if cluster.memory:
        vms.append((cluster.memory.count, cluster.memory.instance))
    return " + ".join(f"{count} {vm.name.removesuffix('.xlarge')}" for count, vm in vms)
