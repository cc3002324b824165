"""Which pool to ask next: the order by what the history says of them, and which ones to leave alone for a while."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deepvm.jobs.decisions.world import LOST, PREEMPTED, REFUSED, Pool, World

# --- left alone for a while ------------------------------------------------------------------------------------------

_RESTS = 0
"""How often a pool has refused that only rests, after a notice: it is better than none."""
_REST_COOLS = 10
"""A notice says more than a refusal: where one machine is taken back, the next often is soon."""


def refused(world: World, pool: Pool) -> World:
    """With a pool that has refused; it is left alone for twice as long each time.

    What was asked for before it was left alone is of the same round, and its refusal says nothing new.
    """
    if is_refusing(world, pool):
        return world
    times = world.blocked.get(pool, (0.0, _RESTS))[1]
    until_s = world.now_s + world.terms.cool_s * 2 ** min(times, 6)
    return replace(world, blocked={**world.blocked, pool: (until_s, times + 1)})


def rested(world: World, pool: Pool) -> World:
    """With a pool that is left alone for a while after a notice, if there are others of its type."""
    known = next((p for p in world.pools if p.place == pool.place), None)
    alike = [p for p in world.pools if p != known and p.instance_type == pool.instance_type]
    if known is None or known in world.blocked or not alike:
        return world
    return replace(world, blocked={**world.blocked, known: (world.now_s + _REST_COOLS * world.terms.cool_s, _RESTS)})


def free_pools(world: World) -> list[Pool]:
    """The pools to ask now, the best first: those that are not left alone, else those that merely rest."""
    left = {pool for pool, (until_s, _) in world.blocked.items() if until_s > world.now_s}
    return [p for p in world.pools if p not in left] or [p for p in world.pools if not is_refusing(world, p)]


def is_refusing(world: World, pool: Pool) -> bool:
    """Whether a pool has just refused; one that rests has not."""
    until_s, times = world.blocked.get(pool, (0.0, _RESTS))
    return times != _RESTS and until_s > world.now_s


# --- the order -------------------------------------------------------------------------------------------------------

_RECENT_S, _FRESH_S = 30 * 86_400.0, 86_400.0
"""Lives say something of the next ones for weeks; whether there is capacity changes within hours."""
_RATE_PRIOR = 1.0, 10.0
"""Gamma: as if one machine had been taken back in 10 hours: a dark guess, which a day of lives outweighs."""
_REFUSAL_PRIOR = 0.5, 3.0
"""Beta: as if of 3.5 requests half a one had been refused."""
_LOST_H, _WAIT_H = 0.1, 0.05
"""What a preemption costs: minutes until a replacement trains; and what each refusal on the way adds."""


@dataclass(frozen=True)
class PoolRecord:
    """What happened in a pool: hours that its machines lived, how often they were taken, requests by their outcome."""

    lived_h: float = 0.0
    taken: int = 0
    granted: int = 0
    refused: int = 0

    @property
    def preemptions_per_hour(self) -> float:
        """Mean of the posterior: gamma with Poisson counts."""
        prior, hours = _RATE_PRIOR
        return (prior + self.taken) / (hours + self.lived_h)

    @property
    def refusals(self) -> float:
        """How many refusals to expect before a machine: mean of q / (1 - q) of the posterior, beta with Bernoulli."""
        no, yes = _REFUSAL_PRIOR
        return (no + self.refused) / (yes + self.granted - 1.0)

    def usd_per_useful_hour(self, usd_per_hour: float) -> float:
        """What an hour of training costs, with those hours that preemptions, and the wait after them, waste."""
        return usd_per_hour * (1.0 + self.preemptions_per_hour * (_LOST_H + self.refusals * _WAIT_H))


def record_of(pool: Pool, machines: Iterable[Mapping[str, Any]], now_s: float) -> PoolRecord:
    """What the history's machines say of a pool; one of a whole region has those of all its zones."""
    found = PoolRecord()
    for m in machines:
        here = str(m["zone"]).startswith(pool.zone)
        if not here or (m["instance_type"], m["market"]) != (pool.instance_type, pool.market):
            continue
        age_s = now_s - m["requested_s"]
        if m["launched_s"] is not None and age_s <= _RECENT_S:
            ended_s = now_s if m["ended_s"] is None else m["ended_s"]
            lived_h = found.lived_h + max(ended_s - m["launched_s"], 0.0) / 3600
            taken = found.taken + (m["end_reason"] in (PREEMPTED, LOST))
            found = replace(found, lived_h=lived_h, taken=taken)
        if age_s <= _FRESH_S:
            no = m["end_reason"] == REFUSED
            found = replace(found, refused=found.refused + no, granted=found.granted + (m["launched_s"] is not None))
    return found


def in_order(pools: Sequence[Pool], machines: Iterable[Mapping[str, Any]], now_s: float) -> tuple[Pool, ...]:
    """The pools of one type, the least expected cost of a useful hour first; equal ones as they were."""
    known = list(machines)
    return tuple(sorted(pools, key=lambda p: record_of(p, known, now_s).usd_per_useful_hour(p.usd_per_hour)))
