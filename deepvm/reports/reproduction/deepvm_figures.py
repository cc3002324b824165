"""DeepVM's tables and figures, computed by the planner from the catalogs ``paper`` and ``simulated``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from deepvm.catalog.store import load_catalog
from deepvm.core.cluster.cluster import Cluster, Recommendation
from deepvm.core.cluster.instances import Catalog, InstanceType, Market
from deepvm.core.cluster.speedup import FloatArray, HybridSpeedup, MeasuredSpeedup
from deepvm.core.units import MICRO_USD
from deepvm.errors import DeepVMError
from deepvm.planner.recommend import Recommendations
from deepvm.planner.request import Objective, PolicyName
from deepvm.planner.sweep import parse_budgets
from deepvm.reports.reproduction.printed import Value
from deepvm.services.recommend import recommend, sweep

if TYPE_CHECKING:
    from typing import Unpack

    from deepvm.planner.request import PlanOptions

PROFILED = ("g3s.xlarge", "g4dn.xlarge", "g5.xlarge")
"""The types of Figure 5."""
WORKLOADS = {"ResNet-18": "resnet18", "ResNet-152": "resnet152", "EfficientNet": "efficientnet"}
"""The rows of Table IV, and what the catalog calls them."""
BUDGETS = "0:10:0.1"
"""Figure 7's, $/h."""
PW, PW_SATURATION = 3, Decimal("6.5")
"""Budgets of Table VII and of section V-B2, $/h."""
_BETTER = 1 + 1e-9  # that two sums of floats differ by less says nothing


def compute() -> Iterator[tuple[str, dict[str, Value]]]:
    """Yield each part's id with its figures."""
    paper, simulated = load_catalog("paper"), load_catalog("simulated")
    yield "table-2", {instance.name: _prices(instance) for instance in paper}
    yield "table-4", table_iv(paper)
    yield (
        "table-5",
        {f"{gbps:g} Gbit/s": float(_n_sat(paper, gbps)) for gbps in paper.n_sat.network_gbps},
    )
    yield "table-6", {instance.name: _specifications(instance) for instance in simulated}
    yield "figure-5", figure_5(paper)
    yield "figure-5-curves", curve_errors(paper)
    yield "figure-6", figure_6(paper)
    rows = {
        objective: Figure7.of(simulated, objective)
        for objective in (Objective.THROUGHPUT, Objective.FLOPP)
    }
    yield "figure-7", rows[Objective.THROUGHPUT].figures()
    yield "table-7", table_vii(paper)
    yield (
        "examples",
        {
            **paper_examples(paper),
            **simulated_examples(simulated),
            "sweep, flopp, budgets lost": float(
                rows[Objective.FLOPP].wins(PolicyName.PERFORMANCE_FIRST, PolicyName.DEEPVM)
            ),
        },
    )


def _prices(instance: InstanceType) -> str:
    return f"{_exact(instance.on_demand_usd_per_hour)} / {_exact(instance.spot_usd_per_hour)}"


def _specifications(instance: InstanceType) -> str:
    """Spot prices to three decimals, as Table VI rounds them."""
    spot = instance.spot_usd_per_hour
    rounded = None if spot is None else round(spot, 3)
    cells = [_exact(instance.on_demand_usd_per_hour), _exact(rounded), f"{instance.network_gbps:g}"]
    return " / ".join([*cells, *([] if instance.eflops is None else [f"{instance.eflops:g}"])])


def _exact(usd: Decimal | None) -> str:
    """Without zeros at the end; ``-`` for no price."""
    return "-" if usd is None else f"{usd.normalize():f}"


def _n_sat(catalog: Catalog, gbps: float) -> int:
    return catalog.memory_nodes.n_sat(catalog.n_sat, gbps)


def workload_curves(paper: Catalog) -> dict[str, HybridSpeedup]:
    """Table IV's curves of g4dn.xlarge, by the names of its rows."""
    curves = {c.workload: c for c in paper["g4dn.xlarge"].speedups if isinstance(c, HybridSpeedup)}
    return {title: curves[name] for title, name in WORKLOADS.items()}


def table_iv(paper: Catalog) -> dict[str, Value]:
    """The mean of the rows, and the general curve of g4dn.xlarge (eq. 11)."""
    rows, own = list(workload_curves(paper).values()), paper["g4dn.xlarge"].curve("hybrid")
    found: dict[str, Value] = {}
    for name in "abc":
        found[f"mean of the rows, {name}"] = float(np.mean([getattr(row, name) for row in rows]))
        found[f"curve of g4dn.xlarge, {name}"] = float(getattr(own, name))
    return found


def measured_points(paper: Catalog, name: str) -> tuple[tuple[float, float], ...]:
    """(n, S(n)) of a type as measured for Figure 5: ResNet-50, 30 epochs, means of 5 runs."""
    curve = paper[name].curve("measured")
    assert isinstance(curve, MeasuredSpeedup)
    return curve.points


def _errors(paper: Catalog, name: str, kind: str) -> tuple[FloatArray, FloatArray]:
    """Sizes n, and per cent by which a curve is off there; both of shape (points,)."""
    n, measured = np.array(measured_points(paper, name)).T
    curve = paper[name].curve(kind)
    assert curve is not None
    return n, 100 * np.abs(curve.speedup(n) / measured - 1)


def figure_5(paper: Catalog) -> dict[str, Value]:
    """Errors of the hybrid curve, per cent of the measured speed-up (section V-B1)."""
    (n, g3s), (_, g4dn), (_, g5) = (_errors(paper, name, "hybrid") for name in PROFILED)
    return {
        "g3s.xlarge, largest": float(g3s.max()),
        "g3s.xlarge, largest from 16 VMs": float(g3s[n >= 16].max()),
        "g4dn.xlarge, largest from 4 VMs": float(g4dn[n >= 4].max()),
        "g5.xlarge, mean from 2 VMs": float(g5[n >= 2].mean()),
    }


def curve_errors(paper: Catalog) -> dict[str, Value]:
    """Mean errors of both curves over all sizes, per cent."""
    hybrid, ring = (
        {name: _errors(paper, name, kind)[1] for name in PROFILED} for kind in ("hybrid", "ring")
    )
    return {
        **{f"hybrid, {name}": float(errors.mean()) for name, errors in hybrid.items()},
        "hybrid, all three": float(np.mean(list(hybrid.values()))),
        "ring, all three": float(np.mean(list(ring.values()))),
    }


def figure_6(paper: Catalog) -> dict[str, Value]:
    """The plan at PW = 6.5 with c4.xlarge, and how many memory nodes the budget would pay for."""
    best = _solved(paper, PW_SATURATION, architecture="tiering", memory_node="c4.xlarge", top=1)[
        0
    ].cluster
    node = paper["c4.xlarge"].micro_usd_per_hour(Market.ON_DEMAND)
    assert best.memory is not None and node is not None
    training = best.micro_usd_per_hour - best.memory.micro_usd_per_hour
    return {
        "recommended": _plan(best),
        "as many as PW allows": float((int(PW_SATURATION * MICRO_USD) - training) // node),
    }


class Figure7:
    """Throughput of the four policies at the budgets of Figure 7, eFLOPS x n x K(n)."""

    def __init__(self, performance: dict[PolicyName, FloatArray]) -> None:
        """``performance``: by policy, of shape (budgets,), 0 where nothing is feasible."""
        self.budgets = parse_budgets(BUDGETS)
        self.performance = performance

    @classmethod
    def of(cls, simulated: Catalog, objective: Objective) -> Figure7:
        """Sweep; budgets come first, so each policy's rows are in their order."""
        rows = sweep(simulated, parse_budgets(BUDGETS), objective=objective.value)
        return cls(
            {
                policy: np.array(
                    [
                        r.recommendation.throughput if r.recommendation else 0.0
                        for r in rows
                        if r.policy is policy
                    ]
                )
                for policy in PolicyName
            }
        )

    def wins(self, one: PolicyName, other: PolicyName, above: Decimal = Decimal(-1)) -> int:
        """At how many budgets above ``above``, $/h, one policy is better than the other."""
        late = np.array([budget > above for budget in self.budgets])
        return int((late & (self.performance[one] > self.performance[other] * _BETTER)).sum())

    def figures(self) -> dict[str, Value]:
        """What section V-C2 says of them."""
        best = self.performance[PolicyName.DEEPVM]
        others = np.max(
            [own for policy, own in self.performance.items() if policy is not PolicyName.DEEPVM],
            axis=0,
        )
        fast = self.performance[PolicyName.PERFORMANCE_FIRST]
        falls = [
            budget
            for budget, (low, high) in zip(self.budgets[1:], pairwise(fast), strict=True)
            if high < low
        ]
        return {
            "budgets with a better policy than DeepVM": float((others > best * _BETTER).sum()),
            "budgets > 2.5 $/h, NoScale < Cost-First": float(
                self.wins(PolicyName.COST_FIRST, PolicyName.NOSCALE, Decimal("2.5"))
            ),
            "PW at which Performance-First falls": float(falls[0]) if falls else "never",
        }


def table_vii(paper: Catalog) -> dict[str, Value]:
    """Clusters, and what a unit of work costs relative to DeepVM's first.

    The paper's from measured makespans.
    """
    named: dict[str, Recommendation] = {}
    for place, found in zip(("1st", "2nd", "3rd"), _solved(paper, PW), strict=True):
        named[f"DeepVM {place}"] = found
    for title, policy in (
        ("DeepVM-NoScale", PolicyName.NOSCALE),
        ("Cost-First", PolicyName.COST_FIRST),
        ("Performance-First", PolicyName.PERFORMANCE_FIRST),
    ):
        named[title] = _solved(paper, PW, policy=policy.value, top=1)[0]
    first, *others = named
    unit = _usd_per_work(named[first])
    return {
        **{title: _plan(found.cluster) for title, found in named.items()},
        **{f"{title} over 1st, cost": _usd_per_work(named[title]) / unit for title in others},
    }


def _usd_per_work(found: Recommendation) -> float:
    assert found.usd_per_work is not None
    return found.usd_per_work


def paper_examples(paper: Catalog) -> dict[str, Value]:
    """Answers on the catalog ``paper``."""
    at_3, large, at_65 = (
        _solved(paper, PW),
        _solved(paper, PW, checkpoint_size="5GB"),
        _solved(paper, PW_SATURATION),
    )
    flopp = _solved(paper, PW_SATURATION, objective="flopp", top=1)[0]
    poor = _solved(paper, Decimal("0.3"))
    assert poor.cheapest is not None
    best = at_3[0]
    return {
        **_places("PW 3", at_3),
        "PW 3, speed-up": best.speedup,
        "PW 3, scaling factor": best.scaling_factor,
        "PW 3, throughput": best.throughput,
        "PW 3, Z (eq. 8)": best.z,
        "PW 3, Cost-First": _priced(_solved(paper, PW, policy="cost-first", top=1)[0]),
        "PW 3, Performance-First": _priced(
            _solved(paper, PW, policy="performance-first", top=1)[0]
        ),
        **_places("PW 3, 5 GB", large),
        **_places("PW 6.5", at_65),
        "PW 6.5, throughput": at_65[0].throughput,
        "PW 6.5, flopp": _priced(flopp),
        "PW 6.5, flopp, Z": flopp.z,
        "PW 0.3, plans": float(len(poor)),
        "PW 0.3, cheapest": _priced(poor.cheapest),
    }


def simulated_examples(simulated: Catalog) -> dict[str, Value]:
    """Answers on the catalog ``simulated``, by both objectives."""
    found: dict[str, Value] = {}
    for title, objective in (("PW 10", "throughput"), ("PW 10, flopp", "flopp")):
        best = _solved(simulated, 10, objective=objective, top=1)[0]
        found |= {title: _priced(best), f"{title}, throughput": best.throughput}
    return found


def _solved(
    catalog: Catalog, budget: Decimal | int, **options: Unpack[PlanOptions]
) -> Recommendations:
    """By the integer program, as the command does.

    Raises a DeepVMError if that does not prove the answer.
    """
    found = recommend(catalog, budget, **options)
    if found.doubt:
        raise DeepVMError(f"catalog {catalog.name} at {budget} $/h: {found.doubt}")
    return found


def _places(title: str, found: Sequence[Recommendation]) -> dict[str, Value]:
    return {
        f"{title}, {place}": _priced(r)
        for place, r in zip(("first", "second", "third"), found, strict=True)
    }


def _priced(found: Recommendation) -> str:
    return f"{_plan(found.cluster)}, {_exact(found.usd_per_hour)}"


def _plan(cluster: Cluster) -> str:
    """``17 g4dn + 1 c5``: VMs that train, then memory nodes; all types of the paper are .xlarge."""
    memory = (
        f" + {cluster.memory.count} {_short(cluster.memory.instance)}" if cluster.memory else ""
    )
    return f"{cluster.gpu_count} {_short(cluster.gpu)}{memory}"


def _short(instance: InstanceType) -> str:
    return instance.name.removesuffix(".xlarge")
