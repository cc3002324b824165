"""What a machine may cost: the most that its cloud is told, so that a price that rises does not become a bill.

``Terms.max_price`` holds for all machines together: what on-demand machines leave of it is split evenly among the spot
machines. Without it, what the job was planned for is such a sum, but each price may rise by 20 % at least: a limit at
today's price would end machines at the first change. On-demand prices are fixed; 20 % above what the catalog knows says
that it is too old. Where nothing limits a job, AWS's own limit of spot machines holds, the on-demand price.
"""

from __future__ import annotations

from dataclasses import replace

from deepvm.core.cluster.price_limits import HEADROOM
from deepvm.jobs.decisions.markets import fixed_rate, is_on_demand, most_of
from deepvm.jobs.decisions.world import Pool, Role, World

_RISE = 1.0 + float(HEADROOM)


def most_usd_per_hour(world: World, pool: Pool, role: Role) -> float | None:
    """What a machine of a pool may cost, $/h; None for no limit."""
    terms = world.terms
    planned = terms.usd_per_hour if terms.usd_per_hour is not None else terms.plan_usd_per_hour
    if terms.max_price is None and planned is None:
        return None
    if is_on_demand(pool) or role is not Role.TRAINER:
        return pool.usd_per_hour * _RISE
    # As if on spot, whatever the market of the moment: a request that is repeated must say the same.
    on_spot = replace(world, on_demand=False)
    rate, steadies = fixed_rate(on_spot)
    count = max(most_of(on_spot) - steadies, 1)
    if terms.max_price is not None:
        return max(terms.max_price - rate, 0.0) / count
    return max(((planned or 0.0) - rate) / count, pool.usd_per_hour * _RISE)
