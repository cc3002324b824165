"""The results of a matrix as a page for a browser: one file, no network, no scripts."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence

from deepvm.lab.audit.gates import GATES
from deepvm.lab.audit.publication import publishable
from deepvm.lab.results import Estimate, SuiteResult, Variant
from deepvm.reports.charts import Scale
from deepvm.reports.lab.comparison import accepted
from deepvm.reports.lab.summary import REFERENCES, LabSummary
from deepvm.reports.pages import render

_SHOWN_FACTOR = 2.0
"""Of an interval, what is within this factor of the means is drawn: those of two or three pairs
would hide everything else."""


def lab_page(summary: LabSummary, figures: Sequence[str] = (), version: str = "") -> str:
    """The whole page, in ASCII. ``figures``: files of pictures to link to."""
    overall = {suite.title: suite.over(summary.reference) for suite in summary.suites}
    compared = accepted(summary)
    return render(
        "lab_page.html.j2",
        summary=summary,
        figures=figures,
        version=version,
        gates={name: (inspect.getdoc(gate) or "").split("\n")[0] for name, gate in GATES.items()},
        references=REFERENCES,
        publishable=publishable,
        times_of=times_of,
        overall={suite: ratios for suite, ratios in overall.items() if ratios},
        overall_scale=ratio_scale(one for ratios in overall.values() for one in ratios.values()),
        gains={one.title: one.gain for one in compared},
        points=[(o.saved_stall_s, o.gain_percent, o.title) for o in compared],
        ratio_scale=ratio_scale,
        Scale=Scale,
    )


def times_of(suite: SuiteResult) -> Mapping[str, Mapping[str, float]]:
    """Where the time of a run went, by variant."""
    return {name: seconds_of(own) for name, own in suite.variants.items() if own.passing}


def seconds_of(variant: Variant) -> Mapping[str, float]:
    """Seconds of a run by parts that exclude one another."""
    names = {"compute": "compute", "recompute": "repeated", "save": "stall"}
    names |= {part: part for part in ("detect", "restart", "restore")}
    seconds = {part: variant.mean(f"{name}_s") or 0.0 for part, name in names.items()}
    seconds["compute"] -= seconds["recompute"]
    rest_s = (variant.mean("wall_s") or 0.0) - sum(seconds.values())
    return {**seconds, "rest": max(rest_s, 0.0)}


def ratio_scale(ratios: Iterable[Estimate]) -> Scale:
    """An axis with all ratios, 1, and what is drawn of their intervals."""
    estimates = list(ratios)
    means = [1.0, *(one.mean for one in estimates)]
    lowest = min(means) / _SHOWN_FACTOR
    highest = max(means) * _SHOWN_FACTOR
    ends = [end for one in estimates for end in (one.low, one.high) if end is not None]
    return Scale.of([*means, *(min(max(end, lowest), highest) for end in ends)], around=1.0)
