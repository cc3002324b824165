"""The order in which plans are shown, where a model is trained.

The best value decides, as everywhere, but not to the last digit: speeds are not known that well. Between plans within
1 % the one with the lower quota need, the rarer interruptions and the lower price wins. What is less than 5 % faster
may cost at most ten times as many per cent more, 20 % for 2 %, or a cheaper plan comes first; and where the cost of the
work counts, what saves less than 5 % may take at most ten times as many per cent longer. But never is more than these
5 % and 1 % given away without doubt. With doubt a fifth is: where a cheaper plan trains more for a dollar, and the
first is not more than 1 % faster in two cases of three, what comes first at the price of that plan does. A plan beyond
1.5 times the clusters that were ever measured comes after all others; of these, one that misses the deadline more often
than once in ten times comes after those that do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from deepvm.core.cluster.instances import INTERRUPTION_BANDS
from deepvm.core.units import MICRO_USD, MOST_USD
from deepvm.planner.columns import BoolArray, FloatArray, IntArray
from deepvm.planner.request import PlanRequest
from deepvm.planner.scoring import TIE
from deepvm.planner.search.enumeration import Choice, Enumeration
from deepvm.planner.workload.laws import law_of

if TYPE_CHECKING:
    from deepvm.core.training.speed import Doubt

ABOUT = 1.1
"""Prices up to this factor are about the same."""
CLOSE = 1.01
"""Values up to this factor are as good."""
LITTLE = 1.05
"""A larger difference in value decides, whatever the price."""
WORTH = 10.0
"""A smaller one is worth this many times its share in price, or in time: 5 % more speed half as much again."""
FIFTH = 1.25
"""What doubt may cost at most: a plan comes before one that is up to so many times as fast."""
SURE = 0.4307
"""Standard deviations that a plan must be ahead to be the faster one in two cases of three."""
SELDOM = 0.1
"""How often a plan may miss the deadline before one that hardly does comes first."""
REPAID = 0.25
"""What more money must buy to be named: this share of its own, 10 % more speed for half as much again."""
_AT_ONCE = 16
"""Plans whose doubts are looked at together, the best first."""


@dataclass(frozen=True)
class Plans:
    """Plans within the budget: values and prices, the type that trains as a number, what decides between equals.

    ``late``: the probability of missing the deadline. ``apart``: standard deviation of the logarithm of a plan's speed
    over those of some others.
    """

    value: FloatArray
    price: IntArray
    type_number: IntArray
    vcpus: IntArray
    band: IntArray
    trusted: BoolArray
    late: FloatArray
    apart: Callable[[int, IntArray], FloatArray]

    def __len__(self) -> int:
        """Number of plans."""
        return len(self.value)

    def up_to(self, count: int) -> Plans:
        """The first ``count`` plans, which are the cheapest."""
        columns = {f.name: getattr(self, f.name)[:count] for f in fields(self) if f.name != "apart"}
        return replace(self, **columns)

    @property
    def sound(self) -> BoolArray:
        """Whether a plan is believed, and in time nine times in ten."""
        return np.asarray(self.trusted & (self.late <= SELDOM))

    def eligible(self, left: BoolArray) -> BoolArray:
        """Of those that are left, what may come first."""
        if (left & self.sound).any():
            return np.asarray(left & self.sound)
        believed = left & self.trusted if (left & self.trusted).any() else left
        least = float(np.min(self.late, where=believed, initial=1.0))
        return np.asarray(believed & (self.late <= max(SELDOM, least + SELDOM / 2)))

    def first(self, left: BoolArray) -> int:
        """The row to show next, of those that are left."""
        eligible = self.eligible(left)
        row = self._for_its_price(eligible)
        near = eligible & (self._times_better(row) <= FIFTH)
        while (surer := self._as_good_for_less(row, near)).any():
            # What that budget buys: such VMs, or fewer of the first that are no slower.
            row = self._for_its_price(eligible & (self.price <= self.price[self._chosen(surer)]))
        return row

    def _for_its_price(self, eligible: BoolArray) -> int:
        """The best, or what is hardly worse and much cheaper; or, if values are costs, much faster."""
        best = row = self._chosen(eligible)
        # Measured against the best one, not the last: from 5 % to 5 % a half of the speed would be given away.
        behind = self._times_better(best)
        while (better := eligible & (behind < LITTLE) & self._far_better_otherwise(row, behind - 1.0)).any():
            row = self._chosen(better)
        return row

    def _as_good_for_less(self, row: int, among: BoolArray) -> BoolArray:
        """The best of the cheaper plans that train more for a dollar, and that a row is not surely faster than.

        What is as good for about the price was decided by quotas and interruptions.
        """
        value, price = self.value[row], self.price[row]
        found = among & (self.price < price)
        if value <= 0:  # costs
            return np.zeros(len(self), dtype=np.bool_)
        found &= (self.value * price > value * self.price) & (
            (self.value * CLOSE < value) | (self.price * ABOUT < price)
        )
        rows = np.flatnonzero(found)
        rows = rows[np.argsort(-self.value[rows], kind="stable")]
        found[:] = False
        # Doubts take time, and of these plans only the best one counts, and what is as good.
        while len(rows):
            some, rows = rows[:_AT_ONCE], rows[_AT_ONCE:]
            ahead = np.log(value / self.value[some] / CLOSE)
            found[some] = ahead < SURE * self.apart(row, some)
            if found[some].any():
                rows = rows[self.value[found].max() / self.value[rows] <= CLOSE]
        return np.asarray(found)

    def _far_better_otherwise(self, row: int, behind: FloatArray) -> BoolArray:
        """Plans so much cheaper than a row, if values are speeds, or faster, if they are costs, that they come first.

        ``behind``: by which share their values are worse than the best.
        """
        least = np.maximum(ABOUT, 1.0 + WORTH * behind)
        if self.value[row] >= 0:
            return np.asarray(self.price[row] > self.price * least)
        speed = self.price / -self.value
        return np.asarray(speed > speed[row] * least)

    def _chosen(self, eligible: BoolArray) -> int:
        best = int(np.argmax(np.where(eligible, self.value, -np.inf)))
        near = np.flatnonzero(eligible & (self._times_better(best) <= CLOSE))
        # The band is in the value already: it decides between plans of about one price.
        near = near[self.price[near] <= ABOUT * self.price[near].min()]
        order = np.lexsort((near, self.price[near], self.band[near], self.vcpus[near]))
        return int(near[order[0]])

    def _times_better(self, row: int) -> FloatArray:
        """How many times as good a row is as each: values are speeds, or below 0 prices of a unit."""
        high = float(self.value[row])
        with np.errstate(divide="ignore", invalid="ignore"):
            found = high / self.value if high > 0 else self.value / high
        return np.where(self.value == high, 1.0, found)


def ranked(enumeration: Enumeration, request: PlanRequest, budget: int, count: int) -> list[Choice]:
    """The best ``count`` plans within a budget, as every command shows them."""
    if request.weighs_doubt:
        return weighed(enumeration, budget, count, machines=request.ranks_machines)
    return enumeration.top(budget, count)


def first(enumeration: Enumeration, request: PlanRequest, budget: int) -> Choice | None:
    """What comes first within a budget, if anything."""
    if request.weighs_doubt:
        return next(iter(weighed(enumeration, budget, 1)), None)
    return enumeration.best(budget)


def next_first(enumeration: Enumeration, request: PlanRequest, budget: int) -> Choice | None:
    """What comes first at the next budget that buys something better, if any.

    Where doubt is weighed, better is by 5 %, and by a quarter of what it costs more; and of the budgets up to twice
    this one it is that which pays best: the most speed for what is added, or the lowest cost. The very next one may be
    a trap, a little faster on VMs that are unfit.
    """
    now = first(enumeration, request, budget)
    if not request.weighs_doubt or now is None:
        return enumeration.next_change(budget)
    bar, best = now.value + abs(now.value) * (LITTLE - 1), None
    for price, choice in firsts(enumeration, MOST_USD * MICRO_USD, above=budget):
        if price > 2 * budget and best is not None:
            break
        if choice.value >= bar and _repaid(choice, now) >= (REPAID if best is None else _repaid(best, now)):
            best = choice
            if price > 2 * budget:
                break
    return best


def _repaid(choice: Choice, now: Choice) -> float:
    """The share that a dearer plan is faster, over that which it costs more; of costs, by how much it is cheaper."""
    if now.value <= 0:
        return 1.0 + math.log(now.value / choice.value)
    return math.log(choice.value / now.value) / math.log(choice.price / now.price)


def most_valuable(enumeration: Enumeration, request: PlanRequest, budget: int) -> Choice | None:
    """The best value within a budget, whatever it costs; where doubt is weighed, of those that may come first."""
    within = enumeration.affordable(budget)
    if not request.weighs_doubt or not within:
        return enumeration.best(budget)
    plans = _plans(enumeration, within)
    return enumeration.choice(int(np.argmax(np.where(plans.eligible(plans.value > -np.inf), plans.value, -np.inf))))


def cheapest_reaching(enumeration: Enumeration, request: PlanRequest, value: float) -> Choice | None:
    """The cheapest plan of at least this value; where doubt is weighed, of those that may come first."""
    if not request.weighs_doubt:
        return enumeration.reaching(value)
    plans = _plans(enumeration, len(enumeration))
    rows = np.flatnonzero(plans.eligible(plans.value >= value))
    return enumeration.choice(int(rows[0])) if len(rows) else None


def weighed(enumeration: Enumeration, budget: int, count: int, *, machines: bool = True) -> list[Choice]:
    """The best ``count`` plans within a budget, in the order to show them; ``machines``: one of each type of VM."""
    plans = _plans(enumeration, enumeration.affordable(budget))
    left, chosen = np.ones(len(plans.value), dtype=np.bool_), list[Choice]()
    while len(chosen) < count and left.any():
        row = plans.first(left)
        chosen.append(enumeration.choice(row))
        if machines:
            left &= plans.type_number != plans.type_number[row]
        else:
            left[row] = False
    return chosen


def firsts(enumeration: Enumeration, most: int, *, above: int = -1) -> Iterator[tuple[int, Choice]]:
    """What :func:`weighed` puts first at every budget up to ``most``: the budget from which on, and the plan.

    ``above``: only budgets that are higher.
    """
    plans, last = _plans(enumeration, enumeration.affordable(most)), -1
    # The dearest plan of all matters only where it is near the best.
    for price in np.unique(plans.price[_near_the_best(plans) & (plans.price > above)]).tolist():
        within = plans.up_to(enumeration.affordable(price))
        row = within.first(np.ones(len(within), dtype=np.bool_))
        if row != last:
            last = row
            yield price, enumeration.choice(row)


def _near_the_best(plans: Plans) -> BoolArray:
    """Plans near the best that costs no more: of the sound ones, or of all before the first of these.

    Near is 1 % for a speed, as what is nearly as fast for less money is much cheaper than the dearest plan; and 5 % for
    a cost, as what costs little more may be much faster.
    """
    sound = plans.sound
    start = int(np.argmax(sound)) if sound.any() else len(plans)
    value = np.where(sound | (np.arange(len(plans)) < start), plans.value, -np.inf)
    best = np.concatenate([np.maximum.accumulate(value[:start]), np.maximum.accumulate(value[start:])])
    least = np.where(best >= 0, best / CLOSE, best * LITTLE)
    near = np.isfinite(value) & (value >= least - np.abs(least) * TIE)
    # While all may be late, what hardly is comes before what is better.
    near[:start] |= bool(plans.late[:start].any())
    return np.asarray(near)


def _plans(enumeration: Enumeration, within: int) -> Plans:
    size, memory, nodes, price = enumeration.plans[:, :within]
    block = enumeration.block[:within]
    names: dict[str, int] = {}
    trains, vcpus, band = (np.zeros(within, dtype=np.int64) for _ in range(3))
    trusted, late = np.ones(within, dtype=np.bool_), np.zeros(within)
    for index, one in enumerate(enumeration.blocks):
        rows = np.flatnonzero(block == index)
        sizes, tier = one.sizes, one.tier
        kinds, counts = sizes.type_index[size[rows]], sizes.count[size[rows]]
        number = np.array([names.setdefault(t.name, len(names)) for t in sizes.types], dtype=np.int64)
        trains[rows] = number[kinds]
        vcpus[rows] = np.array([t.vcpus for t in sizes.types], dtype=np.int64)[kinds] * counts
        worst = len(INTERRUPTION_BANDS)
        bands = [worst if t.interruption_band is None else t.interruption_band for t in sizes.types]
        # VMs that are bought on demand are not interrupted.
        band[rows] = np.where(sizes.spot[size[rows]] > 0, np.array(bands, dtype=np.int64)[kinds], -1)
        trusted[rows], late[rows] = sizes.trusted[size[rows]], sizes.late[size[rows]]
        with_nodes = rows[memory[rows] >= 0]
        of_node = np.array([t.vcpus for t in tier.types], dtype=np.int64)
        vcpus[with_nodes] += of_node[memory[with_nodes]] * nodes[with_nodes] if len(of_node) else 0

    def doubts(rows: IntArray) -> Iterator[tuple[IntArray, Doubt]]:
        """The doubts in the speeds of some plans, and which of them they are."""
        blocks = block[rows]
        for index, one in enumerate(enumeration.blocks):
            places = np.flatnonzero(blocks == index)
            sizes = size[rows[places]]
            kinds = one.sizes.type_index[sizes]
            for kind in np.unique(kinds):
                law = law_of(one.sizes.curves[kind])
                if law is not None:
                    yield places[kinds == kind], law.doubt(one.sizes.count[sizes[kinds == kind]].astype(np.float64))

    def apart(row: int, others: IntArray) -> FloatArray:
        found = np.zeros(len(others))
        for _, mine in doubts(np.array([row])):
            for places, theirs in doubts(others):
                found[places] = theirs.apart(mine)
        return found

    return Plans(enumeration.value[:within], price, trains, vcpus, band, trusted, late, apart)
