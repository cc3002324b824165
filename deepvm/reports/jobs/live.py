"""A job while it runs: a table that is drawn again and again on a terminal, or a line for each event elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from deepvm.core.units import format_seconds
from deepvm.jobs.history import EventRow
from deepvm.jobs.states import Machine
from deepvm.jobs.world import MachineRecord, World
from deepvm.reports.jobs.events import clock, event_line

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

_LAST = 8


class LiveView:
    """Shows a job on stderr; data goes to stdout."""

    def __init__(self, name: str, world: Callable[[], World], stream: TextIO | None = None) -> None:
        """``world``: what the controller knows now."""
        self._name, self._world, self._stream = name, world, stream or sys.stderr
        self._events: deque[str] = deque(maxlen=_LAST)
        self._live: Live | None = None
        self._began_s = time.time()

    def __enter__(self) -> LiveView:
        """Start drawing, on a terminal."""
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._stream)
            self._live = Live(get_renderable=self._drawn, console=console, refresh_per_second=2, transient=False)
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
        text = f"{clock(event.at_s)} {line}"
        self._events.append(text)
        if self._live is None:
            print(text, file=self._stream, flush=True)

    def _drawn(self) -> Group:
        from rich.console import Group
        from rich.table import Table

        world = self._world()
        table = Table(box=None, pad_edge=False)
        for name in ("machine", "type", "state", "alive", "$"):
            table.add_column(name, justify="right" if name in ("alive", "$") else "left")
        for machine in list(world.machines.values())[-12:]:
            alive = "" if machine.launched_s is None else format_seconds(_alive_s(machine, world.now_s), digits=2)
            state = machine.state.value if machine.state is not Machine.ENDED else f"ended: {machine.end_reason}"
            table.add_row(machine.id, machine.pool.instance_type, state, alive, f"{machine.usd(world.now_s):.4f}")
        step_s = float(world.facts.step_s)
        speed = f", {1 / step_s:.3g} steps/s" if step_s else ""
        head = f"{self._name}: {world.job.value}, generation {world.generation}, step {world.steps}{speed}"
        money = f"{world.usd:.4f} $ so far, {world.usd_per_second * 3600:.3f} $/h now; version {world.version} is safe"
        return Group(head, money, table, *self._events)


def _alive_s(machine: MachineRecord, now_s: float) -> float:
    end_s = now_s if machine.ended_s is None else machine.ended_s
    return max(end_s - (machine.launched_s or end_s), 0.0)
