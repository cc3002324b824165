"""Tables 2 to 7 of ECRL for another matrix, next to the published figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from deepvm.lab.results import BLOCKING, Cost, Estimate, SuiteResult
from deepvm.reports.lab import published
from deepvm.reports.lab.summary import REFERENCES, LabSummary, worlds
from deepvm.reports.pages import render_markdown

OVERLAPPED = "ovl"
FACTORS: Mapping[str, tuple[Callable[[Mapping[str, Any]], object], str]] = {
    "global batch": (lambda c: c["global_batch"], "fixed, not published"),
    "ranks": (worlds, "4"),
    "virtual shards": (lambda c: c["virtual_shards"] or "none: DistributedDataParallel", "none"),
    "steps": (lambda c: c["steps"], "1600"),
    "checkpoint": (lambda c: f"every {c['checkpoint_every']} steps", "every 50 steps"),
    "checkpoints in flight": (lambda c: f"at most {c['max_inflight']}", "at most 4"),
    "launcher": (lambda c: c["launcher"], "torchrun"),
}
"""How runs were made, and ECRL's."""


@dataclass(frozen=True)
class Accepted:
    """A suite whose reference, blocking and overlapped runs pass: these runs, of the same seeds."""

    suite: SuiteResult
    runs: Mapping[str, Sequence[Cost]]

    def mean(self, variant: str, name: str) -> float | None:
        """Of an attribute of :class:`Cost`, of the runs of which it is known."""
        values = [getattr(cost, name) for cost in self.runs.get(variant, ())]
        known = [value for value in values if value is not None]
        return fmean(known) if known else None

    def change(self, variant: str, other: str) -> float | None:
        """Of goodput, by seeds."""
        ratio = ratio_of(self.runs.get(variant, ()), self.runs.get(other, ()))
        return None if ratio is None else ratio.mean - 1

    @property
    def gains(self) -> dict[int, float]:
        """Goodput of overlapped over that of blocking, by seed."""
        pairs = zip(self.runs[OVERLAPPED], self.runs[BLOCKING], strict=True)
        return {one.seed: one.goodput / two.goodput for one, two in pairs}

    @property
    def gain(self) -> Estimate:
        """Over all seeds."""
        return Estimate.of_ratios(list(self.gains.values()))

    @property
    def gain_percent(self) -> float:
        return 100 * (self.gain.mean - 1)

    @property
    def saved_stall_s(self) -> float:
        """By overlapped, a run."""
        pairs = zip(self.runs[OVERLAPPED], self.runs[BLOCKING], strict=True)
        return fmean(two.stall_s - one.stall_s for one, two in pairs)


def ratio_of(costs: Sequence[Cost], others: Sequence[Cost]) -> Estimate | None:
    """Of the goodputs of runs, pair by pair."""
    pairs = zip(costs, others, strict=False)
    ratios = [cost.goodput / other.goodput for cost, other in pairs]
    return Estimate.of_ratios(ratios) if ratios else None


@dataclass(frozen=True)
class Group:
    """Suites that means are taken over; a mean is unknown if it is of one of them."""

    suites: Sequence[Accepted]

    def mean(self, variant: str, name: str) -> float | None:
        return _mean([one.mean(variant, name) for one in self.suites])

    def change(self, variant: str, other: str) -> float | None:
        return _mean([one.change(variant, other) for one in self.suites])

    def difference(self, name: str) -> float | None:
        """Overlapped less blocking."""
        return subtract(self.mean(OVERLAPPED, name), self.mean(BLOCKING, name))

    @property
    def gain_by_seed(self) -> Estimate | None:
        """Per cent: suites are chosen, seeds are drawn."""
        gains = [one.gains for one in self.suites]
        seeds = set.intersection(*map(set, gains)) if gains else set[int]()
        if len(seeds) < 2:
            return None
        means = [fmean(own[seed] for own in gains) for seed in sorted(seeds)]
        return Estimate.of([100 * (mean - 1) for mean in means])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def subtract(value: float | None, other: float | None) -> float | None:
    """None if one is unknown."""
    return None if value is None or other is None else value - other


def accepted(summary: LabSummary) -> list[Accepted]:
    """Suites that means are taken over."""
    names = [name for name in (summary.reference, BLOCKING, OVERLAPPED) if name]
    suites = [Accepted(suite, summary.complete(suite, names)) for suite in summary.suites]
    return [one for one in suites if one.runs]


def analysis(summary: LabSummary) -> str:
    """All tables as Markdown."""
    suites = accepted(summary)
    costs = [cost for suite in summary.suites for cost in suite.costs]
    passed = {
        name: [cost.passed for cost in costs if cost.variant == name]
        for name in (summary.reference, BLOCKING, OVERLAPPED)
    }
    return render_markdown(
        "analysis.md.j2",
        summary=summary,
        published=published,
        axes=_axes(summary),
        factors=list(_factors(summary)),
        all=Group(suites),
        pass_rates=[_mean(list(map(float, own))) for own in passed.values()],
        ranking=sorted(suites, key=lambda one: -one.gain.mean),
        slices=list(_slices(suites)),
        known={(one.dataset, one.model, one.failure): one for one in published.SUITES},
        references=REFERENCES,
        subtract=subtract,
    )


def _axes(summary: LabSummary) -> Mapping[str, Sequence[str]]:
    sizes = {c["dataset"]["name"]: c["dataset_size"] for c in summary.configs}
    models = {c["model"]["name"]: c["model"] for c in summary.configs}
    schedules = {suite.failure: summary.schedule(suite) for suite in summary.suites}
    return {
        "data set": [f"{name} ({size} samples)" for name, size in sizes.items()],
        "model": [_model(model) for model in models.values()],
        "failures": [f"{name} ({schedule})" for name, schedule in schedules.items()],
        "variant": list(dict.fromkeys(name for suite in summary.suites for name in suite.variants)),
    }


def _model(model: Mapping[str, Any]) -> str:
    parts = []
    if model.get("width"):
        parts.append(f"width {model['width']}")
    if model["name"].startswith("resnet"):
        parts.append(f"{model['norm']} norm")
    if model.get("dropout"):
        parts.append(f"dropout {model['dropout']}")
    return f"{model['name']} ({', '.join(parts)})" if parts else str(model["name"])


def _factors(summary: LabSummary) -> Iterator[Sequence[str]]:
    for factor, (of, paper) in FACTORS.items():
        values = summary.values(of)
        yield factor, "controlled" if len(values) == 1 else "varied", "; ".join(values), paper
    yield "strategy, failures, data set, model", "varied", "table 3", "the same"
    seeds = summary.values(lambda config: config["seed"])
    yield "seeds", "repeated" if len(seeds) > 1 else "controlled", ", ".join(seeds), "one"


def _slices(suites: Sequence[Accepted]) -> Iterator[tuple[str, str, Group]]:
    for axis in ("dataset", "model", "failure"):
        for value in dict.fromkeys(getattr(one.suite, axis) for one in suites):
            group = [one for one in suites if getattr(one.suite, axis) == value]
            yield axis, value, Group(group)
