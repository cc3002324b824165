"""What saves and lost work would have cost on machines whose lifetimes are known.

A preemption loses all work since the last save; a policy knows only past lifetimes of its pool. The
end of a lifetime is known up to a tick, so a cost is the mean over an end half a gap before to half
a gap after: with ends in the middle an interval just below a multiple of the gap would seem best.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from deepvm.core.arrays import FloatArray
from deepvm.core.preemption.preemption_estimators import Lifetimes, LomaxHistory
from deepvm.core.preemption.savepolicy import SaveFacts, SavePolicy, parse_policy, whole_steps
from deepvm.core.units import refuse_no_time
from deepvm.errors import RequestError
from deepvm.records import dataclass, replace
from deepvm.simulator.traces.trace import TraceLives

STEP_S = 4.6  # One step of GPT-117M in the Spotify thesis, table 6.2
# Prior mean time to preemption of a pool: 3 h, as in chapter 6 of the Spotify thesis
MTTP_S = 10_800.0
# Reference rows next to the policies; they know the future
BEST_FIXED, EMERGENCY = "best-fixed", "emergency"
POLICIES = ("thesis", BEST_FIXED, "hazard", EMERGENCY)
# Intervals tried for the best one, some 5 % apart: half of that off the optimum costs 0.03 %
CANDIDATES = 241
MOST_CYCLES = 200_000  # Saves in one lifetime: one every three seconds for a week


@dataclass(frozen=True)
class Cost:
    """Seconds of machine time, all means over the ends that the lifetimes may have had."""

    machine_s: float = 0.0  # in all
    saves_s: float = 0.0
    lost_s: float = 0.0  # for work that was lost
    preemptions: int = 0
    interval_s: float | None = None  # of best-fixed; infinite: no saves

    @property
    def share(self) -> float:
        return (self.saves_s + self.lost_s) / self.machine_s

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.machine_s + other.machine_s,
            self.saves_s + other.saves_s,
            self.lost_s + other.lost_s,
            self.preemptions + other.preemptions,
        )


@dataclass(frozen=True)
class ReplayResult:
    """What one policy costs on each pool, at one latency of a save."""

    policy: str
    save_s: float
    pools: tuple[Cost, ...]

    @property
    def total(self) -> Cost:
        return sum(self.pools, Cost())


def replay(
    pools: Sequence[TraceLives],
    policy: SavePolicy,
    save_s: float,
    *,
    step_s: float = STEP_S,
    mttp_s: float = MTTP_S,
) -> tuple[Cost, ...]:
    """The cost per pool of a policy that learns from ended lifetimes. Raises RequestError."""
    _check(save=save_s, step=step_s, mttp=mttp_s)
    known = zip(*(_known(lives, mttp_s) for lives in pools), strict=True)
    mean, shape, scale = (np.concatenate(each) for each in known)
    ended = np.concatenate([lives.ended for lives in pools])
    low, high = (np.concatenate(ends) for ends in zip(*map(_ends, pools), strict=True))
    saves = np.zeros(low.size)
    lost = np.zeros(low.size)
    # All lifetimes advance from save to save together, and leave after their last end
    at = np.arange(low.size)
    begun = np.zeros(low.size)
    done = 0
    while at.size:
        facts = SaveFacts(
            save_s=save_s,
            step_s=step_s,
            mttp_s=mean[at],
            age_s=begun,
            shape=shape[at],
            scale_s=scale[at],
        )
        work = np.broadcast_to(whole_steps(policy, facts) * step_s, at.shape)
        durable = begun + work + save_s
        first = np.clip(low[at], begun, durable)
        last = np.clip(high[at], begun, durable)
        # An end that is uniform on [first, last] of this cycle loses what lies between it and the
        # last save. A lifetime that was only watched has nothing to lose, but part of a save may be
        # in what was seen of it.
        loses = (last - begun) ** 2 - (first - begun) ** 2
        part = np.maximum(last - begun - work, 0) ** 2 - np.maximum(first - begun - work, 0) ** 2
        lost[at] += np.where(ended[at], loses, 0) / 2
        saves[at] += done * save_s * (last - first) + np.where(ended[at], 0, part) / 2
        stays = durable < high[at]
        at = at[stays]
        begun = durable[stays]
        done = done + 1
        if done > MOST_CYCLES:
            raise RequestError(
                "policies", policy.name, f"policies with at most {MOST_CYCLES} saves in a lifetime"
            )
    width = high - low
    begins = np.cumsum([0, *(lives.life_s.size for lives in pools)])[:-1]
    sums = zip(
        np.add.reduceat(saves / width, begins), np.add.reduceat(lost / width, begins), strict=True
    )
    return tuple(
        Cost(lives.seen_s, float(s), float(w), lives.preemptions)
        for lives, (s, w) in zip(pools, sums, strict=True)
    )


def best_fixed(lives: TraceLives, save_s: float, *, step_s: float = STEP_S) -> Cost:
    """The cost of the best of ``CANDIDATES`` fixed intervals, or none (infinite), in hindsight."""
    _check(save=save_s, step=step_s)
    low, high = _ends(lives)
    longest = max(float(high.max()), 2 * step_s)
    work = np.ceil(np.geomspace(step_s, longest, CANDIDATES) / step_s - 1e-9) * step_s
    work = np.append(np.unique(work), 2 * longest)

    def up_to(end: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Integrals over ends from 0 to ``end`` of save time and of lost work: (lives, work)."""
        cycle = work + save_s
        over = lives.ended[:, None]
        whole = np.floor(end[:, None] / cycle)
        rest = end[:, None] - whole * cycle
        part = whole * save_s**2 / 2 + np.maximum(rest - work, 0) ** 2 / 2
        saves = save_s * (cycle * whole * (whole - 1) / 2 + whole * rest) + np.where(over, 0, part)
        return saves, np.where(over, whole * cycle**2 / 2 + rest**2 / 2, 0)

    width = (high - low)[:, None]
    saves, lost = (
        np.sum((b - a) / width, axis=0) for a, b in zip(up_to(low), up_to(high), strict=True)
    )
    best = int(np.argmin(saves + lost))
    interval = math.inf  # one longer than every lifetime is none
    if work[best] < high.max():
        interval = float(work[best])
    return Cost(lives.seen_s, float(saves[best]), float(lost[best]), lives.preemptions, interval)


def emergency(lives: TraceLives, save_s: float, *, step_s: float = STEP_S) -> Cost:
    """The cost of one save per preemption, after the step under way (thesis, Algorithm 1 (4))."""
    _check(save=save_s, step=step_s)
    life = lives.life_s[lives.ended]
    # A lifetime shorter than a save costs all of it.
    saves = np.minimum(save_s, life)
    lost = np.minimum(step_s, life - saves)
    return Cost(lives.seen_s, float(saves.sum()), float(lost.sum()), lives.preemptions)


def replay_all(
    pools: Sequence[TraceLives],
    policies: Sequence[str] = POLICIES,
    saves_s: Sequence[float] = (2.55, 19.5, 120.0),
    *,
    step_s: float = STEP_S,
    mttp_s: float = MTTP_S,
) -> tuple[ReplayResult, ...]:
    """Replay each policy at each latency of a save on each pool. Raises RequestError."""
    known = {name: _policy(name) for name in policies}
    found = []
    for name, policy in known.items():
        for save_s in saves_s:
            if policy is None:
                cost_of = emergency
                if name == BEST_FIXED:
                    cost_of = best_fixed
                costs = tuple(cost_of(pool, save_s, step_s=step_s) for pool in pools)
            else:
                costs = replay(pools, policy, save_s, step_s=step_s, mttp_s=mttp_s)
            found.append(ReplayResult(name, save_s, costs))
    return tuple(found)


def _known(lives: TraceLives, mttp_s: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(lives,) mean lifetime, Lomax shape and scale at each start, from earlier lifetimes."""
    mean = Lifetimes(mttp_s).after(lives.life_s, lives.ended)
    law = LomaxHistory.around(mttp_s).after(lives.life_s, lives.ended)
    mean = replace(mean, seen_s=_before(mean.seen_s), preemptions=_before(mean.preemptions))
    watched = _before(law.watched_logs)
    law = replace(law, ended=_before(law.ended), logs=_before(law.logs), watched_logs=watched)
    return np.asarray(mean.mean_s), *law.most_probable()


def _before(each: ArrayLike) -> FloatArray:
    values = np.asarray(each, dtype=float)
    return np.asarray(np.cumsum(values, axis=0) - values)


def _ends(lives: TraceLives) -> tuple[FloatArray, FloatArray]:
    """(lives,) from when to when a lifetime may have ended, or was watched: (n,) and (n,)."""
    return lives.low_s, lives.life_s + lives.gap_s / 2


def _policy(name: str) -> SavePolicy | None:
    if name in (BEST_FIXED, EMERGENCY):
        return None
    try:
        return parse_policy(name)
    except RequestError as error:
        raise RequestError(
            "policies", name, f"{BEST_FIXED}, {EMERGENCY}, {error.allowed}"
        ) from None


def _check(**times: float) -> None:
    for name, value in times.items():
        refuse_no_time(name, value)
