"""Spot or on-demand, by deadline and budget: the policies of ``deepvm simulate``, for real.

To the rules of :mod:`deepvm.core.preemption.deadlines` comes what a real job knows; what is not
known yet counts at its longest. A change of market is a replacement: the generation changes after a
version, and only then are the machines of the other market released.
"""

from collections.abc import Callable, Container, Iterable, Sequence

from deepvm.core.json_types import JsonObject
from deepvm.core.preemption.deadlines import (
    DEADLINE_POLICIES,
    ON_DEMAND,
    SPOT,
    WAIT,
    DeadlinePolicy,
    DeadlineProgress,
    on_demand_next,
    steps_on_spot,
)
from deepvm.jobs.decisions.states import Job, Machine, replace
from deepvm.jobs.decisions.world import (
    LOST,
    PREEMPTED,
    REFUSED,
    JobState,
    MachineRecord,
    Pool,
    PoolRecord,
    Pools,
    Reason,
    Role,
    Save,
    StepRate,
)

# How often a pool has refused that only rests, after a preemption: it is better than none
_RESTS = 0
_REST_COOLS = 10  # A preemption weighs more than a refusal: another one often follows soon


def refused(world: JobState, pool: Pool) -> JobState:
    """Leave a pool that has refused alone, for twice as long each time."""
    if is_refusing(world, pool):  # what was asked for before is of the same round
        return world
    times = world.blocked.get(pool, (0.0, _RESTS))[1]
    left_alone = world.now_s + world.terms.cool_s * 2 ** min(times, 6), times + 1
    return replace(world, blocked={**world.blocked, pool: left_alone})


def rested(world: JobState, pool: Pool) -> JobState:
    """Let a pool rest for a while after a preemption, if there are others of its type."""
    known = next((p for p in world.pools if p.place == pool.place), None)
    alike = [p for p in world.pools if p != known and p.instance_type == pool.instance_type]
    if known is None or world.blocked.get(known, (0.0, _RESTS))[0] > world.now_s or not alike:
        return world
    rest = world.now_s + _REST_COOLS * world.terms.cool_s, _RESTS
    return replace(world, blocked={**world.blocked, known: rest})


def rested_after_losses(before: JobState, world: JobState) -> JobState:
    """Let pools rest whose machines were noticed since, or were lost without a notice."""
    for m in before.machines.values():
        now = world.machines[m.id]
        if now.was_preempted and not m.was_preempted:
            world = rested(world, now.pool)
    return world


def free_pools(world: JobState, of: Sequence[Pool] | None = None) -> list[Pool]:
    """Pools to ask now, the best first: the available ones, else those that rest."""
    pools = world.pools if of is None else of
    left = {pool for pool, (until_s, _) in world.blocked.items() if until_s > world.now_s}
    free = [p for p in pools if p not in left] or [p for p in pools if not is_refusing(world, p)]
    types = list(dict.fromkeys(pool.instance_type for pool in free))
    if len(types) == len(free):
        return free
    usd = usd_per_useful_hour(world, free)
    return sorted(free, key=lambda pool: (types.index(pool.instance_type), usd[pool]))


def is_refusing(world: JobState, pool: Pool) -> bool:
    """Whether a pool has just refused; one that rests has not."""
    until_s, times = world.blocked.get(pool, (0.0, _RESTS))
    return times != _RESTS and until_s > world.now_s


def usd_per_useful_hour(world: JobState, pools: Iterable[Pool]) -> dict[Pool, float]:
    """$ per useful hour of training in each pool, by the history and by this job."""
    own = {pool.place: PoolRecord(at_s=world.now_s) for pool in pools}
    for m in world.machines.values():
        if (place := m.pool.place) in own:
            own[place] = own[place].seen(
                m.requested_s,
                m.launched_s,
                m.ended_s,
                taken=m.was_preempted,
                refused=m.end_reason == REFUSED,
            )
    known = {
        pool: own[pool.place].with_earlier(world.priors.get(pool, PoolRecord())) for pool in pools
    }
    return {pool: record.usd_per_useful_hour(pool.usd_per_hour) for pool, record in known.items()}


def record_of(pool: Pool, machines: Iterable[JsonObject], now_s: float) -> PoolRecord:
    """History of a pool's machines; a pool of a whole region has those of all its zones."""
    found = PoolRecord(at_s=now_s)
    for m in machines:
        here = str(m["zone"]).startswith(pool.zone)
        if here and (m["instance_type"], m["market"]) == (pool.instance_type, pool.market):
            reason = m["end_reason"]
            found = found.seen(
                m["requested_s"],
                m["launched_s"],
                m["ended_s"],
                taken=m.get("noticed_s") is not None or reason in (PREEMPTED, LOST),
                refused=reason == REFUSED,
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


_HORIZON_S = 1.0  # Between two decisions; the controller looks more often
_DOUBT = 0.03  # Share of the work by which measured steps may be too fast
_BLIND = 0.1  # Share of the time for which spot is waited for before the first steps
_FEWEST = 3  # Steps from which their time is a figure
# How long a release takes, and how much longer than the version before it the last one may
_RELEASE_S, _SLOWER = 2.0, 1.5
# Seconds from a failed save to the next request: trainers must first learn to continue
AGAIN_S = 2.0
STAYING = (Machine.INTENT, Machine.BOOTING, Machine.WARMING, Machine.MEMBER, Machine.SUSPECT)


def last_s(world: JobState) -> float:
    """Seconds from the decision to stop to the end of the bill: step, checkpoint, release."""
    return float(world.facts.step_s) + _SLOWER * _version_s(world) + _RELEASE_S


def wait_until_s(world: JobState) -> float:
    """Until when a stopping job waits for its last checkpoint; at least as long as one takes."""
    terms = world.terms
    limits = [world.ending_s + terms.save_s]
    if terms.end_s is not None:
        limits.append(terms.end_s)
    if terms.total_usd is not None and world.usd_per_second > 0:
        limits.append(world.now_s + (terms.total_usd - world.usd) / world.usd_per_second)
    return max(min(limits), world.ending_s + last_s(world))


def _version_s(world: JobState) -> float:
    """Seconds from a step's end until its checkpoint is durable; expected ones before the first."""
    return max(float(world.facts.emergency_s), world.lasting_s or world.terms.version_s)


def decided(world: JobState) -> JobState:
    """Apply the market of the next machines, with a checkpoint first if one must be safe."""
    terms = world.terms
    if not terms.bought or terms.end_s is None or world.job.over or world.ending:
        return world
    spot = (m for m in world.of(Role.TRAINER) if not is_on_demand(m.pool))
    losses = max(sum(m.was_preempted or m.end_reason == REFUSED for m in spot), world.losses)
    lost = losses > world.losses
    world = replace(world, pace=_paced(world), losses=losses)
    policy = DEADLINE_POLICIES[terms.deadline_policy]()
    now = standing(world)
    if now is None:  # a pool without capacity must not use up the time before anything is known
        late = not world.formed and world.now_s - terms.begun_s >= _BLIND * (
            terms.end_s - terms.begun_s
        )
        return replace(world, on_demand=world.on_demand or late)
    if world.on_demand:  # once asked for, it is waited for
        return replace(world, on_demand=not (now.on == ON_DEMAND and policy.choose(now) == SPOT))
    if now.on == ON_DEMAND:  # spot has been asked for, and is not there yet
        return replace(world, on_demand=bool(policy.choose(now) == ON_DEMAND))
    hoped = standing(world, hoped=True) if lost else None
    if hoped is not None and on_demand_next(policy, hoped):
        return replace(world, on_demand=True)
    return _kept(world, policy, now)


def _kept(world: JobState, policy: DeadlinePolicy, now: DeadlineProgress) -> JobState:
    if now.on == WAIT:
        return replace(world, on_demand=bool(now.safety_net))
    stay_s = float(policy.stay_s(now))
    step_s = step_s_of(world)
    if float(steps_on_spot(policy, now, step_s, now.version_s)) >= 1:
        return world
    if stay_s > 0 and (
        (world.save is not None and not world.save.safe) or not world.has_waited(AGAIN_S)
    ):
        return world  # what it makes safe may be time enough
    gained_s = (world.steps - world.version) * step_s
    if stay_s > 0 and world.job is Job.RUNNING and gained_s > 2 * float(now.version_s):
        return replace(world, save=Save(Reason.INSURANCE, world.now_s, world.now_s + stay_s))
    return replace(world, on_demand=True)


def standing(world: JobState, *, hoped: bool = False) -> DeadlineProgress | None:
    """The job's progress, None if unknown; ``hoped``: include steps an emergency save may keep."""
    terms = world.terms
    step_s = step_s_of(world)
    if terms.steps is None or terms.end_s is None or not step_s:
        return None
    each_s = step_s * (1 + _DOUBT)
    end_s = terms.end_s - last_s(world)
    done = world.steps if hoped else world.version
    # From the request for a machine until it trains: the longest that was seen
    seen = [m.trained_s - m.requested_s for m in world.machines.values() if m.trained_s is not None]
    return DeadlineProgress(
        work_s=max(terms.steps - done, 0) * each_s,
        left_s=end_s - world.now_s,
        total_s=max(terms.steps - terms.begun, 1) * each_s,
        deadline_s=end_s - terms.begun_s,
        restart_s=max(seen, default=terms.restart_s),
        version_s=step_s + _version_s(world),
        horizon_s=_HORIZON_S,
        on=_on(world),
    )


def step_s_of(world: JobState) -> float:
    """How long a step takes, with all that stalls it, seconds; 0 before the first."""
    return world.pace.step_s or float(world.facts.step_s)


def _on(world: JobState) -> int:
    if world.formed and all(is_on_demand(m.pool) for m in world.crew):
        return ON_DEMAND
    if world.formed or any(m.state.coming for m in world.of(Role.TRAINER)):
        return SPOT
    return WAIT


def _paced(world: JobState) -> StepRate:
    pace = world.pace
    reached = world.reached
    if world.job is not Job.RUNNING:
        return pace
    if pace.generation != world.generation:
        return StepRate(world.generation, reached, -1.0, pace.step_s)
    if pace.first_s < 0:  # the first step loads and compiles: time counts from its end
        if reached > pace.first:
            return replace(pace, first=reached, first_s=world.now_s)
        return pace
    done = reached - pace.first
    if done < _FEWEST or reached == pace.last:
        return pace
    return replace(pace, last=reached, step_s=(world.now_s - pace.first_s) / done)


def market_facts(world: JobState) -> dict[str, str]:
    """The market in which machines are asked for from now on, and why, in words."""
    return {"market": "on demand" if world.on_demand else "on spot", "why": _why(world)}


def _why(world: JobState) -> str:
    now = standing(world)
    if now is None:
        return "nothing has been trained yet, and the deadline comes nearer"
    spare_s = float(now.spare_s)
    ahead_s = float(now.ahead_s)
    if spare_s < 0:
        return f"the deadline may be missed by {-spare_s:.0f} s"
    where = "ahead of" if ahead_s >= 0 else "behind"
    return f"{spare_s:.0f} s to spare, {abs(ahead_s):.0f} s {where} an even pace"


def is_on_demand(pool: Pool) -> bool:
    """Whether machines of a pool are never preempted."""
    return pool.market != "spot"


def fits(world: JobState, machine: MachineRecord) -> bool:
    """Whether a machine is of the market that is wanted; any is while there is none on demand."""
    terms = world.terms
    if not terms.bought:
        return True
    bought = is_on_demand(machine.pool)
    if world.on_demand:
        return bought or all(is_blocked(world, pool) for pool in terms.bought)
    return not bought or bool(terms.steady)


def is_blocked(world: JobState, pool: Pool) -> bool:
    """Whether a pool is left alone, because it has just refused."""
    return world.blocked.get(pool, (0.0, 0))[0] > world.now_s


def pool_of(world: JobState) -> Pool | None:
    """Where the next machine is asked for; None: nowhere now."""
    bought = [p for p in world.terms.bought if world.on_demand and not is_blocked(world, p)]
    return next(iter(bought or free_pools(world)), None)


def steady_of(world: JobState) -> Pool | None:
    """The same for the next of those that must be on demand."""
    return next(iter(free_pools(world, world.terms.steady)), None)


def anchor_of(world: JobState) -> Pool | None:
    """The same for the next anchor; one dearer than the first must fit the hourly budget."""
    first = world.terms.anchor[:1]
    free = free_pools(world, world.terms.anchor)
    return next((p for p in free if p in first or is_affordable(world, p, Role.ANCHOR)), None)


def most_of(world: JobState) -> int:
    """Most machines of a generation that the hourly budget buys in the wanted market."""
    terms = world.terms
    pool = cheapest(world)
    if terms.usd_per_hour is None or pool is None or not pool.usd_per_hour:
        return terms.most
    rate, steadies = fixed_rate(world)
    return min(
        terms.most, steadies + max(int((terms.usd_per_hour - rate + 1e-9) / pool.usd_per_hour), 0)
    )


def least_usd_per_hour(world: JobState) -> float:
    """Smallest hourly budget that buys a generation's fewest machines in the wanted market."""
    return _usd_per_hour(world, world.terms.least)


def _usd_per_hour(world: JobState, machines: int) -> float:
    rate, steadies = fixed_rate(world)
    pool = cheapest(world)
    return rate + max(machines - steadies, 0) * (pool.usd_per_hour if pool else 0.0)


def within_budget(world: JobState, limit: float | None, stay: Container[str] = ()) -> JobState:
    """Drop pools too dear for $/h: any choice buys the fewest machines; ``stay``: types kept."""
    terms = world.terms
    if limit is None:
        return world

    def buys(usd: float) -> bool:
        return usd <= limit + 1e-9

    def kept(pools: Pools, count: int, rest_usd: float) -> Pools:
        return tuple(
            p for p in pools if p.instance_type in stay or buys(count * p.usd_per_hour + rest_usd)
        )

    spots = max(terms.least - terms.steadies, 0)
    spot_usd = spots * _usd(min, world.pools)
    trainers_usd = (
        terms.steadies * _usd(max, terms.steady[:1]) + spot_usd,
        terms.least * _usd(min, terms.bought),
    )
    anchor = kept(terms.anchor, terms.anchors, max(filter(buys, trainers_usd), default=0.0))
    rest_usd = terms.anchors * _usd(max, anchor)
    bought = kept(terms.bought, terms.least, rest_usd)
    steady = kept(terms.steady, terms.steadies, rest_usd + spot_usd)
    pools = kept(world.pools, spots, rest_usd + terms.steadies * _usd(max, steady))
    return replace(
        world, terms=replace(terms, anchor=anchor, steady=steady, bought=bought), pools=pools
    )


def _usd(which: Callable[..., float], pools: Pools) -> float:
    return which((pool.usd_per_hour for pool in pools), default=0.0)


def cheapest(world: JobState) -> Pool | None:
    """The cheapest pool of the market in which machines are bought now."""
    pools = world.terms.bought if world.on_demand else world.pools
    return min(pools, key=lambda p: p.usd_per_hour, default=None)


def fixed_rate(world: JobState) -> tuple[float, int]:
    """$/h for any market of the others: anchors, and machines always bought on demand."""
    terms = world.terms
    steadies = terms.steadies if terms.steady and not world.on_demand else 0
    paid = ((terms.anchors, terms.anchor[:1]), (steadies, terms.steady[:1]))
    return sum(count * pool.usd_per_hour for count, pools in paid for pool in pools), steadies


def is_affordable(world: JobState, pool: Pool, role: Role = Role.TRAINER) -> bool:
    """Whether the hourly budget allows one machine more, without leaving ones, with all anchors."""
    terms = world.terms
    if terms.usd_per_hour is None:
        return True
    stay = [
        m
        for m in world.machines.values()
        if m.state in STAYING and (m.role is Role.ANCHOR or fits(world, m))
    ]
    usd = pool.usd_per_hour
    # An anchor that is not there yet may have to come from the dearest pool
    if role is Role.TRAINER:
        stay = [m for m in stay if m.role is Role.TRAINER or m.launched_s is not None]
        lack = terms.anchors - sum(m.role is Role.ANCHOR for m in stay)
        usd += max(lack, 0) * _usd(max, terms.anchor)
    usd += sum(m.pool.usd_per_hour for m in stay)
    return usd <= terms.usd_per_hour + 1e-9


def most_usd_per_hour(world: JobState, pool: Pool, role: Role) -> float | None:
    """A machine's share of ``max_price`` for all, $/h, by its pool's price; None for no limit."""
    terms = world.terms
    if terms.max_price is None:
        return None
    # Of both markets: a request that is repeated must say the same
    markets = (False, True) if terms.bought else (False,)
    worlds = [replace(world, on_demand=bought) for bought in markets]
    planned_usd = max(_usd_per_hour(each, most_of(each)) for each in worlds)
    if not planned_usd:
        return None  # static hosts
    more = terms.max_price / planned_usd
    if role is not Role.TRAINER:
        alike = terms.anchor[:1]
    elif is_on_demand(pool) and pool not in world.pools:
        alike = (*terms.steady, *terms.bought)
    else:
        alike = world.pools
    share = more * min((p.usd_per_hour for p in alike), default=pool.usd_per_hour)
    # An on-demand price does not rise, and that the budget buys it was checked before
    if is_on_demand(pool):
        return max(share, pool.usd_per_hour)
    return share
