"""Price caps: the most a machine may cost, passed to its cloud so that bills cannot rise.

Only if the user sets ``max_price``, which holds for all machines together: a limit that
was not asked for would end machines, or keep them from starting, at a price that the user may well
pay. AWS's own limit of spot machines, the on-demand price, holds in any case.

Each machine's share is in proportion to its price, as in exports: on-demand prices may be other
ones than deepvm knows, too. All machines at their limits cost no more than the limit of all.
"""

from __future__ import annotations

from dataclasses import replace

from deepvm.jobs.decisions.markets import cheapest, fixed_rate, is_on_demand, most_of
from deepvm.jobs.decisions.world import JobState, Pool, Role


def most_usd_per_hour(world: JobState, pool: Pool, role: Role) -> float | None:
    """What a machine of a pool may cost, $/h; None for no limit."""
    terms = world.terms
    if terms.max_price is None:
        return None
    # Of both markets, whichever is wanted at the moment: a request that is repeated must say the
    # same.
    markets = [
        replace(world, on_demand=False),
        *([replace(world, on_demand=True)] if terms.bought else []),
    ]
    planned_usd = max(map(_planned_usd, markets))
    if not planned_usd:
        return None  # machines of one's own
    more = terms.max_price / planned_usd
    if role is not Role.TRAINER:
        alike = terms.anchor[:1]
    elif is_on_demand(pool) and pool not in world.pools:
        alike = (*terms.steady, *terms.bought)
    else:
        alike = world.pools
    share = more * min((p.usd_per_hour for p in alike), default=pool.usd_per_hour)
    # The price of a dearer type on demand does not rise, and that the budget buys it was checked
    # before.
    if is_on_demand(pool):
        return max(share, pool.usd_per_hour)
    return share


def _planned_usd(world: JobState) -> float:
    """What all machines cost where each is the cheapest of its kind, $/h."""
    rate, steadies = fixed_rate(world)
    pool = cheapest(world)
    each = pool.usd_per_hour if pool else 0.0
    return rate + (most_of(world) - steadies) * each
