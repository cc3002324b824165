"""Cluster forecasts tested on held-out traces: Brier scores and a reliability curve.

The traces of one folder, recorded in one campaign, are left out in turn; what is believed is learnt
from the others. At each full hour at which all machines of a held-out trace were there, it is
forecast whether all stay for 1, 4, 12 and 24 hours, in four ways:

- ``band``: what the cloud's interruption band says, independent VMs, of the worst band (the true
  ones are not recorded; a better one would be further off);
- ``independent``: by the other traces, as if VMs were lost independently;
- ``prior``: by the other traces, as a new user is answered;
- ``history``: with what a user had seen by then who asked for all machines every 12 hours and kept
  them until then.

Whether all machines are there is judged likewise, at each full hour; bands say nothing of it, so
plans by them take it for certain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from survival_prior import EVERY_S, HOURS, Asked, Windows, asked, fit_prior, windows

from deepvm.core.lifetimes import BAND_SHARES, mean_life_s
from deepvm.core.preemption.gang_survival import ClusterSurvival, LifetimePosterior, OwnPool
from deepvm.core.units import Interval, counted
from deepvm.errors import DataError
from deepvm.reports.pictures import STYLES, drawing
from deepvm.simulator.survival.evidence import Prior
from deepvm.simulator.traces.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = npt.NDArray[np.float64]
WAYS = ("band", "independent", "prior", "history")
_BINS = 10
_REDRAWN = 1000


@dataclass(frozen=True)
class Later:
    """What a user with a history is told in the middle of a trace, and what came after it.

    Attributes:
        had: share of the full hours with all machines. lasted: of these, with all of them for the
            time; None: of none.
    """

    forecast: ClusterSurvival
    had: float
    lasted: float | None


@dataclass(frozen=True)
class Judged:
    """The forecasts of one held-out trace for one time.

    Attributes:
        lasted: (n,) whether all machines stayed. said: by way, (n,) probabilities that they would.
        forecast: of the prior, with its intervals. had: (m,) of each full hour, whether all
            machines were there.
        said_had: by way, (m,) probabilities that they would be.
        later: of the history at a quarter, a half and three quarters of the trace.
    """

    trace: Path
    nodes: int
    hours: int
    lasted: npt.NDArray[np.bool_]
    said: dict[str, Array]
    forecast: ClusterSurvival
    had: npt.NDArray[np.bool_]
    said_had: dict[str, Array]
    later: tuple[Later, ...]

    @property
    def campaign(self) -> Path:
        """The folder of its trace."""
        return self.trace.parent


@dataclass(frozen=True)
class Bin:
    """Forecasts of about the same probability: their mean, and how often it came true."""

    said: float
    seen: float
    count: int


def judge(traces: Sequence[Trace], hours: Sequence[int] = HOURS) -> tuple[Judged, ...]:
    """Forecast each trace by those of other folders.

    Raises DataError: there are too few others to learn from.
    """
    campaigns = sorted({t.path.parent for t in traces})
    if len(campaigns) < 2:
        raise DataError(
            "the traces are of one folder; forecasts are judged on folders that are held out"
        )
    found = []
    for held_out in campaigns:
        belief = fit_prior([t for t in traces if t.path.parent != held_out]).belief
        for trace in (t for t in traces if t.path.parent == held_out):
            found += [one for h in hours if (one := _judged(trace, belief, h)) is not None]
    return tuple(found)


def _judged(trace: Trace, belief: LifetimePosterior, hours: int) -> Judged | None:
    for_s = hours * EVERY_S
    seen = windows(trace, for_s)
    if not seen.had.any():
        return None
    new = belief.forecast(trace.nodes, for_s)
    count = int(seen.had.sum())
    band = math.exp(-trace.nodes * for_s / mean_life_s(BAND_SHARES[-1]))
    told = _with_history(trace, belief, seen.ticks, for_s)
    said = {
        "band": np.full(count, band),
        "independent": np.full(count, new.independent),
        "prior": np.full(count, new.lasts.value),
        "history": np.array([one.lasts.value for one in told])[seen.had],
    }
    said_had = {
        "band": np.ones(seen.had.size),
        "independent": np.full(
            seen.had.size, float(np.mean(belief.availability.quantiles() ** trace.nodes))
        ),
        "prior": np.full(seen.had.size, new.had.value),
        "history": np.array([one.had.value for one in told]),
    }
    return Judged(
        trace.path,
        trace.nodes,
        hours,
        seen.lasted[seen.had],
        said,
        new,
        seen.had,
        said_had,
        _later(seen, told),
    )


def _later(seen: Windows, told: Sequence[ClusterSurvival]) -> tuple[Later, ...]:
    found = []
    for place in (len(told) * quarter // 4 for quarter in (1, 2, 3)):
        had, lasted = seen.had[place:], seen.lasted[place:]
        found.append(
            Later(told[place], float(had.mean()), float(lasted[had].mean()) if had.any() else None)
        )
    return tuple(found)


def _with_history(
    trace: Trace, belief: LifetimePosterior, ticks: npt.NDArray[np.int64], for_s: float
) -> list[ClusterSurvival]:
    """What a user is told at each tick, who has asked for the machines before."""
    requests = asked(trace)
    known = np.searchsorted([one.known for one in requests], ticks, side="right").tolist()
    told = {n: _told(requests[:n], belief, trace.nodes, for_s) for n in set(known)}
    return [told[n] for n in known]


def _told(
    requests: Sequence[Asked], belief: LifetimePosterior, nodes: int, for_s: float
) -> ClusterSurvival:
    lives = tuple(life for one in requests for life in one.lives)
    refused = sum(one.refused for one in requests)
    if not lives and not refused:
        return belief.forecast(nodes, for_s)
    gang = sum(len(one.lives) ** 2 for one in requests) / len(lives) if lives else 1.0
    return belief.after(OwnPool(lives, gang, refused)).forecast(nodes, for_s)


def brier(judged: Sequence[Judged], way: str) -> float:
    """Mean square of the probability less 1 or 0, over all forecasts; 0.25 is a coin's."""
    errors = [(j.said[way] - j.lasted) ** 2 for j in judged]
    return float(np.concatenate(errors).mean())


def brier_had(judged: Sequence[Judged], way: str) -> float:
    """Of whether all machines are there: each full hour of a trace counts once."""
    shortest = min(j.hours for j in judged)
    errors = [(j.said_had[way] - j.had) ** 2 for j in judged if j.hours == shortest]
    return float(np.concatenate(errors).mean())


def brier_interval(judged: Sequence[Judged], way: str, less: str) -> tuple[float, float]:
    """80 % interval of a score difference, by resampling whole traces (windows depend)."""
    paths = sorted({j.trace for j in judged})
    sums = np.zeros((len(paths), 2))
    for j in judged:
        errors = (j.said[way] - j.lasted) ** 2 - (j.said[less] - j.lasted) ** 2
        sums[paths.index(j.trace)] += float(errors.sum()), errors.size
    drawn = sums[np.random.default_rng(0).integers(len(paths), size=(_REDRAWN, len(paths)))].sum(
        axis=1
    )
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], [0.1, 0.9]).tolist()
    return float(low), float(high)


def reliability(judged: Sequence[Judged], way: str) -> tuple[Bin, ...]:
    """Forecasts by tenths of probability, those without any left out."""
    said = np.concatenate([j.said[way] for j in judged])
    lasted = np.concatenate([j.lasted for j in judged])
    place = np.minimum((said * _BINS).astype(int), _BINS - 1)
    chosen = [place == n for n in range(_BINS)]
    return tuple(
        Bin(float(said[c].mean()), float(lasted[c].mean()), int(c.sum())) for c in chosen if c.any()
    )


def coverage(judged: Sequence[Judged]) -> tuple[int, int, int]:
    """How many held-out traces and times the prior's 80 % interval covers: lives, had, all.

    A trace's own probability is its share of windows; both are compared as whole percents, as they
    are printed.
    """
    lives = sum(_holds(j.forecast.lasts, float(j.lasted.mean())) for j in judged)
    had = sum(_holds(j.forecast.had, float(j.had.mean())) for j in judged)
    return lives, had, len(judged)


def coverage_later(judged: Sequence[Judged]) -> tuple[int, int, int, int]:
    """How many shares of later outcomes the history's 80 % intervals cover: lasted, had, all."""
    later = [one for j in judged for one in j.later]
    lasted = [_holds(one.forecast.lasts, one.lasted) for one in later if one.lasted is not None]
    had = [_holds(one.forecast.had, one.had) for one in later]
    return sum(lasted), len(lasted), sum(had), len(had)


def _holds(interval: Interval, share: float) -> bool:
    return round(interval.low, 2) <= round(share, 2) <= round(interval.high, 2)


def judged_lines(judged: Sequence[Judged], prior: Prior) -> Iterator[str]:
    """Tables of ``docs/internals/explain/survive.md``, in Markdown."""
    hours = sorted({j.hours for j in judged})
    gangs = sorted({j.nodes for j in judged})
    total = sum(j.lasted.size for j in judged)
    traces = len({j.trace for j in judged})
    yield (
        f"{prior.as_of}: {total} forecasts on {traces} traces of"
        f" {len({j.campaign for j in judged})} campaigns"
    )
    yield ""
    columns = ["all", *(f"{h} h" for h in hours), *(counted(n, "VM") for n in gangs), "had"]
    yield f"| Brier score | {' | '.join(columns)} |"
    yield f"|---|{'---:|' * len(columns)}"
    for way in WAYS:
        groups = [judged, *([j for j in judged if j.hours == h] for h in hours)]
        groups += [[j for j in judged if j.nodes == n] for n in gangs]
        yield (
            f"| {way} | {' | '.join(f'{brier(group, way):.3f}' for group in groups)} |"
            f" {brier_had(judged, way):.3f} |"
        )
    yield ""
    for way in WAYS[1:]:
        low, high = brier_interval(judged, way, "band")
        yield f"{way} less band: 80 % of redrawn traces give {low:+.3f} to {high:+.3f}"
    lives, had, of = coverage(judged)
    yield (
        f"80 % intervals of 'prior' hold {lives} of {of} shares that lasted, {had} of {of}"
        " shares had"
    )
    lasted, of_lasted, had, of_had = coverage_later(judged)
    yield (
        f"80 % intervals of 'history' hold {lasted} of {of_lasted} later shares that lasted, {had}"
        f" of {of_had} had"
    )
    yield ""
    yield "| way | said | came true | forecasts |"
    yield "|---|---:|---:|---:|"
    for way in WAYS:
        for one in reliability(judged, way):
            yield f"| {way} | {100 * one.said:.0f} % | {100 * one.seen:.0f} % | {one.count} |"


def reliability_figure(judged: Sequence[Judged]) -> Figure:
    """How often forecasts came true, by their probability: one line per way of forecasting."""
    with drawing(6.4, 5.2) as (figure, axes):
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=0.9, zorder=1)
        for way, style in zip(WAYS, STYLES, strict=True):
            bins = reliability(judged, way)
            said, seen = [b.said for b in bins], [b.seen for b in bins]
            axes.plot(
                said, seen, label=f"{way} (Brier {brier(judged, way):.3f})", zorder=2, **style.line
            )
            sizes = [8 + 60 * b.count / max(one.count for one in bins) for b in bins]
            axes.scatter(said, seen, s=sizes, color=style.color, marker=style.marker, zorder=3)
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel("forecast that all VMs live (probability)")
        axes.set_ylabel("share that came true")
        axes.legend(loc="upper left", frameon=False, handlelength=4.2, fontsize="small")
        total = sum(j.lasted.size for j in judged)
        figure.suptitle("Forecasts on traces that were held out")
        axes.set_title(f"{total} forecasts for 1, 4, 12 and 24 h", fontsize="small")
    return figure
