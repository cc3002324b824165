"""Detect hung training: trainers that do not start, or make no more steps.

Until a generation says from which version it continues, a line that it prints is a sign of life, as
loading may take long; from then on only steps, versions and waiting for one are: what hangs may
still print. How long a step may take is unknown beforehand, so the longest that was seen counts
as well. After the last step lines count again: a test or an export takes long, and restarted it
would only take as long once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

from deepvm.core.spelling import joined
from deepvm.core.units import format_seconds
from deepvm.jobs.decisions.events import Heartbeat
from deepvm.jobs.decisions.world import JobState

_TIMES_LONGEST = 10.0
_MOST_AGAIN = 2
"""Restarts without a newer checkpoint: what hangs once more there is no coincidence."""
_MOST_NAMED = 4
START_TIMEOUT, STEP_TIMEOUT = "start_timeout", "step_timeout"
"""The limits of the job file, as reasons name them."""


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
    if pulse.since_s is None:
        since_s = at_s
    else:
        since_s = max(at_s, pulse.since_s)
    pulse = replace(pulse, since_s=since_s, stepped=pulse.stepped or longest_s is not None)
    return replace(world, pulse=replace(pulse, longest_s=max(pulse.longest_s, longest_s or 0.0)))


def heard(world: JobState, beats: Sequence[tuple[Heartbeat, float]]) -> JobState:
    """Apply the heartbeats of the generation, with their times, before steps are counted."""
    signs = [at_s for beat, at_s in beats if beat.idle_s is None and beat.step > world.reached]
    signs += [at_s - beat.idle_s for beat, at_s in beats if beat.idle_s is not None]
    step = max([world.reached, *(beat.step for beat, _ in beats)])
    if not (world.pulse.restored or world.pulse.stepped) or _may_be_done(world, step):
        signs += [at_s - beat.printed_s for beat, at_s in beats if beat.printed_s is not None]
    longest = [beat.longest_s for beat, _ in beats if beat.longest_s is not None]
    if signs:
        return alive(world, max(signs), max(longest, default=None))
    return world


def _may_be_done(world: JobState, step: int) -> bool:
    """Whether this was the last step; without a known total, if the last step was saved."""
    steps = world.terms.steps
    if steps is None:
        return 0 < step <= world.version
    return step >= steps


def restored(world: JobState) -> JobState:
    """With a generation that has reported from which version it continues."""
    return replace(world, pulse=replace(world.pulse, restored=True))


def forgiven(world: JobState, stalled_s: float) -> JobState:
    """Ignore a time in which no sign of life could be received."""
    since_s = world.pulse.since_s
    return replace(
        world, pulse=replace(world.pulse, since_s=None if since_s is None else since_s + stalled_s)
    )


def is_hung(world: JobState) -> bool:
    """Whether the generation gave no sign of life for too long, with no other explanation."""
    since_s = world.pulse.since_s
    limit = limit_s(world)
    # A job that ends waits for its last version for a while, and trainers that have failed are
    # judged by that.
    if not world.formed or world.job.over or world.ending or any(world.exits.values()):
        return False
    return since_s is not None and limit is not None and world.now_s - since_s >= limit


def noted(world: JobState) -> tuple[JobState, bool]:
    """With one hang more, and whether training may restart after it."""
    pulse = world.pulse
    if world.version > pulse.version:
        times = 1
    else:
        times = pulse.hangs + 1
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
        what = "no step and no line"
        if pulse.restored:
            what = "no step"
        return (
            f"the training does not begin on {where}: {what} in {took}, since {since}"
            f" ({START_TIMEOUT})"
        )
    since = f"since step {world.reached} at {since}"
    return f"the training hangs on {where}: no step in {took}, {since} ({STEP_TIMEOUT})"


def _named(machines: Sequence[str]) -> str:
    more = len(machines) - _MOST_NAMED
    return joined(machines if more <= 1 else [*machines[:_MOST_NAMED], f"{more} more"], "and")
