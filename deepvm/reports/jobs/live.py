"""A job while it runs: a table on a terminal, drawn again and again, or a line for each event."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from deepvm.core.units import counted
from deepvm.jobs.decisions.world import JobState
from deepvm.jobs.history.history import EventRow
from deepvm.reports.jobs.events import event_line
from deepvm.reports.pages import clock, sentences
from deepvm.reports.terminal import fitting, table_lines, without_controls
from deepvm.reports.text import table_of

if TYPE_CHECKING:
    from rich.live import Live

_LAST = 8
_MACHINES = 12


@dataclass(frozen=True)
class Limits:
    """What a job was submitted with; None where its file has no such limit."""

    steps: int | None = None
    total_usd: float | None = None


def limits_of(spec: Mapping[str, Any]) -> Limits:
    """Those of a job file."""
    steps = spec.get("steps")
    total_usd = (spec.get("budget") or {}).get("total_usd")
    return Limits(steps if isinstance(steps, int) else None, total_usd)


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
        self._name = name
        self._world = world
        self._stream = stream or sys.stderr
        self._limits = limits or Limits()
        self._events: deque[str] = deque(maxlen=_LAST)
        self._live: Live | None = None

    def __enter__(self) -> LiveView:
        """Start drawing, on a terminal."""
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live
            from rich.text import Text

            console = Console(file=self._stream)

            def picture() -> Text:
                world = self._world()
                lines = live_lines(self._name, world, self._limits, self._events, console.width)
                text = "\n".join(map(without_controls, lines))
                return Text(text, no_wrap=True, overflow="ellipsis")

            self._live = Live(get_renderable=picture, console=console, refresh_per_second=2)
            self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last picture."""
        if self._live is not None:
            self._live.__exit__(None, None, None)

    def on_event(self, event: EventRow) -> None:
        """Show what has happened."""
        line = event_line(event)
        if not line:
            return
        text = f"{clock(event.at_s)} {without_controls(line)}"
        self._events.append(text)
        if self._live is None:
            # Into a log, which nothing can draw again
            print(text, file=self._stream, flush=True)


def live_lines(
    name: str, world: JobState, limits: Limits, events: Sequence[str] | deque[str], width: int
) -> Iterator[str]:
    """The picture of a job in lines of ``width`` columns, except events, which a terminal cuts."""
    text = sentences("job_live.txt.j2").parts(name, world, limits)
    for group in text.split("\n\n"):
        yield from _packed(group.splitlines(), width)
    yield from _table(world, width)
    yield from events


def _packed(parts: Sequence[str], width: int) -> Iterator[str]:
    """Parts with commas between them, each whole, in as few lines as there are."""
    line = ""
    for part in parts:
        if not line:
            line = part
        elif len(line) + 2 + len(part) >= width:  # a comma may follow
            yield f"{line},"
            line = f"  {part}"
        else:
            line = f"{line}, {part}"
    yield line


def _table(world: JobState, width: int) -> Iterator[str]:
    """Machines that live, then those that ended last."""
    alive = world.alive
    ended = [m for m in world.machines.values() if m.state.over]
    ended.sort(key=lambda m: m.ended_s or m.requested_s, reverse=True)
    # A screen has few lines: machines that live come first
    shown = [*alive, *ended][:_MACHINES]
    text = sentences("job_live.txt.j2").table(shown, world)
    columns = table_of(text.splitlines())
    yield from table_lines(fitting(columns, width) or columns[:5:2])
    if len(world.machines) > len(shown):
        more = counted(len(world.machines) - len(shown), "machine")
        yield f"and {more} more, {len(alive)} alive in all"
