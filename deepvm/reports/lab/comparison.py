"""Tables 2 to 7 of ECRL for another matrix, next to the published figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from operator import sub
from statistics import fmean

from deepvm.io.user_dirs import data_folder
from deepvm.lab.results import BLOCKING, Estimate, SuiteResult, Variant
from deepvm.reports.lab.summary import REFERENCES, LabSummary
from deepvm.reports.pages import render_markdown

OVERLAPPED = "ovl"


class AcceptedSuite(SuiteResult):
    """A suite's runs of the seeds with which its reference, blocking and overlapped runs pass."""

    def mean(self, variant: str, name: str) -> float | None:
        """Of an attribute of :class:`Cost`, of the runs of which it is known."""
        if variant not in self.variants:
            return None
        return self.variants[variant].mean(name)

    def change(self, variant: str, other: str) -> float | None:
        """Of goodput, by seeds."""
        if variant not in self.variants or other not in self.variants:
            return None
        ratio = self.variants[variant].over(self.variants[other])
        return None if ratio is None else ratio.mean - 1

    @property
    def gains(self) -> dict[int, float]:
        """Goodput of overlapped over that of blocking, by seed."""
        return self.variants[OVERLAPPED].gains(self.variants[BLOCKING])

    @property
    def gain(self) -> Estimate:
        """Over all seeds."""
        return self.over(BLOCKING)[OVERLAPPED]

    @property
    def gain_percent(self) -> float:
        return 100 * (self.gain.mean - 1)

    @property
    def saved_stall_s(self) -> float:
        """By overlapped, a run."""
        stalls = [self.variants[name].known("stall_s") for name in (BLOCKING, OVERLAPPED)]
        return fmean(map(sub, *stalls))


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
        # Means over different suites could not be compared
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
    names = {summary.reference or BLOCKING, BLOCKING, OVERLAPPED}
    suites = []
    for suite in summary.suites:
        own = [suite.variants[name] for name in names if name in suite.variants]
        if len(own) < len(names):
            continue
        # Ratios are paired by seed: one counts where all of these runs pass
        seeds = set.intersection(*({cost.seed for cost in one.passing} for one in own))
        if seeds:
            runs = {v.name: Variant(v.name, [c for c in v.passing if c.seed in seeds]) for v in own}
            suites.append(AcceptedSuite(suite.dataset, suite.model, suite.failure, runs))
    return suites


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
