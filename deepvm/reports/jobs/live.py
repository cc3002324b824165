"""A job while it runs: a table that is drawn again and again on a terminal, or a line for each event elsewhere."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from deepvm.core.units import counted, format_seconds
from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import REFUSED, JobState, MachineRecord, Role
from deepvm.jobs.history.history import EventRow
from deepvm.reports.jobs.events import clock, event_line
from deepvm.reports.tables import Column, fitting
from deepvm.reports.terminal import without_controls

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

_LAST, _MACHINES = 8, 12
_COLUMNS = (
    Column("machine"),
    Column("type", drop=2),
    Column("state"),
    Column("alive", "right", drop=1),
    Column("$", "right"),
)


@dataclass(frozen=True)
class Limits:
    """What a job was submitted with; None where its file says nothing."""

    steps: int | None = None
    total_usd: float | None = None


def limits_of(spec: Mapping[str, Any]) -> Limits:
    """Those of a job file."""
    steps = spec.get("steps")
    return Limits(
        steps if isinstance(steps, int) else None, (spec.get("budget") or {}).get("total_usd")
    )


class LiveView:
    """Shows a job on stderr; data goes to stdout."""

    def __init__(
        self,
        name: str,
        world: Callable[[], JobState],
        limits: Limits | None = None,
        stream: TextIO | None = None,
    ) -> None:
        """``world``: what the controller knows now."""
        self._name, self._world, self._stream = name, world, stream or sys.stderr
        self._limits = limits or Limits()
        self._events: deque[str] = deque(maxlen=_LAST)
        self._live: Live | None = None

    def __enter__(self) -> LiveView:
        """Start drawing, on a terminal."""
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._stream)

            def drawn() -> Group:
                return self._drawn(console.width)

            self._live = Live(
                get_renderable=drawn, console=console, refresh_per_second=2, transient=False
            )
            self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last picture."""
        if self._live is not None:
            self._live.__exit__(None, None, None)

    def told(self, event: EventRow) -> None:
        """Something has happened."""
        line = event_line(event)
        if not line:
            return
        text = f"{clock(event.at_s)} {without_controls(line)}"
        self._events.append(text)
        if self._live is None:
            print(text, file=self._stream, flush=True)

    def _drawn(self, width: int) -> Group:
        from rich.console import Group
        from rich.text import Text

        lines = live_lines(self._name, self._world(), self._limits, self._events, width)
        return Group(
            *(Text(without_controls(line), no_wrap=True, overflow="ellipsis") for line in lines)
        )


def live_lines(
    name: str, world: JobState, limits: Limits, events: Sequence[str] | deque[str], width: int
) -> Iterator[str]:
    """The picture of a job in lines of at most ``width`` columns, but for those that a terminal cuts."""
    yield from _packed(
        [f"{name}: {world.job.value}", f"generation {world.generation}", *_progress(world, limits)],
        width,
    )
    yield from _packed([*_money(world, limits), _newest(world), *_counts(world)], width)
    yield from _table(world, width)
    yield from events


def _packed(parts: Sequence[str], width: int) -> Iterator[str]:
    """Parts with commas between them, each whole, in as few lines as there are."""
    line = ""
    for part in parts:
        if line and len(line) + 2 + len(part) >= width:  # a comma may follow
            yield f"{line},"
            line = f"  {part}"
        else:
            line = f"{line}, {part}" if line else part
    yield line


def _progress(world: JobState, limits: Limits) -> Iterator[str]:
    step_s, total = float(world.facts.step_s), limits.steps
    if world.progress_unknown:
        yield f"progress unknown: {world.progress_unknown}"
        return
    yield f"step {world.steps}" + (f" of {total} ({world.steps / total:.0%})" if total else "")
    if step_s:
        yield f"{1 / step_s:.3g} steps/s"
    if step_s and total and not world.job.over:
        yield f"{format_seconds(max(total - world.steps, 0) * step_s, digits=2)} left"


def _newest(world: JobState) -> str:
    return f"version {world.version} is safe" if world.version else "no checkpoint yet"


def _money(world: JobState, limits: Limits) -> Iterator[str]:
    budget = f" of {limits.total_usd:g} $" if limits.total_usd is not None else ""
    yield f"{world.usd:.4f} ${budget} so far"
    if world.job.over:
        return
    yield f"{world.usd_per_second * 3600:.3f} $/h now"
    step_s, total = float(world.facts.step_s), limits.steps
    if step_s and total and not world.progress_unknown:
        expected = world.usd + max(total - world.steps, 0) * step_s * world.usd_per_second
        yield f"{expected:.4f} $ expected"


def _counts(world: JobState) -> Iterator[str]:
    saves = sum(world.counts.saves.values())
    if saves:
        yield counted(saves, "save")
    if world.counts.failed.in_a_row:
        yield f"{counted(world.counts.failed.in_a_row, 'save')} failed since"
    if world.alone:
        yield f"the newest version is in the anchor's memory alone: {world.alone}"
    if world.preemptions:
        yield counted(world.preemptions, "preemption")
    if world.counts.lost_steps and not world.progress_unknown:
        yield f"{counted(world.counts.lost_steps, 'step')} lost"


def _table(world: JobState, width: int) -> Iterator[str]:
    """Machines that live, then those that ended last."""
    alive = [m for m in world.machines.values() if not m.state.over]
    ended = sorted(
        (m for m in world.machines.values() if m.state.over),
        key=lambda m: m.ended_s or m.requested_s,
    )
    shown = alive[:_MACHINES]
    shown = [
        *shown,
        *reversed(ended[-max(_MACHINES - len(shown), 0) :] if len(shown) < _MACHINES else []),
    ]
    rows = [_cells(machine, world) for machine in shown]
    places = fitting([_unwrapped(c) for c in _COLUMNS], rows, width) or [0, 2, 4]
    columns = [_COLUMNS[i] for i in places]
    cells = [[c.header for c in columns], *([row[i] for i in places] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    for row in cells:
        aligned = (
            text.rjust(w) if c.align == "right" else text.ljust(w)
            for text, c, w in zip(row, columns, widths, strict=True)
        )
        yield "  ".join(aligned).rstrip()
    if len(world.machines) > len(shown):
        yield (
            f"and {counted(len(world.machines) - len(shown), 'machine')} more, {len(alive)} alive"
            " in all"
        )


def _unwrapped(column: Column) -> Column:
    return Column(column.header, column.align, column.drop, wrap=False)


_STATES: Mapping[Machine, str] = {
    Machine.INTENT: "asked for",
    Machine.BOOTING: "booting",
    Machine.WARMING: "loading",
    Machine.SUSPECT: "silent",
    Machine.RELEASING: "being released",
}


def _state(machine: MachineRecord, world: JobState) -> str:
    """What a machine does, in a word or two."""
    if machine.state is not Machine.MEMBER:
        return _STATES.get(machine.state, str(machine.state.value))
    if machine.role is Role.ANCHOR:
        return "keeping versions"
    trains = world.formed and machine.id in world.members and world.job in (Job.RUNNING, Job.SAVING)
    return "training" if trains else "waiting"


def _cells(machine: MachineRecord, world: JobState) -> list[str]:
    state, now_s = _state(machine, world), world.now_s
    if machine.state.over:
        state = (
            machine.end_reason if machine.end_reason == REFUSED else f"ended: {machine.end_reason}"
        )
    elif machine.state is Machine.NOTICED and machine.taken_s is not None:
        state = f"goes in {format_seconds(max(machine.taken_s - now_s, 0.0), digits=2)}"
    end_s = now_s if machine.ended_s is None else machine.ended_s
    alive = (
        ""
        if machine.launched_s is None
        else format_seconds(max(end_s - machine.launched_s, 0.0), digits=2)
    )
    return [machine.id, machine.pool.instance_type, state, alive, f"{machine.usd(now_s):.4f}"]
