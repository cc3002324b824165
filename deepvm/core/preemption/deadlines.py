"""Which market to use so that a job meets its deadline: spot, on-demand, or waiting for spot.

The problem and both policies are those of "Can't Be Late: Optimizing Spot Instance Savings under
Deadlines" (NSDI 2024); the rules below are derived again, because here a preemption also loses the
work since the newest durable version.

**The safety net.** ``work_s`` is the work left, counted from the newest durable version, and
on-demand VMs are not preempted. So from on-demand the job ends in time if ``left_s >= work_s +
restart_s``; the rest of the time is spare::

    spare = left - work - restart

Off on-demand, time passes and ``work_s`` never grows, so ``spare`` falls by at most the
``horizon_s`` until the next decision. A job that goes to on-demand as soon as ``spare <= horizon``
is never late, even if no spot VM ever runs.

**Starting on spot** takes ``restart_s`` and then ``version_s`` before anything is durable. A spot
VM that the safety net would stop before that is wasted money. So a job that is not on spot goes to
on-demand as soon as ``spare <= horizon + restart + version``: for checkpoints that cost no time and
decisions at any time this is ``left <= work + 2 restart``, the 2d of the paper.

Policies are frozen dataclasses without memory; the facts are numbers, or arrays over many runs of
one shape.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from deepvm.core.spelling import one_of
from deepvm.errors import RequestError
from deepvm.records import dataclass, replace

if TYPE_CHECKING:
    from deepvm.core.preemption.save_intervals import Number, Truth

Array: TypeAlias = npt.NDArray[Any]

# What a job runs on. Plain numbers: arrays are compared with them millions of times, an enum makes
# that slow.
WAIT: Final = 0
SPOT: Final = 1
ON_DEMAND: Final = 2


@dataclass(frozen=True)
class DeadlineProgress:
    """Where a job with a deadline stands; numbers, or arrays over many runs."""

    work_s: Number  # that the rest of the work takes, from the newest durable version
    left_s: Number  # until the deadline
    total_s: Number  # all of the work
    deadline_s: Number  # from the start
    restart_s: Number = 0.0  # until training resumes on another machine, at most
    version_s: Number = 0.0  # from then until a new version is durable; 0: every moment is
    horizon_s: Number = 0.0  # until the next decision; 0: at any time
    on: int | Array = WAIT  # WAIT also just after a preemption
    spot_up: Truth = True  # whether a spot VM is running or available

    @property
    def on_demand(self) -> Array:
        return np.asarray(self.on == ON_DEMAND)

    @property
    def spare_s(self) -> Number:
        """How long the job can stall and still end in time on demand; below 0: it may be late."""
        return self.left_s - self.work_s - self.restart_s

    @property
    def safety_net(self) -> Array:
        """Whether it must run on-demand from now on; see the module."""
        start = np.where(self.on == SPOT, 0.0, self.restart_s + self.version_s)
        return self.spare_s <= self.horizon_s + start

    @property
    def until_safety_net_s(self) -> Array:
        """How long a job may stay on spot before it must run on-demand."""
        return np.maximum(self.spare_s - self.horizon_s, 0.0)

    @property
    def ahead_s(self) -> Number:
        """Seconds ahead of the line from the start to all work at the deadline; < 0: behind."""
        done = self.total_s - self.work_s
        return done * self.deadline_s / self.total_s - (self.deadline_s - self.left_s)


class DeadlinePolicy(ABC):
    """Decides what a job runs on."""

    @property
    def name(self) -> str:
        known = (name for name, make in DEADLINE_POLICIES.items() if make is type(self))
        return next(known, type(self).__name__.lower())

    @abstractmethod
    def choose(self, standing: DeadlineProgress) -> Array:
        """What to run on until the next decision: WAIT, SPOT or ON_DEMAND."""

    @abstractmethod
    def stay_s(self, standing: DeadlineProgress) -> Array:
        """How long the job may stay in its market if nothing happens; infinite: for ever.

        Then change without asking again: rounding would make the answer a matter of luck.
        """


@dataclass(frozen=True)
class OnDemandOnly(DeadlinePolicy):
    """Never spot: the baseline."""

    def choose(self, standing: DeadlineProgress) -> Array:
        return np.full(np.shape(standing.left_s), ON_DEMAND)

    def stay_s(self, standing: DeadlineProgress) -> Array:
        return np.full(np.shape(standing.left_s), np.inf)


@dataclass(frozen=True)
class Greedy(DeadlinePolicy):
    """Spot if there is some, else wait; once the safety net says so, on-demand to the end."""

    def choose(self, standing: DeadlineProgress) -> Array:
        return _on_demand_or_spot(standing.on_demand, standing)

    def stay_s(self, standing: DeadlineProgress) -> Array:
        return np.where(standing.on_demand, np.inf, standing.until_safety_net_s)


@dataclass(frozen=True)
class UniformProgress(DeadlinePolicy):
    """Keep to the line that ends at the deadline: on-demand only while behind it.

    A spot VM is used whenever there is one. On on-demand a job stays until there is spot *and* it
    is ``restarts`` restarts ahead of the line (the paper's hysteresis). It does not stop to wait:
    on real traces that cost up to a tenth of the bill.
    """

    restarts: float = 1.0

    def choose(self, standing: DeadlineProgress) -> Array:
        on_demand = standing.on_demand
        behind = standing.ahead_s < np.where(on_demand, self.restarts * standing.restart_s, 0.0)
        return _on_demand_or_spot(
            np.where(standing.spot_up, on_demand & behind, on_demand | behind), standing
        )

    def stay_s(self, standing: DeadlineProgress) -> Array:
        """On on-demand the job gains on the line until it is far enough ahead of it."""
        rate = standing.deadline_s / standing.total_s - 1  # how fast it gains on the line
        short = np.maximum(self.restarts * standing.restart_s - standing.ahead_s, 0.0)
        # It may not gain at all; then the safety net keeps it on-demand, too
        gained = short / np.maximum(rate, 1e-12)
        # On on-demand spare_s does not change: if it does not allow a start on spot now, it never
        # will.
        bought = np.where(standing.safety_net, np.inf, gained)
        return np.where(standing.on_demand, bought, standing.until_safety_net_s)


DEADLINE_POLICIES: dict[str, Callable[[], DeadlinePolicy]] = {  # by the name that a user types
    "on-demand": OnDemandOnly,
    "greedy": Greedy,
    "uniform-progress": UniformProgress,
}


def parse_deadline_policy(text: str, option: str = "policies") -> DeadlinePolicy:
    """A policy by its name; raises a RequestError for ``option`` if there is none."""
    if text not in DEADLINE_POLICIES:
        raise RequestError(option, text, f"one of {one_of(text, DEADLINE_POLICIES, ', ')}")
    return DEADLINE_POLICIES[text]()


def steps_on_spot(
    policy: DeadlinePolicy, standing: DeadlineProgress, step_s: Number, version_s: Number
) -> Number:
    """Steps until a checkpoint is due, so that it is durable before the job leaves spot.

    Below 1 there is no time for a step and its version, and the job has to change the market.
    ``version_s``: from the end of a step until its version is durable.
    """
    on_spot = np.full(np.shape(standing.left_s), SPOT, dtype="int8")
    return np.floor((policy.stay_s(replace(standing, on=on_spot)) - version_s) / step_s)


def on_demand_next(policy: DeadlinePolicy, standing: DeadlineProgress) -> npt.NDArray[np.bool_]:
    """Whether the next machine is on-demand, where spot VMs can be requested at any time."""
    return np.asarray(policy.choose(replace(standing, on=WAIT, spot_up=False)) == ON_DEMAND)


def _on_demand_or_spot(on_demand: Array, standing: DeadlineProgress) -> Array:
    return np.where(
        standing.safety_net | on_demand, ON_DEMAND, np.where(standing.spot_up, SPOT, WAIT)
    )
