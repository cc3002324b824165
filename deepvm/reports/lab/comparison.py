"""Tables 2 to 7 of ECRL for another matrix, next to the published figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from deepvm.io.user_dirs import data_folder
from deepvm.lab.results import BLOCKING, Cost, Estimate, SuiteResult
from deepvm.reports.lab.summary import REFERENCES, LabSummary
from deepvm.reports.pages import render_markdown

OVERLAPPED = "ovl"


@dataclass(frozen=True)
class AcceptedSuite:
    """A suite whose reference, blocking and overlapped runs pass: these runs, of the same seeds."""

    suite: SuiteResult
    runs: Mapping[str, Sequence[Cost]]

    def mean(self, variant: str, name: str) -> float | None:
        """Of an attribute of :class:`Cost`, of the runs of which it is known."""
        values = [getattr(cost, name) for cost in self.runs.get(variant, ())]
        known = [value for value in values if value is not None]
        if known:
            return fmean(known)
        return None

    def change(self, variant: str, other: str) -> float | None:
        """Of goodput, by seeds."""
        if variant not in self.runs or other not in self.runs:
            return None
        return ratio_of(self.runs[variant], self.runs[other]).mean - 1

    @property
    def pairs(self) -> list[tuple[Cost, Cost]]:
        """The overlapped and the blocking run of each seed."""
        return list(zip(self.runs[OVERLAPPED], self.runs[BLOCKING], strict=True))

    @property
    def gains(self) -> dict[int, float]:
        """Goodput of overlapped over that of blocking, by seed."""
        return {one.seed: one.goodput / two.goodput for one, two in self.pairs}

    @property
    def gain(self) -> Estimate:
        """Over all seeds."""
        return ratio_of(self.runs[OVERLAPPED], self.runs[BLOCKING])

    @property
    def gain_percent(self) -> float:
        return 100 * (self.gain.mean - 1)

    @property
    def saved_stall_s(self) -> float:
        """By overlapped, a run."""
        return fmean(two.stall_s - one.stall_s for one, two in self.pairs)


def ratio_of(costs: Sequence[Cost], others: Sequence[Cost]) -> Estimate:
    """Of the goodputs of runs, pair by pair."""
    pairs = zip(costs, others, strict=True)
    return Estimate.of_ratios([cost.goodput / other.goodput for cost, other in pairs])


@dataclass(frozen=True)
class Group:
    """Suites that means are taken over; a mean is unknown if it is of one of them."""

    suites: Sequence[AcceptedSuite]

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
        seeds = set.intersection(*map(set, gains)) if gains else ()
        if len(seeds) < 2:
            return None
        means = [fmean(own[seed] for own in gains) for seed in sorted(seeds)]
        return Estimate.of([100 * (mean - 1) for mean in means])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if known and len(known) == len(values):
        return fmean(known)
    return None


def subtract(value: float | None, other: float | None) -> float | None:
    """None if one is unknown."""
    if value is None or other is None:
        return None
    return value - other


def accepted(summary: LabSummary) -> list[AcceptedSuite]:
    """Suites that means are taken over."""
    names = [name for name in (summary.reference, BLOCKING, OVERLAPPED) if name]
    suites = [AcceptedSuite(suite, summary.complete(suite, names)) for suite in summary.suites]
    return [one for one in suites if one.runs]


def analysis(summary: LabSummary) -> str:
    """All tables as Markdown."""
    suites = accepted(summary)
    published = json.loads((data_folder() / "lab" / "ecrl-published.json").read_text())
    return render_markdown(
        "analysis.md.j2",
        summary=summary,
        published=published,
        all=Group(suites),
        Group=Group,
        ranking=sorted(suites, key=lambda one: -one.gain.mean),
        references=REFERENCES,
        subtract=subtract,
    )
