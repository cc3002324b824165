"""When to save: policies decide; the training job and the simulator act.

Policies have no clock and no memory: times are monotonic seconds of the caller's clock, and what is
learned while training (:mod:`deepvm.core.preemption.preemption_estimators`) comes in as facts.

Saves happen between steps, so intervals are rounded to whole steps, by one rule for the running
job, the simulator, the replay of traces and the closed form (:func:`whole_steps`): an optimal
interval is rounded down, as in the Spotify thesis; a time that must pass, such as one that the user
asks for, is rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from deepvm.core.preemption.save_intervals import (
    daly_s,
    exact_s,
    in_steps,
    maximum,
    rounded_down,
    where,
    young_s,
)
from deepvm.core.spelling import did_you_mean, refuse_unknown
from deepvm.core.units import parse_seconds, refuse_no_time
from deepvm.errors import RequestError
from deepvm.records import dataclass, field, replace

if TYPE_CHECKING:
    from deepvm.core.preemption.save_intervals import Number, Truth

# Share of the training time that checkpoints may cost by default; CheckFreq's budget is 0.035
OVERHEAD = 0.03


@dataclass(frozen=True)
class SaveFacts:
    """What is known of checkpoints and preemptions: numbers, or arrays over many simulated runs."""

    save_s: Number = 0.0  # how long training stalls for a checkpoint
    backup_s: Number = 0.0  # from then until it is durable
    step_s: Number = 0.0
    emergency_s: Number = 0.0  # from the end of a step until an emergency save is safe
    grace_s: Number = 0.0  # from the notice to the preemption; 0: there are no notices
    restart_s: Number = 0.0  # from a preemption until training resumes
    mttp_s: Number = 3600.0  # of the machine, or to the first preemption of a cluster
    missed_rate: Number = 0.1  # of preemptions without a notice in time, above 0
    age_s: Number = 0.0  # since the machine was requested
    shape: Number = 2.0  # of the Lomax hazard, as scale_s
    scale_s: Number = 3600.0

    @property
    def emergency_fits(self) -> Truth:
        """Whether an emergency save fits into the grace period (Spotify thesis, Algorithm 1)."""
        return self.step_s + self.emergency_s < self.grace_s

    @property
    def costly_share(self) -> Number:
        """Share of preemptions that lose work: those unnoticed if a save fits, else all."""
        return where(self.emergency_fits, self.missed_rate, 1.0)


@dataclass(frozen=True)
class SaveContext:
    """Steps and time now, and at the newest (or restored) checkpoint, or at the start."""

    step: int
    now_s: float
    last_step: int = 0
    last_s: float = 0.0
    facts: SaveFacts = field(default_factory=SaveFacts)


class SavePolicy:
    """Decides whether to save the state after a step; by default it never does."""

    has_interval: ClassVar[bool] = False  # saves are interval_s apart
    shows_cost_first: ClassVar[bool] = False  # it saves at once, to learn what a checkpoint costs
    acts_on_notices: ClassVar[bool] = False  # it saves then, if an emergency save fits
    holds_on_demand: ClassVar[bool] = False  # the interval holds where nothing is preempted
    by_age: ClassVar[bool] = False  # the interval depends on the age of the machine

    @property
    def name(self) -> str:
        """The text that :func:`parse_policy` reads as this policy, else the class's name."""
        return next(
            (name for name, make in POLICIES.items() if make is type(self)),
            type(self).__name__.lower(),
        )

    @property
    def fixed_steps(self) -> int | None:
        return None

    @property
    def saves(self) -> bool:
        return self.has_interval or bool(self.fixed_steps)

    def due(self, context: SaveContext) -> bool:
        if self.fixed_steps:
            return context.step % self.fixed_steps == 0
        if self.shows_cost_first and not context.last_step and not context.facts.save_s:
            return True
        # Whole steps since the end of the last save, at their average length.
        # After going back to an older step, time counts
        done = max(context.step - context.last_step, 1)
        worked_s = max(context.now_s - context.last_s - float(context.facts.save_s), 0.0)
        return bool(done >= whole_steps(self, replace(context.facts, step_s=worked_s / done)))

    def interval_s(self, facts: SaveFacts) -> Number:
        """Working time from a save's end to the next save, seconds; infinite: none."""
        return math.inf

    def least_s(self, facts: SaveFacts) -> Number:
        """Seconds that must pass before the next save; 0: whole steps may cut the interval."""
        return 0 * facts.save_s

    def emergency(self, facts: SaveFacts) -> Truth:
        if self.acts_on_notices:
            return facts.emergency_fits
        return False


@dataclass(frozen=True)
class Never(SavePolicy):
    """No saves but those that are asked for."""


@dataclass(frozen=True)
class EverySteps(SavePolicy):
    """At each multiple of a number of steps."""

    steps: int

    def __post_init__(self) -> None:
        if isinstance(self.steps, bool) or self.steps < 1:
            raise RequestError("every", self.steps, "a whole number of steps from 1")

    @property
    def name(self) -> str:
        return f"static:{self.steps}"

    @property
    def fixed_steps(self) -> int:
        return self.steps


@dataclass(frozen=True)
class EverySeconds(SavePolicy):
    """After so much working time since the end of the last save."""

    has_interval: ClassVar[bool] = True
    holds_on_demand: ClassVar[bool] = True

    seconds: float

    def __post_init__(self) -> None:
        refuse_no_time("every", self.seconds)

    @property
    def name(self) -> str:
        return f"every:{self.seconds:.15g}"

    def interval_s(self, facts: SaveFacts) -> Number:
        return self.seconds + 0 * facts.save_s

    def least_s(self, facts: SaveFacts) -> Number:
        """All of it: the user asked for that time."""
        return self.interval_s(facts)


class _Weighing(SavePolicy):
    """Weighs the cost of a checkpoint against the cost of a preemption."""

    has_interval: ClassVar[bool] = True
    shows_cost_first: ClassVar[bool] = True


@dataclass(frozen=True)
class Auto(_Weighing):
    """As often as pays: Young's interval within CheckFreq's budget, one save at a time."""

    mtbf_s: float | None = None  # of the cluster; None: as the facts say
    overhead: float = OVERHEAD  # most of save_s / interval

    def __post_init__(self) -> None:
        if self.mtbf_s is not None:
            refuse_no_time("mtbf_s", self.mtbf_s)
        if not 0 < self.overhead < 1:
            raise RequestError("overhead", self.overhead, "a share between 0 and 1")

    def interval_s(self, facts: SaveFacts) -> Number:
        mtbf_s = self.mtbf_s or facts.mttp_s
        return maximum(young_s(facts.save_s, mtbf_s), self.least_s(facts))

    def least_s(self, facts: SaveFacts) -> Number:
        """The budget, and the checkpoint in flight."""
        return maximum(facts.save_s / self.overhead, facts.backup_s)


FORMULAS: dict[str, Callable[[Number, Number], Number]]
FORMULAS = {"young": young_s, "daly": daly_s, "exact": exact_s}


@dataclass(frozen=True)
class Formula(_Weighing):
    """The interval by a formula of ``core.preemption.save_intervals``; ignores notices."""

    formula: str

    def __post_init__(self) -> None:
        refuse_unknown("formula", self.formula, FORMULAS, ", ")

    @property
    def name(self) -> str:
        return self.formula

    def interval_s(self, facts: SaveFacts) -> Number:
        return FORMULAS[self.formula](facts.save_s, facts.mttp_s)


@dataclass(frozen=True)
class Thesis(_Weighing):
    """Adaptive checkpointing of the Spotify thesis, Algorithm 1: emergency or insurance saves."""

    acts_on_notices: ClassVar[bool] = True

    def interval_s(self, facts: SaveFacts) -> Number:
        """Infinite if an emergency save fits into the grace period, else eq. 4.5."""
        return where(
            facts.emergency_fits, math.inf, young_s(facts.save_s, facts.mttp_s + facts.restart_s)
        )


@dataclass(frozen=True)
class Adaptive(_Weighing):
    """An emergency save when it fits, and insurance saves as often as missed notices justify.

    Without insurance Algorithm 1 goes from 3 to 13 % of overhead on GPT-117M when 10 % of the
    notices are missed.
    """

    acts_on_notices: ClassVar[bool] = True

    def interval_s(self, facts: SaveFacts) -> Number:
        """sqrt(2 delta MTTP / q): only the share q of preemptions loses work (rate q/MTTP)."""
        return young_s(facts.save_s, facts.mttp_s / facts.costly_share)


@dataclass(frozen=True)
class Hazard(Adaptive):
    """As :class:`Adaptive`, with a hazard that falls with age, as on real spot machines."""

    by_age: ClassVar[bool] = True

    def interval_s(self, facts: SaveFacts) -> Number:
        """sqrt(2 delta (beta + a) / (alpha q)): Young with the Lomax hazard at age a."""
        return young_s(
            facts.save_s, (facts.scale_s + facts.age_s) / (facts.shape * facts.costly_share)
        )


POLICIES: dict[str, Callable[[], SavePolicy]] = {  # without parameters, by name
    "none": Never,
    "auto": Auto,
    **{name: partial(Formula, name) for name in FORMULAS},
    "thesis": Thesis,
    "adaptive": Adaptive,
    "hazard": Hazard,
}
_DIGITS = 18  # of a number of steps; more is a typing error, and int() refuses some thousands


def whole_steps(policy: SavePolicy, facts: SaveFacts) -> Number:
    """Steps from one save to the next, at least one; infinite: no saves.

    The interval rounded down (Spotify thesis, 6.3.2: 33 of 33.6 steps), but at least ``least_s``
    rounded up.
    """
    if policy.fixed_steps:
        return float(policy.fixed_steps)
    if not policy.has_interval:
        return math.inf
    steps = in_steps(policy.interval_s(facts), facts.step_s)
    least = in_steps(policy.least_s(facts), facts.step_s)
    return maximum(rounded_down(steps), -rounded_down(-least), 1.0)


def parse_policy(text: str, option: str = "policy") -> SavePolicy:
    """One of ``POLICIES``, ``static:51`` (steps), ``every:10min``. Raises a RequestError."""
    name, colon, value = text.strip().partition(":")
    if name in POLICIES and not colon:
        return POLICIES[name]()
    try:
        if name == "static" and value.isascii() and value.isdigit() and len(value) <= _DIGITS:
            return EverySteps(int(value))
        if name == "every":
            return EverySeconds(parse_seconds(value, option, bare="s"))
    except RequestError:
        pass
    allowed = (
        f"{', '.join(POLICIES)}, static:STEPS with steps from 1, or every:TIME such as every:10min"
    )
    forms = (*POLICIES, "static", "every")
    meant = "" if name in forms else did_you_mean(name, forms)
    raise RequestError(option, text, f"{allowed}; {meant}" if meant else allowed)
