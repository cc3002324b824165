"""Hung training, and machines that wait too long: for others, or for a checkpoint.

A printed line is a sign of life until a generation says from which checkpoint it continues, as
loading may take long, and after its last step; in between what hangs may still print.
"""

from collections.abc import Sequence
from datetime import datetime, timezone

from deepvm.core.spelling import joined
from deepvm.core.units import format_seconds
from deepvm.jobs.decisions.events import Heartbeat
from deepvm.jobs.decisions.states import Machine, replace
from deepvm.jobs.decisions.world import JobState, MachineRecord, Role

_TIMES_LONGEST = 10.0
_MOST_AGAIN = 2  # Restarts without a newer checkpoint: what hangs once more there is no coincidence
_MOST_NAMED = 4
# The limits of the job file, as reasons name them
START_TIMEOUT, STEP_TIMEOUT = "start_timeout", "step_timeout"


def limit_s(world: JobState) -> float | None:
    """How long the generation may go without a sign of life; None: as long as it likes."""
    terms = world.terms
    pulse = world.pulse
    if not pulse.stepped:
        return terms.start_timeout_s
    if terms.step_timeout_s is None:
        return None
    return max(terms.step_timeout_s, _TIMES_LONGEST * pulse.longest_s)


def generation_formed(world: JobState) -> JobState:
    """With a generation that has just been formed."""
    now_s = world.now_s
    return replace(
        world,
        pulse=replace(world.pulse, formed_s=now_s, since_s=now_s, restored=False, stepped=False),
    )


def alive(world: JobState, at_s: float, longest_s: float | None = None) -> JobState:
    """Apply a sign of life; ``longest_s``: between two of its steps, None before the first."""
    pulse = world.pulse
    if pulse.since_s is not None:
        at_s = max(at_s, pulse.since_s)
    pulse = replace(
        pulse,
        since_s=at_s,
        stepped=pulse.stepped or longest_s is not None,
        longest_s=max(pulse.longest_s, longest_s or 0.0),
    )
    return replace(world, pulse=pulse)


def heard(world: JobState, beats: Sequence[tuple[Heartbeat, float]]) -> JobState:
    """Apply the heartbeats of the generation, with their times, before steps are counted."""
    signs = [at_s for beat, at_s in beats if beat.idle_s is None and beat.step > world.reached]
    signs += [at_s - beat.idle_s for beat, at_s in beats if beat.idle_s is not None]
    step = max([world.reached, *(beat.step for beat, _ in beats)])
    if world.terms.steps is None:
        may_be_done = 0 < step <= world.version
    else:
        may_be_done = step >= world.terms.steps
    if not (world.pulse.restored or world.pulse.stepped) or may_be_done:
        signs += [at_s - beat.printed_s for beat, at_s in beats if beat.printed_s is not None]
    longest = [beat.longest_s for beat, _ in beats if beat.longest_s is not None]
    if signs:
        return alive(world, max(signs), max(longest, default=None))
    return world


def restored(world: JobState) -> JobState:
    """Apply that the generation has reported from which checkpoint it continues."""
    return replace(world, pulse=replace(world.pulse, restored=True))


def is_hung(world: JobState) -> bool:
    """Whether the generation gave no sign of life for too long, with no other explanation."""
    since_s = world.pulse.since_s
    limit = limit_s(world)
    # A job that ends waits for its last checkpoint, and failed trainers are judged by that
    if not world.formed or world.job.over or world.ending or any(world.exits.values()):
        return False
    return since_s is not None and limit is not None and world.now_s - since_s >= limit


def noted(world: JobState) -> tuple[JobState, bool]:
    """With one hang more, and whether training may restart after it."""
    pulse = world.pulse
    times = 1
    if world.version <= pulse.version:
        times += pulse.hangs
    pulse = replace(pulse, hangs=times, version=world.version, hung_s=world.now_s, why=_why(world))
    return replace(world, pulse=pulse), times <= _MOST_AGAIN


def _why(world: JobState) -> str:
    pulse = world.pulse
    limit = limit_s(world)
    assert pulse.since_s is not None and limit is not None
    since = datetime.fromtimestamp(pulse.since_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    where = _named(world.members)
    took = format_seconds(world.now_s - pulse.since_s, digits=2)
    if not pulse.stepped:
        what = "no step" if pulse.restored else "no step and no line"
        return (
            f"the training does not start on {where}: {what} in {took}, since {since}"
            f" ({START_TIMEOUT})"
        )
    since = f"since step {world.reached} at {since}"
    return f"the training hangs on {where}: no step in {took}, {since} ({STEP_TIMEOUT})"


def _named(machines: Sequence[str]) -> str:
    more = len(machines) - _MOST_NAMED
    return joined(machines if more <= 1 else [*machines[:_MOST_NAMED], f"{more} more"], "and")


def timed(world: JobState) -> JobState:
    """With a running clock (idle, a new machine waits), a stopped one (it prepares), or 0."""
    if world.formed and not _newcomers(world):
        return replace(world, idle_s=None, idled_s=0.0)
    if not world.formed and any(_doing(world, m) for m in _coming(world)):
        return replace(world, idle_s=None, idled_s=waited_s(world))
    if world.idle_s is not None:
        return world
    return replace(world, idle_s=world.now_s)


def waited_s(world: JobState) -> float:
    """For how long nothing was trained, or new machines have waited."""
    return world.idled_s + (0.0 if world.idle_s is None else world.now_s - world.idle_s)


def idlers(world: JobState) -> list[MachineRecord]:
    """Trainers that have waited long enough: nothing comes for which they could wait."""
    if not world.formed and any(
        m.state in (Machine.BOOTING, Machine.WARMING) for m in world.machines.values()
    ):
        return []
    limit_s = world.terms.hold_s
    if waited_s(world) < limit_s:
        return []
    return [m for m in _newcomers(world) if world.now_s - (m.ready_s or 0.0) >= limit_s]


def _newcomers(world: JobState) -> list[MachineRecord]:
    members = set(world.members if world.formed else ())
    return [m for m in world.of(Role.TRAINER, Machine.MEMBER) if m.id not in members]


def let_go(world: JobState) -> JobState:
    """Leave all pools alone for a while, so that released machines are not requested again."""
    terms = world.terms
    until_s = world.now_s + terms.hold_s
    blocked = dict(world.blocked)
    for pool in (*world.pools, *terms.steady, *terms.bought):
        _, times = blocked.get(pool, (0.0, 0))
        blocked[pool] = until_s, max(times, 1)
    return replace(world, blocked=blocked)


def is_in_vain(world: JobState, role: Role) -> bool:
    """Whether a new machine could not join: checkpoints fail, and training needs no other."""
    if not world.formed:
        return False
    if any(m.state is not Machine.MEMBER for m in world.crew):
        return False
    if world.exits:  # some have trained to the end: they save no more
        return True
    waits = not world.has_waited(world.terms.give_up_s)
    return waits and role is Role.TRAINER and not world.on_demand


def further_s(world: JobState, machine: MachineRecord) -> float:
    """When a machine that comes last got further."""
    return max(machine.requested_s, world.preparing.get(machine.id, ("", 0.0))[1])


def _coming(world: JobState) -> list[MachineRecord]:
    return [m for m in world.machines.values() if m.state.coming]


def _doing(world: JobState, machine: MachineRecord) -> str:
    return world.preparing.get(machine.id, ("", 0.0))[0]


def adopted(world: JobState, now_s: float) -> JobState:
    """Apply a takeover: without a controller nothing was received, and no wait was counted."""
    machines = {k: replace(m, heard_s=m.heard_s and now_s) for k, m in world.machines.items()}
    preparing = dict(world.preparing)
    for m in _coming(world):
        preparing[m.id] = _doing(world, m), now_s
    world = alive(world, now_s)
    return replace(world, machines=machines, preparing=preparing, idle_s=None, idled_s=0.0)


def forgiven(world: JobState, stalled_s: float) -> JobState:
    """Ignore a time in which the controller's process was suspended or blocked."""
    machines = {
        k: replace(m, heard_s=m.heard_s and m.heard_s + stalled_s)
        for k, m in world.machines.items()
    }
    preparing = dict(world.preparing)
    for m in _coming(world):
        preparing[m.id] = _doing(world, m), further_s(world, m) + stalled_s
    if world.idle_s is not None:
        world = replace(world, idle_s=world.idle_s + stalled_s)
    if world.pulse.since_s is not None:
        world = replace(world, pulse=replace(world.pulse, since_s=world.pulse.since_s + stalled_s))
    return replace(world, machines=machines, preparing=preparing)
