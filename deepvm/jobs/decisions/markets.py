"""Spot or on-demand, by deadline and budget: the policies of ``deepvm simulate``, for real.

Rules are those of :mod:`deepvm.core.preemption.deadlines`; added here is what a real job knows. A
change of market is a replacement: machines of the other market are asked for first, the generation
changes behind a version, and only then are the others released, so that no step is lost and spot
machines train while on-demand ones boot.

**What is not known yet** counts at its longest: until a machine has started, ``Terms.restart_s``;
until a version was safe, ``Terms.version_s``. A step takes what steps took in this generation, with
all that stalls them. Nothing is known of the work before the first steps: spot is waited for, but
no longer than a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace

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
from deepvm.jobs.decisions.pool_choice import free_pools
from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import (
    LOST,
    PREEMPTED,
    REFUSED,
    JobState,
    MachineRecord,
    Pool,
    Pools,
    Reason,
    Role,
    Save,
    StepRate,
)

_HORIZON_S = 1.0
"""Between two decisions; the controller looks more often."""
_DOUBT = 0.03
"""Share of the work by which measured steps may be too fast."""
_BLIND = 0.1
_FEWEST = 3
"""Steps from which their time is a figure."""
_RELEASE_S, _SLOWER = 2.0, 1.5
"""How long a release takes, and how much longer than the version before it the last one may."""
AGAIN_S = 2.0
"""Seconds from a failed save to the next request: trainers must first learn to continue."""


def last_s(world: JobState) -> float:
    """Seconds from the decision to stop to the end of the bill: step, checkpoint, release."""
    return float(world.facts.step_s) + _SLOWER * _version_s(world) + _RELEASE_S


def wait_until_s(world: JobState) -> float:
    """Until when a stopping job waits for its last checkpoint: the time and money left.

    The version itself may take as long as is expected even where nothing is left, as when nobody
    looked in time.
    """
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
    losses = max(_losses(world), world.losses)
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
    """Whether the job may stay on spot, or wait for it."""
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
    return DeadlineProgress(
        work_s=max(terms.steps - done, 0) * each_s,
        left_s=end_s - world.now_s,
        total_s=max(terms.steps - terms.begun, 1) * each_s,
        deadline_s=end_s - terms.begun_s,
        restart_s=_restart_s(world),
        version_s=step_s + _version_s(world),
        horizon_s=_HORIZON_S,
        on=_on(world),
    )


def step_s_of(world: JobState) -> float:
    """How long a step takes, with all that stalls it, seconds; 0 before the first."""
    return world.pace.step_s or float(world.facts.step_s)


def _on(world: JobState) -> int:
    if world.formed:
        if all(is_on_demand(world.machines[m].pool) for m in world.members):
            return ON_DEMAND
        return SPOT
    if any(m.state.coming for m in world.machines.values() if m.role is Role.TRAINER):
        return SPOT
    return WAIT


def _restart_s(world: JobState) -> float:
    """From the request for a machine until it trains: the longest that was seen."""
    seen = [m.trained_s - m.requested_s for m in world.machines.values() if m.trained_s is not None]
    return max(seen, default=world.terms.restart_s)


def _losses(world: JobState) -> int:
    """Spot machines that were preempted, lost, or not to be had."""
    ends = (PREEMPTED, LOST, REFUSED)
    return sum(
        m.role is Role.TRAINER
        and not is_on_demand(m.pool)
        and (m.noticed_s is not None or m.end_reason in ends)
        for m in world.machines.values()
    )


def _paced(world: JobState) -> StepRate:
    """How fast the steps of this generation were, from the first that was reported."""
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
    now = standing(world)
    market = "on demand" if world.on_demand else "on spot"
    if now is None:
        return {
            "market": market,
            "why": "nothing has been trained yet, and the deadline comes nearer",
        }
    spare = f"{abs(float(now.spare_s)):.0f} s"
    ahead = f"{abs(float(now.ahead_s)):.0f} s"
    if float(now.spare_s) < 0:
        return {"market": market, "why": f"the deadline may be missed by {spare}"}
    where = "ahead of" if float(now.ahead_s) >= 0 else "behind"
    return {"market": market, "why": f"{spare} to spare, {ahead} {where} an even pace"}


# --- machines -------------------------------------------------------------------------------------


def is_on_demand(pool: Pool) -> bool:
    """Whether machines of a pool are never preempted."""
    return pool.market != "spot"


def fits(world: JobState, machine: MachineRecord) -> bool:
    """Whether a machine is of the market that is wanted; any is while there is none on demand."""
    terms = world.terms
    if not terms.bought or (
        world.on_demand and all(is_blocked(world, pool) for pool in terms.bought)
    ):
        return True
    if world.on_demand:
        return is_on_demand(machine.pool)
    return not is_on_demand(machine.pool) or bool(terms.steady)


def is_blocked(world: JobState, pool: Pool) -> bool:
    """Whether a pool is left alone, because it has just refused."""
    return world.blocked.get(pool, (0.0, 0))[0] > world.now_s


def pool_of(world: JobState) -> Pool | None:
    """Where the next machine is asked for; None: nowhere now."""
    if world.on_demand:
        bought = [p for p in world.terms.bought if not is_blocked(world, p)]
    else:
        bought = []
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
    # Machines the user owns cost nothing
    if terms.usd_per_hour is None or pool is None or not pool.usd_per_hour:
        return terms.most
    rate, steadies = fixed_rate(world)
    return min(
        terms.most, steadies + max(int((terms.usd_per_hour - rate + 1e-9) / pool.usd_per_hour), 0)
    )


def least_usd_per_hour(world: JobState) -> float:
    """Smallest hourly budget that buys a generation's fewest machines in the wanted market."""
    (rate, steadies) = fixed_rate(world)
    pool = cheapest(world)
    return rate + max(world.terms.least - steadies, 0) * (pool.usd_per_hour if pool else 0.0)


def within_budget(world: JobState, limit: float | None, stay: Container[str] = ()) -> JobState:
    """Drop pools too dear for $/h, so that any choice buys a generation's fewest machines.

    It must buy them where the first anchors, the first steady machines and the cheapest others are
    to be had; or the types of those are among them that ``stay`` whatever they cost.
    """
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
    if world.on_demand:
        pools = world.terms.bought
    else:
        pools = world.pools
    return min(pools, key=lambda p: p.usd_per_hour, default=None)


def fixed_rate(world: JobState) -> tuple[float, int]:
    """$/h for any market of the others: anchors, and machines always bought on demand."""
    terms = world.terms
    if world.on_demand or not terms.steady:
        steadies = 0
    else:
        steadies = terms.steadies
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
        if m.state in _STAY and (m.role is Role.ANCHOR or fits(world, m))
    ]
    usd = pool.usd_per_hour
    # An anchor that is not there yet may have to come from the dearest pool
    if role is Role.TRAINER:
        stay = [m for m in stay if m.role is Role.TRAINER or m.launched_s is not None]
        lack = terms.anchors - sum(m.role is Role.ANCHOR for m in stay)
        usd += max(lack, 0) * _usd(max, terms.anchor)
    usd += sum(m.pool.usd_per_hour for m in stay)
    return usd <= terms.usd_per_hour + 1e-9


_STAY = (Machine.INTENT, Machine.BOOTING, Machine.WARMING, Machine.MEMBER, Machine.SUSPECT)
