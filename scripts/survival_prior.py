"""What spot pools have in common, learned from traces: the prior for an unknown pool.

Each pool has a rate of losses of its own, under which what happened after each full hour is the
most probable. The Gamma distribution of these rates, by their mean and variance, is the prior. Its
spread is that of pools, and holds what one law for all moments of a pool leaves out. Traces of one
machine give the rates and the shares of time in which it was there; traces of several give the
correlations, one for each trace.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deepvm.core.preemption.gang_survival import Availability, Lifetime, LifetimePosterior, LossRate
from deepvm.errors import DataError
from deepvm.simulator.survival.evidence import Prior
from deepvm.simulator.traces.trace import Trace

FEWEST_POOLS = 3
_WITHIN_S = 4 * 3600.0
"""Losses within this time count as correlated; from 1 to 12 h the figures are much the same."""
_SPREAD = 1.25
"""Widening of the prior: pools of another campaign differ more; with this, 80 % intervals cover
about 80 % of the pools of campaigns that were held out (docs/internals/explain/survive.md).
"""
_UNKNOWN = 0.75
"""Correlation where no trace has several machines; the public ones have 0.4 to 1."""
EVERY_S = 3600.0
"""Between two requests."""
ASKED_EVERY_S = 12 * 3600.0
HOURS = (1, 4, 12, 24)
"""How long machines are watched from then on."""


def fit_prior(traces: Sequence[Trace]) -> Prior:
    """Learn from traces. Raises DataError: fewer than ``FEWEST_POOLS`` of one machine."""
    alone = [t for t in traces if t.nodes == 1]
    gangs = [t for t in traces if t.nodes > 1]
    lives = [found for t in alone if (found := t.lives()).life_s.size]
    if len(lives) < FEWEST_POOLS:
        raise DataError(
            f"{len(lives)} traces of one machine have lives that begin in them; {FEWEST_POOLS} are"
            " needed"
        )
    rates = np.array([rate for t in alone if (rate := _rate_of(t)) is not None])
    belief = LifetimePosterior(
        _rate(rates),
        _shares(np.array([float(t.counts.mean()) for t in alone])),
        tuple(filter(None, (_loss_correlation(t) for t in gangs))) or (_UNKNOWN,),
        tuple(filter(None, (_had_correlation(t) for t in gangs))) or (_UNKNOWN,),
    )
    days = sum(t.counts.size * t.gap_s for t in alone) / 86_400
    return Prior(belief, len(lives), len(gangs), sum(found.life_s.size for found in lives), days)


def _rate_of(trace: Trace) -> float | None:
    """The rate of losses of a pool, 1/sqrt(h), by maximum likelihood.

    None where its machine was never watched.

    Windows of several lengths, which overlap, count as if they did not: the maximum is the same,
    only its doubt is not.
    """
    from scipy.optimize import minimize_scalar

    roots = []
    lasted = []
    lost = []
    for hours in HOURS:
        found = windows(trace, hours * EVERY_S)
        roots.append(math.sqrt(hours))
        lasted.append(int(found.lasted.sum()))
        lost.append(int(found.had.sum()) - lasted[-1])
    if not sum(lasted) + sum(lost):
        return None
    root = np.array(roots)
    yes = np.array(lasted) + 1e-3
    no = np.array(lost) + 1e-3

    def loss(log: float) -> float:
        step = math.exp(log) * root
        below = np.log1p(step) - step
        return -float(yes @ below + no @ np.log(-np.expm1(below)))

    return math.exp(
        minimize_scalar(loss, bounds=(math.log(1e-3), math.log(1e2)), method="bounded").x
    )


def _rate(rates: npt.NDArray[np.float64]) -> LossRate:
    """The Gamma distribution with their mean and ``_SPREAD`` times their variance."""
    mean = float(rates.mean())
    variance = max(_SPREAD * float(rates.var(ddof=1)), 1e-6)
    return LossRate(mean**2 / variance, mean / variance)


def _shares(shares: npt.NDArray[np.float64]) -> Availability:
    """The Beta distribution with their mean and variance."""
    mean = float(shares.mean())
    variance = max(float(shares.var(ddof=1)), 1e-4)
    mean = min(max(mean, 0.01), 0.99)
    strength = max(mean * (1 - mean) / variance - 1, 0.5)
    return Availability(mean * strength, (1 - mean) * strength)


def _loss_correlation(trace: Trace) -> float | None:
    found = windows(trace, _WITHIN_S)
    return _correlation(found.lost[found.had], trace.nodes)


def _had_correlation(trace: Trace) -> float | None:
    return _correlation(trace.nodes - trace.counts[:: every(trace)], trace.nodes)


def _correlation(missing: npt.NDArray[np.int64], of: int) -> float | None:
    """Parameters of a Beta-binomial by maximum likelihood; None if the data do not tell."""
    from scipy.optimize import minimize
    from scipy.special import betaln, expit

    if not 0 < missing.sum() < missing.size * of:
        return None
    values, times = np.unique(missing, return_counts=True)

    def loss(logits: npt.NDArray[np.float64]) -> float:
        share, correlation = np.clip(expit(logits), 1e-6, 1 - 1e-6)
        a = share * (1 / correlation - 1)
        b = (1 - share) * (1 / correlation - 1)
        return -float(times @ (betaln(a + values, b + of - values) - betaln(a, b)))

    found = minimize(loss, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-8})
    return float(expit(found.x[1]))


def to_text(prior: Prior) -> str:
    """The file of a prior, four digits each."""
    document: dict[str, Any] = {
        "schema_version": "deepvm.survival-prior/1",
        "description": (
            "What pools of spot VMs have in common (deepvm/core/preemption/gang_survival.py),"
            " learnt by scripts/calibrate_survival.py. rate: Gamma, 1/sqrt(hour). availability:"
            " Beta."
        ),
        **{key: value for key, value in asdict(prior).items() if key != "belief"},
        **{key: value for key, value in asdict(prior.belief).items() if key != "placement_score"},
    }
    return json.dumps(_rounded(document), indent=1) + "\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, (list, tuple)) else value


# Hourly requests for all machines of a trace: whether they came, and how long they stayed.


@dataclass(frozen=True)
class Windows:
    """Hourly requests for all machines of a trace, with a fully observed time after each.

    Attributes:
        ticks: (n,) when. had: (n,) whether all machines were there.
        lasted: (n,) whether all stayed for the time; False where they were not there.
        lost: (n,) how many of them went within it.
    """

    ticks: npt.NDArray[np.int64]
    had: npt.NDArray[np.bool_]
    lasted: npt.NDArray[np.bool_]
    lost: npt.NDArray[np.int64]


def windows(trace: Trace, for_s: float) -> Windows:
    """Of a time; none where the trace is shorter."""
    length = max(round(for_s / trace.gap_s), 1)
    ticks = np.arange(0, max(trace.counts.size - length, 0), every(trace))
    if not ticks.size:
        return Windows(
            ticks, np.zeros(0, dtype=bool), np.zeros(0, dtype=bool), np.zeros(0, dtype=np.int64)
        )
    least = np.lib.stride_tricks.sliding_window_view(trace.counts, length + 1).min(axis=1)[ticks]
    had = trace.counts[ticks] >= trace.nodes
    return Windows(ticks, had, had & (least >= trace.nodes), trace.nodes - least)


def every(trace: Trace) -> int:
    """Ticks between two requests."""
    return max(round(EVERY_S / trace.gap_s), 1)


@dataclass(frozen=True)
class Asked:
    """A request for all machines of a trace: those that came until lost or released, others.

    ``known``: the tick at which the last of them was, or would have been, given back.
    """

    known: int
    lives: tuple[Lifetime, ...]
    refused: int


def asked(trace: Trace) -> tuple[Asked, ...]:
    """What a user has seen who asks every ``ASKED_EVERY_S``, and keeps machines until then.

    Counts do not tell machines apart: the one that came last is taken to go first.
    """
    length = max(round(ASKED_EVERY_S / trace.gap_s), 1)
    found = []
    for begin in range(0, trace.counts.size - length, length):
        counts = trace.counts[begin : begin + length + 1]
        had = int(min(counts[0], trace.nodes))
        gone = [np.flatnonzero(counts < number) for number in range(1, had + 1)]
        lives = tuple(
            Lifetime(float(g[0] if g.size else length) * trace.gap_s, bool(g.size)) for g in gone
        )
        found.append(Asked(begin + length, lives, trace.nodes - had))
    return tuple(found)
