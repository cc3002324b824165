"""Which pool to ask next, ranked by history, and which ones to leave alone for a while."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from deepvm.core.json_types import JsonObject
from deepvm.jobs.decisions.pool_record import PoolRecord
from deepvm.jobs.decisions.world import LOST, PREEMPTED, REFUSED, JobState, Pool

# --- left alone for a while -----------------------------------------------------------------------

_RESTS = 0
"""How often a pool has refused that only rests, after a preemption: it is better than none."""
_REST_COOLS = 10
"""A preemption weighs more than a refusal: another one often follows soon."""


def refused(world: JobState, pool: Pool) -> JobState:
    """With a pool that has refused; it is left alone for twice as long each time.

    What was asked for before it was left alone is of the same round, and its refusal says nothing
    new.
    """
    if is_refusing(world, pool):
        return world
    times = world.blocked.get(pool, (0.0, _RESTS))[1]
    until_s = world.now_s + world.terms.cool_s * 2 ** min(times, 6)
    return replace(world, blocked={**world.blocked, pool: (until_s, times + 1)})


def rested(world: JobState, pool: Pool) -> JobState:
    """Let a pool rest for a while after a preemption, if there are others of its type."""
    known = next((p for p in world.pools if p.place == pool.place), None)
    alike = [p for p in world.pools if p != known and p.instance_type == pool.instance_type]
    if known is None or world.blocked.get(known, (0.0, _RESTS))[0] > world.now_s or not alike:
        return world
    return replace(
        world,
        blocked={**world.blocked, known: (world.now_s + _REST_COOLS * world.terms.cool_s, _RESTS)},
    )


def rested_after_losses(before: JobState, world: JobState) -> JobState:
    """Let pools rest whose machines were noticed since, or were lost without a notice."""
    for m in before.machines.values():
        now = world.machines[m.id]
        if _is_taken(now.noticed_s, now.end_reason) and not _is_taken(m.noticed_s, m.end_reason):
            world = rested(world, now.pool)
    return world


def free_pools(world: JobState, of: Sequence[Pool] | None = None) -> list[Pool]:
    """Pools to ask now, the best first: the available ones, else those that merely rest.

    ``of``: which ones; else those of spot machines, or of all by default.
    """
    pools = world.pools if of is None else of
    left = {pool for pool, (until_s, _) in world.blocked.items() if until_s > world.now_s}
    return _ranked(
        world,
        [p for p in pools if p not in left] or [p for p in pools if not is_refusing(world, p)],
    )


def is_refusing(world: JobState, pool: Pool) -> bool:
    """Whether a pool has just refused; one that rests has not."""
    until_s, times = world.blocked.get(pool, (0.0, _RESTS))
    return times != _RESTS and until_s > world.now_s


# --- the order ------------------------------------------------------------------------------------


def usd_per_useful_hour(world: JobState, pools: Iterable[Pool]) -> dict[Pool, float]:
    """$ per useful hour of training in each pool, by the history and by this job."""
    now_s = world.now_s
    places = {pool.place for pool in pools}
    own = {place: PoolRecord(at_s=now_s) for place in places}
    for m in world.machines.values():
        if (place := m.pool.place) in own:
            taken = _is_taken(m.noticed_s, m.end_reason)
            no = m.end_reason == REFUSED
            own[place] = own[place].seen(
                m.requested_s, m.launched_s, m.ended_s, taken=taken, refused=no
            )
    known = {
        pool: own[pool.place].with_earlier(world.priors.get(pool, PoolRecord())) for pool in pools
    }
    return {pool: record.usd_per_useful_hour(pool.usd_per_hour) for pool, record in known.items()}


def _ranked(world: JobState, pools: Sequence[Pool]) -> list[Pool]:
    """Those of one type by what they cost; types as they were."""
    types = list(dict.fromkeys(pool.instance_type for pool in pools))
    if len(types) == len(pools):
        return list(pools)
    usd = usd_per_useful_hour(world, pools)
    return sorted(pools, key=lambda pool: (types.index(pool.instance_type), usd[pool]))


def _is_taken(noticed_s: float | None, end_reason: str) -> bool:
    return noticed_s is not None or end_reason in (PREEMPTED, LOST)


def record_of(pool: Pool, machines: Iterable[JsonObject], now_s: float) -> PoolRecord:
    """History of a pool's machines; a pool of a whole region has those of all its zones."""
    found = PoolRecord(at_s=now_s)
    for m in machines:
        here = str(m["zone"]).startswith(pool.zone)
        if here and (m["instance_type"], m["market"]) == (pool.instance_type, pool.market):
            taken = _is_taken(m.get("noticed_s"), m["end_reason"])
            no = m["end_reason"] == REFUSED
            found = found.seen(
                m["requested_s"], m["launched_s"], m["ended_s"], taken=taken, refused=no
            )
    return found


def in_order(
    pools: Sequence[Pool], machines: Iterable[JsonObject], now_s: float
) -> tuple[Pool, ...]:
    """The pools of one type by expected cost of a useful hour; ties keep their order."""
    known = list(machines)
    return tuple(
        sorted(pools, key=lambda p: record_of(p, known, now_s).usd_per_useful_hour(p.usd_per_hour))
    )
