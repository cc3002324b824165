"""The machines of a job over time: asked for, loading, waiting, training, noticed, silent, gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from deepvm.core.units import format_seconds
from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import LOST, PREEMPTED, REFUSED, UNREADY, MachineRecord, Role
from deepvm.jobs.history.downtime import Downtime, cut
from deepvm.jobs.history.history import EventRow
from deepvm.reports.jobs.charts import Mark, Times, names_px

LEGEND = (
    ("waits", "asked for"),
    ("warms", "boots and loads"),
    ("idle", "ready, waits"),
    ("member", "trains"),
    ("keeps", "keeps versions"),
    ("noticed", "notice: saves, then goes"),
    ("silent", "silent"),
    ("taken", "taken back"),
    ("gone", "lost"),
    ("refused", "refused"),
    ("downtime", "no controller"),
)
_DOWN, _CROSS = "M-5 -4H5L0 5z", "M-4 -4L4 4M4 -4L-4 4"
_MAX_DRAWN = 1000
"""Machines that are drawn; the table has more."""
_ROW_HEIGHTS = ((16, 26), (48, 20), (_MAX_DRAWN, 16))
"""Pixels of a row, for up to so many machines."""


_TRAINS = (Job.RUNNING.value, Job.SAVING.value)


@dataclass(frozen=True)
class Trained:
    """When which machines trained, and when nobody controlled the job.

    ``runs``: (generation, from, to) of the times in which its trainers ran; ``members``: the
    machines of each.
    """

    runs: Sequence[tuple[int, float, float]] = ()
    members: Mapping[int, set[str]] = field(default_factory=dict)
    without: Sequence[Downtime] = ()

    @classmethod
    def of(
        cls, events: Sequence[EventRow], end_s: float, without: Sequence[Downtime] = ()
    ) -> Trained:
        """As the events of a job say."""
        runs, members = list[tuple[int, float, float]](), dict[int, set[str]]()
        generation, since_s = 0, None
        for event in events:
            now = int(event.facts.get("generation", generation))
            if event.kind == "started":
                members.setdefault(now, set()).add(str(event.facts["id"]))
            trains = event.state in _TRAINS
            if since_s is not None and (not trains or now > generation):
                runs.append((generation, since_s, event.at_s))
                since_s = None
            if trains and since_s is None:
                since_s = event.at_s
            generation = max(now, generation)
        if since_s is not None:
            runs.append((generation, since_s, end_s))
        return cls(runs, members, without)

    def split(self, machine: str, from_s: float, to_s: float) -> Iterator[tuple[str, float, float]]:
        """A time in which a machine was ready, in which it trained, waited, or was on its own."""
        at_s = from_s
        for generation, since_s, until_s in self.runs:
            since_s, until_s = max(since_s, at_s), min(until_s, to_s)
            if since_s < until_s and machine in self.members.get(generation, ()):
                yield from cut(
                    [("idle", at_s, since_s), ("member", since_s, until_s)], self.without
                )
                at_s = until_s
        yield from cut([("idle", at_s, to_s)], self.without)


@dataclass(frozen=True)
class Timeline:
    """A row for each machine; the newest, if there are very many. ``left_out``: the others."""

    machines: Sequence[MachineRecord]
    times: Times
    trained: Trained

    @property
    def drawn(self) -> Sequence[MachineRecord]:
        return self.machines[-_MAX_DRAWN:]

    @property
    def left_out(self) -> int:
        return len(self.machines) - len(self.drawn)

    @property
    def row_px(self) -> int:
        count = len(self.drawn)
        return next(height for limit, height in _ROW_HEIGHTS if count <= limit)

    @property
    def height(self) -> int:
        return self.row_px * len(self.drawn)

    @property
    def names(self) -> list[str]:
        return [_name(machine) for machine in self.drawn]

    @property
    def names_px(self) -> int:
        return names_px(self.names)

    @property
    def label(self) -> str:
        return f"{len(self.machines)} machines over time; the table below says the same."

    @property
    def keys(self) -> list[tuple[str, str]]:
        kinds = {kind for m in self.drawn for kind in kinds_of(m, self.times.end_s, self.trained)}
        return [key for key in LEGEND if key[0] in kinds]

    @property
    def marks(self) -> Iterator[Mark]:
        """What is drawn of the machines."""
        for row, machine in enumerate(self.drawn):
            tip = tip_of(machine, self.times, self.trained)
            middle = (row + 0.5) * self.row_px
            for kind, start_s, until_s in phases(machine, self.times.end_s, self.trained):
                height = self.row_px * _HEIGHTS.get(kind, _THICK)
                x, width = self.times.x(start_s), self.times.width(start_s, until_s)
                top = round(middle - height / 2, 2)
                yield Mark(f"bar {kind}", x, top, tip, width, round(height, 2))
            for kind, at_s, path in _marks(machine):
                yield Mark(kind, self.times.x(at_s), middle, tip, path=path)


def _name(machine: MachineRecord) -> str:
    if machine.role is Role.ANCHOR:
        return f"{machine.id} anchor"
    return machine.id


def kinds_of(machine: MachineRecord, now_s: float, trained: Trained) -> set[str]:
    """The styles that a machine is drawn in."""
    return {kind for kind, *_ in phases(machine, now_s, trained)} | {
        kind for kind, *_ in _marks(machine)
    }


def phases(
    machine: MachineRecord, now_s: float, trained: Trained
) -> Iterator[tuple[str, float, float]]:
    """What a machine did from when to when, as far as it is known."""
    end_s = now_s if machine.ended_s is None else machine.ended_s
    if machine.end_reason == REFUSED and machine.ended_s is None and machine.launched_s is None:
        end_s = machine.requested_s  # nobody knows how long the cloud took to say no
    last_s = end_s
    if machine.noticed_s is not None:
        last_s = min(machine.noticed_s, end_s)
    elif machine.silent_s is not None and is_silent(machine):
        last_s = min(machine.silent_s, end_s)
    launched_s = min(last_s if machine.launched_s is None else machine.launched_s, last_s)
    ready_s = min(last_s if machine.ready_s is None else machine.ready_s, last_s)
    starts = [
        ("waits", machine.requested_s),
        ("warms", launched_s),
        ("member", max(ready_s, launched_s)),
        ("noticed" if machine.noticed_s is not None else "silent", max(last_s, launched_s)),
    ]
    for (kind, start_s), (_, until_s) in zip(starts, [*starts[1:], ("", end_s)], strict=True):
        until_s = min(until_s, end_s)
        parts = [(kind, start_s, until_s)]
        if kind == "warms":
            parts = list(cut(parts, trained.without))
        elif kind == "member":
            keeps = machine.role is Role.ANCHOR
            parts = (
                [("keeps", start_s, until_s)]
                if keeps
                else list(trained.split(machine.id, start_s, until_s))
            )
        yield from ((name, since_s, to_s) for name, since_s, to_s in parts if to_s > since_s)


def is_silent(machine: MachineRecord) -> bool:
    """Whether it is not heard any more."""
    return machine.end_reason == LOST or machine.state is Machine.SUSPECT


def _marks(machine: MachineRecord) -> Iterator[tuple[str, float, str]]:
    """Shapes at a machine's end: style, time, path."""
    if machine.end_reason == REFUSED:
        yield "refused", machine.requested_s, _CROSS
    elif machine.ended_s is not None and machine.end_reason == PREEMPTED:
        yield "taken", machine.ended_s, _DOWN
    elif machine.end_reason in (LOST, UNREADY):
        yield "gone", machine.ended_s or machine.silent_s or machine.requested_s, _CROSS


_HEIGHTS = {"waits": 0.14, "warms": 0.42, "idle": 0.42, "silent": 0.42}
"""Shares of a row's height: what costs nothing yet is thin, what trains is thick, as all others are."""
_THICK = 0.72


def tip_of(machine: MachineRecord, times: Times, trained: Trained) -> str:
    """What a machine was, and when; a line for each fact."""
    pool, now_s = machine.pool, times.end_s
    lines = [f"{_name(machine)}: {pool.instance_type}, {pool.market}, {pool.zone}"]
    said = (
        ("asked for", machine.requested_s),
        ("launched", machine.launched_s),
        ("ready", machine.ready_s),
        ("first trained", machine.trained_s),
        ("notice", machine.noticed_s),
        ("silent", machine.silent_s if is_silent(machine) else None),
        ("ended", machine.ended_s),
    )
    lines += [f"{name} at {times.elapsed(at_s)}" for name, at_s in said if at_s is not None]
    *_, (kind, _, _) = [("waits", 0.0, 0.0), *phases(machine, now_s, trained)]
    lines.append(
        f"end: {machine.end_reason}" if machine.end_reason else f"now: {dict(LEGEND)[kind]}"
    )
    if machine.launched_s is not None:
        lived_s = (now_s if machine.ended_s is None else machine.ended_s) - machine.launched_s
        life = format_seconds(max(lived_s, 0.0), digits=3)
        lines.append(f"{life} at {pool.usd_per_hour:g} $/h: {machine.usd(now_s):.4f} $")
    return "\n".join(lines)
