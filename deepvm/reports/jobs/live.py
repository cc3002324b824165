"""A job in words (``job_words.j2``); while it runs, as a table on a terminal or a line an event."""

import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from deepvm.core.units import counted
from deepvm.jobs.agent.group_watch import ONE_PROCESS
from deepvm.jobs.decisions.hangs import START_TIMEOUT, STEP_TIMEOUT
from deepvm.jobs.decisions.reconcile import BUDGET, DEADLINE, NEVER_READY
from deepvm.jobs.decisions.world import JobLimits, JobState, Reason
from deepvm.jobs.history.history import EventRow
from deepvm.jobs.history.log_files import LogLine
from deepvm.jobs.submission import more_money, more_time
from deepvm.reports.pages import clock, sentences
from deepvm.reports.terminal import fitting, table_lines, without_controls
from deepvm.reports.text import table_of

if TYPE_CHECKING:
    from rich.live import Live

_LAST = 8
_MACHINES = 12
_MAX_WAITING = 10_000  # Lines
_FLUSH_S = 2.0
_SAVES_S = 30.0  # between two lines of checkpoints that the save policy took


def words() -> Any:
    """The sentences on jobs, by name."""
    return sentences("job_words.j2")


def event_line(event: EventRow) -> str:
    """The line of an event; empty for one that says nothing new."""
    return str(words().event(event))


def closing_lines(
    document: Mapping[str, Any], terms: JobLimits, last: Sequence[str], folder: Path, new_name: str
) -> list[str]:
    """What to know of a job that has not trained to its end, and what to do next."""
    reason = document["why"]
    more = ""
    # What ended it once ends it again
    if reason.startswith(BUDGET):
        more = more_money(document["cost_usd"], terms)
    elif reason.startswith(DEADLINE):
        more = more_time(terms)
    limits = [key for key in (START_TIMEOUT, STEP_TIMEOUT) if reason.endswith(f"({key})")]
    few = [ONE_PROCESS for line in last if f"{ONE_PROCESS} for one process" in line]
    text: str = words().closing(document, folder / "logs", new_name, more, limits, few)
    return text.splitlines()


def failure_lines(document: Mapping[str, Any], last: Sequence[str]) -> Sequence[str]:
    """What the trainers of a job that failed have printed last, without the reason that follows."""
    reason = document["why"]
    if document["state"] != "failed" and not reason.startswith(NEVER_READY):
        return ()
    return last[:-1] if last and reason.endswith(last[-1]) else last


class LiveView:
    """Shows a job on stderr; data goes to stdout. A slow reader blocks only a thread."""

    def __init__(
        self, name: str, world: Callable[[], JobState], stream: TextIO | None = None
    ) -> None:
        self._name = name
        self._world = world
        self._stream = stream or sys.stderr
        self._events: deque[str] = deque(maxlen=_LAST)
        self._live: Live | None = None
        self._lines: queue.Queue[str | None] = queue.Queue(_MAX_WAITING)
        self._missing = 0
        self._next_save_s = 0.0
        self._printer = threading.Thread(target=self._print, name="output", daemon=True)

    def __enter__(self) -> "LiveView":
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live
            from rich.text import Text

            console = Console(file=self._stream)

            def picture() -> Text:
                lines = live_lines(self._name, self._world(), self._events, console.width)
                text = "\n".join(map(without_controls, lines))
                return Text(text, no_wrap=True, overflow="ellipsis")

            self._live = Live(get_renderable=picture, console=console, refresh_per_second=2)
            self._live.__enter__()
        self._printer.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(queue.Full):  # who does not read gets no more
            self._lines.put(None, timeout=_FLUSH_S)
        self._printer.join(_FLUSH_S)
        if self._live is not None:
            self._live.__exit__(None, None, None)

    def on_event(self, event: EventRow) -> None:
        line = event_line(event)
        if not line:
            return
        if event.kind == "safe" and event.facts["reason"] == Reason.INSURANCE.value:
            # One in a while shows that saves work; all would hide what the training prints
            if event.at_s < self._next_save_s:
                return
            self._next_save_s = event.at_s + _SAVES_S
        text = f"{clock(event.at_s)} {without_controls(line)}"
        self._events.append(text)
        if self._live is None:
            # Into a log, which nothing can draw again
            self._show(text)

    def on_line(self, machine: str, rank: int, text: str, *, all_ranks: bool = False) -> None:
        """A trainer has printed a line; of one group those of the first process are shown."""
        world = self._world()
        first = world.members or tuple(m.id for m in world.trained)
        if all_ranks or (rank == 0 and machine in first[:1]):
            self._show(without_controls(LogLine(machine, "", text, str(rank)).shown))

    def _show(self, line: str) -> None:
        try:
            if self._missing:
                text = f"[{self._missing} lines are not shown: they come faster than they are read]"
                self._lines.put_nowait(text)
                self._missing = 0
            self._lines.put_nowait(line)
        except queue.Full:
            self._missing += 1

    def _print(self) -> None:
        with suppress(OSError, ValueError):  # a terminal that was closed
            while (line := self._lines.get()) is not None:
                if self._live is None:
                    print(line, file=self._stream, flush=True)
                else:
                    self._live.console.out(line, highlight=False)


def live_lines(
    name: str, world: JobState, events: Sequence[str] | deque[str], width: int
) -> Iterator[str]:
    """The picture of a job in lines of ``width`` columns, except events, which a terminal cuts."""
    text = sentences("job_live.txt.j2").parts(name, world)
    for group in text.split("\n\n"):
        yield from _packed(group.splitlines(), width)
    yield from _table(world, width)
    yield from events


def _packed(parts: Sequence[str], width: int) -> Iterator[str]:
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
