"""The order in which plans are shown, where a model is trained.

Speeds are not known to the last digit, and more speed must be worth its price. Plans are visited
from the cheapest on. One that is better than the one kept so far, and at most 1 % worse than any
before, replaces it, unless

- it is less than 5 % better, and costs more than ten times as many per cent more and more than
  10 %;
- or it trains less for a dollar, is at most a quarter faster, and more than 1 % faster in less than
  two cases of three.

So more money never buys a slower plan, and a lower price costs at most 5 % of speed, or a quarter
where it is uncertain. Where values are costs, uncertainty does not count, and a more expensive plan
with a cost up to 5 % above the lowest is kept, too, if it is more than ten times as many per cent
faster, and more than 10 %.

Of plans within 1 % of the one kept in the end, for about its price, the one with the lower quota
need, the rarer interruptions and the lower price is shown. A plan beyond 1.5 times the largest
measured cluster comes after all others. Of those others, plans that miss the deadline more often
than once in ten times come after those that do not, and so do plans that cost more than the total
budget if they are slow at a bad time; if all do, plans about as seldom late as the best one come
first. Of those, plans that a warning of their own refutes come last: one without spot VMs is faster
and cheaper at a bad time, or the bill may be more than three times as high at a bad time as at a
good one, and a cheaper plan with a narrower bill is no slower then. The speed of large gangs counts
little more than at a bad time: ``counted_share``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from deepvm.core.arrays import BoolArray, FloatArray, IntArray
from deepvm.core.cluster.cluster import Cluster
from deepvm.core.cluster.instances import INTERRUPTION_BANDS, InstanceType
from deepvm.core.cluster.speedup import STEP_TIME
from deepvm.core.units import MICRO_USD, MOST_USD
from deepvm.planner.columns import TrainingTable, law_of
from deepvm.planner.request import PlanRequest
from deepvm.planner.search.enumeration import TIE, Choice, Enumeration, counted_share, tie_floor
from deepvm.records import dataclass, fields, replace

if TYPE_CHECKING:
    from deepvm.core.training.speed import SpeedUncertainty

# Factors have TIE added, so that rounding does not decide.
# Prices up to this factor count as equal.
PRICE_TOLERANCE = 1.1 + TIE
# Values up to this factor count as equal.
VALUE_TOLERANCE = 1.01 + TIE
# A larger difference in value decides at any price.
MIN_WORTHWHILE_GAIN = 1.05 + TIE
# A smaller gain is worth this many times its share in price or time: 5 % speed for 50 % price
MAX_PRICE_PER_GAIN = 10.0
# Most that uncertainty may cost: a plan may come before one that is up to so many times as fast
MAX_GAIN_IN_DOUBT = 1.25 + TIE
# Standard deviations that a plan must be ahead to be the faster one in two cases of three
FASTER_WITH_TWO_THIRDS_PROBABILITY_SIGMA = 0.4307272992954576
# How often a plan may miss the deadline before one that hardly does comes first.
MAX_LATE_PROBABILITY = 0.1
# Where all plans may miss the deadline: a difference in probability that does not matter.
LATE_TOLERANCE = 0.05
# The bill at a bad time, over that at a good one, from which on a plan comes after a cheaper one
# with a narrower bill that is no slower at a bad time.
MAX_BILL_SPREAD = 3.0
# Least log gain per log price of a next budget: 19 % more speed for twice the price.
MIN_GAIN_PER_PRICE = 0.25


@dataclass(frozen=True)
class Plans:
    """Plans within the budget, by price; ``apart``: :func:`distance` of two of them."""

    value: FloatArray
    price: IntArray
    type_number: IntArray
    vcpus: IntArray
    band: IntArray
    trusted: BoolArray
    late: FloatArray
    refuted: BoolArray
    apart: Callable[[int, int], float]

    def __len__(self) -> int:
        return len(self.value)

    def up_to(self, count: int) -> Plans:
        columns = {f.name: getattr(self, f.name)[:count] for f in fields(self) if f.name != "apart"}
        return replace(self, **columns)

    def eligible(self, left: BoolArray) -> BoolArray:
        believed = left & self.trusted
        if not believed.any():
            believed = left
        in_time = believed & (self.late <= MAX_LATE_PROBABILITY)
        if not in_time.any():
            least = float(np.min(self.late, where=believed, initial=1.0))
            in_time = believed & (self.late <= max(MAX_LATE_PROBABILITY, least + LATE_TOLERANCE))
        sound = in_time & ~self.refuted
        return sound if sound.any() else in_time

    def first(self, left: BoolArray) -> int:
        eligible = self.eligible(left)
        *_, kept = self.kept(eligible)
        return self.shown(eligible, kept)

    def kept(self, eligible: BoolArray) -> Iterator[int]:
        """The rows that are kept, one after the other, as the budget rises."""
        value = np.where(eligible, self.value, -np.inf)
        best = np.maximum.accumulate(value)
        if value.max() > 0:
            rows = np.flatnonzero(eligible & (value * VALUE_TOLERANCE >= best))
        else:  # costs: a higher one may be worth it
            rows = np.flatnonzero(eligible & (value >= best * MIN_WORTHWHILE_GAIN))
        row, *others = rows.tolist()
        yield row
        for other, most in zip(others, best[others].tolist(), strict=True):
            if self._takes_over(row, other, most):
                row = other
                yield row

    def _takes_over(self, row: int, other: int, best: float) -> bool:
        """Whether a more expensive plan replaces the kept one; ``best``: best value up to it."""
        now = float(self.value[row])
        value = float(self.value[other])
        price = float(self.price[other] / self.price[row])
        if now <= 0:
            # Of equal costs the first by name stays, so that the order does not depend on --top.
            behind = value / best - 1.0
            return value > now or price * now / value > max(
                PRICE_TOLERANCE, 1.0 + TIE + MAX_PRICE_PER_GAIN * behind
            )
        times = value / now
        worth = times >= MIN_WORTHWHILE_GAIN or price <= max(
            PRICE_TOLERANCE, 1.0 + TIE + MAX_PRICE_PER_GAIN * (times - 1.0)
        )
        if times <= 1.0 or not worth:
            return False
        if times > MAX_GAIN_IN_DOUBT or times * (1.0 + TIE) >= price:
            return True
        apart = FASTER_WITH_TWO_THIRDS_PROBABILITY_SIGMA * self.apart(row, other)
        return times >= VALUE_TOLERANCE and math.log(times / VALUE_TOLERANCE) >= apart

    def firsts(self, above: int) -> Iterator[tuple[int, int]]:
        """The first row of the cheapest n plans, for each n > ``above`` where it may change."""
        sound = self.trusted & (self.late <= MAX_LATE_PROBABILITY) & ~self.refuted
        # Of prices that never fall: how many are up to each different one
        numbers = np.flatnonzero(np.diff(self.price, append=-1)) + 1
        numbers = numbers[numbers > above]
        start = int(np.argmax(sound)) if sound.any() else len(self)
        early = numbers[numbers <= start]
        # Below the first plan that is sound, eligibility changes with the budget
        if self.late[:start].any() or self.refuted[:start].any():
            yield from (
                (n, self.up_to(n).first(np.ones(n, dtype=np.bool_))) for n in early.tolist()
            )
        else:
            yield from self._shown_of(early, np.arange(len(self)) < start)
        yield from self._shown_of(numbers[numbers > start], sound)

    def _shown_of(self, numbers: IntArray, eligible: BoolArray) -> Iterator[tuple[int, int]]:
        """As :meth:`firsts`, where more money does not change what is eligible."""
        if not len(numbers):
            return
        kept = np.array([*self.kept(eligible)], dtype=np.int64)
        now = kept[np.maximum(np.searchsorted(kept, np.arange(len(self)), side="right") - 1, 0)]
        near = eligible & (_times(self.value[now], self.value) <= VALUE_TOLERANCE)
        changes = np.searchsorted(self.price, self.price[near], side="right")
        for n in numbers[np.isin(numbers, changes)].tolist():
            yield n, self.up_to(n).shown(eligible[:n], int(now[n - 1]))

    def shown(self, eligible: BoolArray, kept: int) -> int:
        """The row to show for a kept one: of its equals at about its price, by quota and risk."""
        price = float(self.price[kept])
        start, end = np.searchsorted(
            self.price, [int(price / PRICE_TOLERANCE), int(price * PRICE_TOLERANCE) + 1]
        ).tolist()
        cheaper = np.max(self.value[:start], where=eligible[:start], initial=-np.inf)
        about = slice(start, end)  # a few of thousands of plans
        value = np.where(eligible[about], self.value[about], -np.inf)
        mine = float(value[kept - start])
        near = (
            eligible[about]
            & (_times(mine, value) <= VALUE_TOLERANCE)
            & (_times(value, mine) <= VALUE_TOLERANCE)
        )
        near &= _times(np.maximum(np.maximum.accumulate(value), cheaper), value) <= VALUE_TOLERANCE
        near &= self.price[about] * PRICE_TOLERANCE >= self.price[kept]
        near[kept - start] = True
        rows = start + np.flatnonzero(near)
        # The value includes the band already; here it only decides between equals.
        order = np.lexsort((rows, self.price[rows], self.band[rows], self.vcpus[rows]))
        return int(rows[order[0]])


def _times(value: FloatArray | float, other: FloatArray | float) -> FloatArray:
    """The ratio of two values: both are speeds, or (below 0) unit prices."""
    value, other = np.broadcast_arrays(value, other)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(value > 0, value / other, other / value)
    return np.where(value == other, 1.0, np.where(other == -np.inf, np.inf, ratio))


def ranked(enumeration: Enumeration, request: PlanRequest, budget: int, count: int) -> list[Choice]:
    """The best ``count`` plans within a budget, as every command shows them."""
    if request.weighs_doubt:
        return weighed(enumeration, budget, count, machines=request.ranks_machines)
    return enumeration.top(budget, count)


def first(enumeration: Enumeration, request: PlanRequest, budget: int) -> Choice | None:
    """The plan that comes first within a budget, if any."""
    if request.weighs_doubt:
        return next(iter(weighed(enumeration, budget, 1)), None)
    return enumeration.best(budget)  # a look-up, as sweeps need it


def next_first(
    enumeration: Enumeration, request: PlanRequest, budget: int, now: Choice | None
) -> Choice | None:
    """What comes first at the next budget that buys something better than ``now``, if any.

    Where uncertainty counts, better means by 5 %, and by a quarter of the additional price in per
    cent. Of the budgets up to twice this one it is the one that pays best: the most speed for the
    added money, or the lowest cost. The very next one is often only a little faster.
    """
    if not request.weighs_doubt or now is None:
        return enumeration.next_change(budget)
    bar = now.value + abs(now.value) * (MIN_WORTHWHILE_GAIN - 1)

    def worth(most: int, above: int) -> Iterator[Choice]:
        for _, choice in firsts(enumeration, most, above=above):
            if (
                choice.value >= bar
                and choice.price > budget
                and _repaid(choice, now) >= MIN_GAIN_PER_PRICE
            ):
                yield choice

    near = list(worth(2 * budget, budget))
    if near:
        return max(reversed(near), key=lambda choice: _repaid(choice, now))
    return next(worth(MOST_USD * MICRO_USD, 2 * budget), None)


def _repaid(choice: Choice, now: Choice) -> float:
    """Relative speed over relative price of a more expensive plan (logs); for costs, the saving."""
    if now.value <= 0:
        return 1.0 + math.log(now.value / choice.value)
    return math.log(choice.value / now.value) / math.log(choice.price / now.price)


def most_valuable(
    enumeration: Enumeration, request: PlanRequest, budget: int, *, late: bool = False
) -> Choice | None:
    """The plan with the best value within a budget; with uncertainty of those that may come first.

    ``late``: also those that may miss the deadline, or that a warning refutes.
    """
    within = enumeration.affordable(budget)
    if not request.weighs_doubt or not within:
        return enumeration.best(budget)
    eligible = _eligible(enumeration, within, late)
    row = int(np.argmax(np.where(eligible, enumeration.value[:within], -np.inf)))
    return _choice(enumeration, _plans(enumeration, within), row)


def is_best(enumeration: Enumeration, request: PlanRequest, budget: int, plan: Choice) -> bool:
    """Whether no trusted plan within the budget is over 1 % better with the usual preemptions.

    Speeds count large gangs as at a bad time, see :func:`counted_share`.
    """
    within = enumeration.affordable(budget)
    if not request.weighs_doubt:
        return plan.value >= tie_floor(float(enumeration.best_so_far[within - 1]))
    eligible = _eligible(enumeration, within, late=not request.derives_budget)
    values, usual = enumeration.value[:within], plan.value
    if usual > 0:  # not a cost
        values = values * enumeration.column(_over_counted)[:within]
        usual *= float(_over_counted(plan.block.sizes)[plan.size])
    best = float(np.max(values, where=eligible, initial=-np.inf))
    return best <= usual + abs(usual) * (VALUE_TOLERANCE - 1)


def _over_counted(sizes: TrainingTable) -> FloatArray:
    """The usual share that preemptions leave, over the one that is counted."""
    return sizes.kept / counted_share(sizes.kept, sizes.kept_bad)


def cheapest_reaching(
    enumeration: Enumeration, request: PlanRequest, value: float, *, late: bool = False
) -> Choice | None:
    """The cheapest plan of at least this value; with uncertainty as in :func:`most_valuable`."""
    if not request.weighs_doubt:
        return enumeration.reaching(value)
    rows = _eligible(enumeration, len(enumeration), late) & (enumeration.value >= value)
    if rows.any():
        return enumeration.choice(int(np.argmax(rows)))
    return None


def _eligible(enumeration: Enumeration, within: int, late: bool) -> BoolArray:
    """Which of so many cheapest plans may come first; ``late``: also those that come later."""
    plans = _plans(enumeration, within)
    if late:
        plans = replace(plans, late=np.zeros(within), refuted=np.zeros(within, dtype=np.bool_))
    return plans.eligible(np.ones(within, dtype=np.bool_))


def weighed(
    enumeration: Enumeration, budget: int, count: int, *, machines: bool = True
) -> list[Choice]:
    """The best ``count`` plans within a budget in order; ``machines``: one per VM type."""
    plans = _plans(enumeration, enumeration.affordable(budget))
    left = np.ones(len(plans), dtype=np.bool_)
    chosen = list[Choice]()
    while len(chosen) < count and left.any():
        row = plans.first(left)
        chosen.append(_choice(enumeration, plans, row))
        if machines:
            left &= plans.type_number != plans.type_number[row]
        else:
            left[row] = False
    return chosen


def firsts(enumeration: Enumeration, most: int, *, above: int = -1) -> Iterator[tuple[int, Choice]]:
    """What :func:`weighed` puts first at each budget in (``above``, ``most``]: (budget, plan)."""
    plans = _plans(enumeration, enumeration.affordable(most))
    last = -1
    for count, row in plans.firsts(int(np.searchsorted(plans.price, above, side="right"))):
        if row != last:
            last = row
            yield int(plans.price[count - 1]), _choice(enumeration, plans, row)


def _choice(enumeration: Enumeration, plans: Plans, row: int) -> Choice:
    late, refuted = float(plans.late[row]), bool(plans.refuted[row])
    return replace(enumeration.choice(row), late=late, refuted=refuted)


@lru_cache(maxsize=4)
def _plans(enumeration: Enumeration, within: int) -> Plans:
    refuted = _refuted(enumeration)[:within]
    enumeration = enumeration.only(np.arange(within))
    column = enumeration.column
    _, memory, nodes, price = enumeration.plans
    count = column(lambda sizes: sizes.count)
    vcpus = count * column(lambda sizes: sizes.by_type(lambda t: t.vcpus))
    for index, block in enumerate(enumeration.blocks):
        rows = np.flatnonzero((enumeration.block == index) & (memory >= 0))
        vcpus[rows] += block.tier.vcpus[memory[rows]] * nodes[rows]

    choice = enumeration.choice
    return Plans(
        value=enumeration.value,
        price=price,
        type_number=enumeration.trains[1],
        vcpus=vcpus,
        band=column(lambda sizes: np.where(sizes.spot > 0, sizes.by_type(band_of), -1)),
        trusted=column(lambda sizes: sizes.trusted).astype(np.bool_),
        late=np.where(
            price > column(lambda sizes: sizes.sure_usd), 1.0, column(lambda sizes: sizes.late)
        ),
        refuted=refuted,
        apart=lambda row, other: distance(doubt_of(choice(row)), doubt_of(choice(other))),
    )


@lru_cache(maxsize=2)
def _refuted(enumeration: Enumeration) -> BoolArray:
    """Plans that others beat at a bad time: wide bills, narrower ones; spot VMs, plans without any.

    Without spot VMs in speed and in price for the work; at any budget, so that more money changes
    nothing.
    """
    column = enumeration.column
    refuted = np.zeros(len(enumeration), dtype=np.bool_)
    if any(block.scoring.blind for block in enumeration.blocks):
        return refuted
    price = enumeration.price
    in_time = price <= column(lambda sizes: sizes.sure_usd)
    in_time &= column(
        lambda s: s.trusted & (s.late <= MAX_LATE_PROBABILITY) & (s.throughput > 0)
    ).astype(np.bool_)
    wide = column(lambda sizes: sizes.spread) > MAX_BILL_SPREAD
    if wide.any():
        slow_s = column(lambda sizes: sizes.slow_s)
        narrow_s = np.where(in_time & ~wide, slow_s, np.inf)
        refuted |= wide & (np.minimum.accumulate(narrow_s) <= slow_s)  # in the order of prices
    spot = column(lambda sizes: sizes.spot) > 0
    steady = ~spot & in_time
    law = any(law_of(curve) for block in enumeration.blocks for curve in block.sizes.curves)
    if not law or not steady.any() or not spot.any():
        return refuted
    speed = column(lambda sizes: sizes.throughput)[steady]
    bad = column(lambda sizes: sizes.throughput * sizes.kept_bad)[spot]
    order = np.argsort(-speed)
    faster = np.searchsorted(-speed[order], -MIN_WORTHWHILE_GAIN * bad)
    least = np.minimum.accumulate((price[steady] / speed)[order])
    cheapest = np.where(faster > 0, least[faster - 1], np.inf)  # $ for the work of a faster plan
    refuted[spot] |= price[spot] > MIN_WORTHWHILE_GAIN * cheapest * bad
    return refuted


def doubt_of(plan: Choice | Cluster) -> SpeedUncertainty | None:
    """The uncertainty in the speed of a plan that trains a model; None without a model."""
    law = law_of(plan.gpu.curve(STEP_TIME))
    if law is None:
        return None
    return law.doubt(np.array([float(plan.gpu_count)]))


def distance(doubt: SpeedUncertainty | None, other: SpeedUncertainty | None) -> float:
    """Standard deviation of the logarithm of one speed over another; 0 without a model."""
    if doubt is None or other is None:
        return 0.0
    return doubt.apart(other)


def faster_probability(ahead: float, apart: float) -> float:
    """Probability that a plan is over 1 % faster: mean log ratio of speeds, and its deviation."""
    sd = max(apart, 1e-6)
    return 0.5 * (1 + math.erf((ahead - math.log(VALUE_TOLERANCE)) / sd / math.sqrt(2)))


def band_of(instance: InstanceType) -> int:
    """The interruption band of a type; an unknown one counts as worse than the worst."""
    band = instance.interruption_band
    if band is None:
        return len(INTERRUPTION_BANDS)
    return band
