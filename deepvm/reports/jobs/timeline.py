"""The machines of a job over time: asked for, loading, waiting, training, noticed, silent, gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from deepvm.core.units import format_seconds
from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import LOST, PREEMPTED, REFUSED, UNREADY, MachineRecord, Role
from deepvm.jobs.history.downtime import Downtime, cut
from deepvm.jobs.history.history import EventRow
from deepvm.reports.jobs.charts import (
    AXIS_PX,
    Times,
    legend,
    names_beside,
    percent,
    plot,
    shape,
    time_axis,
)
from deepvm.reports.markup import Html, joined, tag
from deepvm.reports.terminal import visible

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
_MOST = 1000
"""Machines that are drawn; the table has more."""


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


def timeline(machines: Sequence[MachineRecord], times: Times, trained: Trained) -> Html:
    """The picture with its legend; the newest machines, if there are very many."""
    if not machines:
        return tag("p", "No machine has been asked for yet.")
    left_out, drawn = machines[:-_MOST], machines[-_MOST:]
    height = 26 if len(drawn) <= 16 else 20 if len(drawn) <= 48 else 16
    names = [_name(m) for m in drawn]
    letters = max(map(len, names))
    total = height * len(drawn)
    rows = [
        part
        for place, m in enumerate(drawn)
        for part in _Bar(m, times, trained, place * height, height).parts()
    ]
    texts = [(place * height + height / 2 + 4, name) for place, name in enumerate(names)]
    picture = tag(
        "svg",
        *time_axis(times, labels_y=None, height=total),
        *rows,
        class_="area",
        height=total,
        aria_hidden="true",
    )
    top = tag(
        "svg",
        *time_axis(times, labels_y=15, height=0),
        class_="area",
        height=AXIS_PX,
        aria_hidden="true",
    )
    head = tag("div", names_beside([], AXIS_PX, letters, right=False), top, class_="plot axis-row")
    label = f"{len(machines)} machines over time; the table below says the same."
    body = plot(label, names_beside(texts, total, letters, right=False), picture)
    more = (
        [tag("p", f"The first {len(left_out)} machines are in the table only.")] if left_out else []
    )
    kinds = {kind for m in drawn for kind in kinds_of(m, times.end_s, trained)}
    shown = [part for part in LEGEND if part[0] in kinds]
    return joined(
        *more,
        legend(shown),
        tag("div", head, body, class_="tall", role="region", tabindex=0, aria_label=label),
    )


def _name(machine: MachineRecord) -> str:
    return f"{machine.id} anchor" if machine.role is Role.ANCHOR else machine.id


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


@dataclass(frozen=True)
class _Bar:
    machine: MachineRecord
    times: Times
    trained: Trained
    top: float
    height: float

    def parts(self) -> Iterator[Html]:
        """What is drawn of a machine."""
        tip = tip_of(self.machine, self.times, self.trained)
        middle = self.top + self.height / 2
        for kind, start_s, until_s in phases(self.machine, self.times.end_s, self.trained):
            high = self.height * _HEIGHTS.get(kind, _THICK)
            width = percent(self.times.share(until_s) - self.times.share(start_s))
            place = {
                "x": self.times.place(start_s),
                "y": f"{middle - high / 2:.4g}",
                "width": width,
            }
            yield tag("rect", class_=f"bar {kind}", **place, height=f"{high:.3g}", data_tip=tip)
        for kind, at_s, path in _marks(self.machine):
            yield shape(f"mark {kind}", self.times.place(at_s), middle, path, tip)


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
    return visible("\n".join(lines))
