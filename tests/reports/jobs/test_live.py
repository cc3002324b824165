"""The live table of a job: what matters at a glance, in any width.

Elsewhere a line for each event.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.jobs import worlds
from support.jobs.runs import until

from deepvm.core.preemption.savepolicy import SaveFacts
from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import JobLimits, JobState, Reason, Role
from deepvm.jobs.history.history import EventRow
from deepvm.reports.jobs import live
from deepvm.reports.jobs.live import LiveView, event_line, live_lines

S = worlds.START_S


def world() -> JobState:
    base = worlds.one_machine(over=False).world
    machines = [
        worlds.machine(
            1, 0, launched_s=S + 10, ended_s=S + 1000, end_reason="preempted", state=Machine.ENDED
        ),
        worlds.machine(
            2, 0, launched_s=S + 20, noticed_s=S + 3550, taken_s=S + 3690, state=Machine.NOTICED
        ),
        worlds.machine(3, 3000, launched_s=S + 3010, state=Machine.MEMBER),
        worlds.machine(4, 3590, state=Machine.INTENT),
        worlds.machine(5, 3000, state=Machine.FAILED, end_reason="refused"),
    ]
    return replace(
        base,
        terms=replace(base.terms, steps=1000, total_usd=5.0),
        now_s=S + 3600,
        job=Job.RUNNING,
        machines={m.id: m for m in machines},
        generation=3,
        members=("m2", "m3"),
        formed=True,
        reached=250,
        version=240,
        facts=SaveFacts(step_s=0.5),
        lost_steps=12,
        saves={Reason.EMERGENCY: 1, Reason.INSURANCE: 4},
    )


def shown(width: int, found: JobState | None = None) -> list[str]:
    return list(live_lines("resnet-7", found or world(), ["12:00:00 m1 was preempted"], width))


def test_at_a_glance() -> None:
    assert shown(80) == [
        "resnet-7: running, step 250 of 1000 (25%), 2 steps/s, 6.2 min left",
        "$0.23 of $5 so far, $0.32/h now, $0.26 expected, checkpoint of step 240 is safe,",
        "  5 saves, 1 preemption, 12 steps lost",
        "machine  type         state               alive       $",
        "m2       g4dn.xlarge  goes in 90 s       60 min  0.1569",
        "m3       g4dn.xlarge  training          9.8 min  0.0259",
        "m4       g4dn.xlarge  asked for                  0.0000",
        "m5       g4dn.xlarge  refused                    0.0000",
        "m1       g4dn.xlarge  ended: preempted   16 min  0.0434",
        "12:00:00 m1 was preempted",
    ]


def test_a_machine_trains_or_waits() -> None:
    machine = worlds.machine(3, 3000, launched_s=S + 3010, state=Machine.MEMBER)
    trains = replace(world(), machines={"m3": machine}, members=("m3",))
    for changes, said in [
        ({}, "training"),
        ({"job": Job.SAVING}, "training"),
        ({"job": Job.FORMING}, "waiting"),  # for the trainers of others
        ({"formed": False, "job": Job.FORMING}, "waiting"),  # for other machines
        ({"members": ("m2",)}, "waiting"),  # for a version behind which it may join
        (
            {"machines": {"m3": replace(machine, role=Role.ANCHOR)}, "members": ()},
            "keeping checkpoints",
        ),
        ({"machines": {"m3": replace(machine, state=Machine.SUSPECT)}}, "silent"),
        ({"machines": {"m3": replace(machine, state=Machine.WARMING)}}, "loading"),
    ]:
        line = next(
            line for line in shown(80, found=replace(trains, **changes)) if line.startswith("m3")
        )
        assert f"  {said}  " in line, line


def test_narrow_terminals() -> None:
    for width in [40, 60, 80, 100, 200]:
        lines = shown(width)
        assert all(len(line) <= width for line in lines), lines
        table = next(line for line in lines if line.startswith("machine"))
        assert ("type" in table) is (width >= 60) and table.endswith("$")


def test_without_a_known_end_nothing_is_foretold() -> None:
    text = "\n".join(shown(80, replace(world(), terms=JobLimits(4, 4))))
    assert "left" not in text and "expected" not in text and "of " not in text.splitlines()[0]
    over = replace(world(), job=Job.DONE)
    assert "left" not in "\n".join(shown(80, over))


def test_hundreds_of_machines() -> None:
    found = replace(worlds.many(260).world, job=Job.RUNNING)
    lines = shown(80, found)
    assert len(lines) < 24 and any("machines more, 0 alive in all" in line for line in lines)


def test_a_line_for_each_event_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    with LiveView("resnet-7", world, out) as view:
        view.on_event(EventRow(S, "unsaved", "running", {"why": "\x1b[2Jno \x07room"}))
        view.on_event(
            EventRow(S, "started", "running", {"id": "m2", "version": None, "generation": 1})
        )
    (line,) = out.getvalue().splitlines()
    assert line.endswith("no checkpoint was saved: no \u2407room")


def test_checkpoints_of_the_save_policy_do_not_hide_what_is_printed() -> None:
    """One line in 30 s; those for a reason of their own have one each."""
    out = io.StringIO()
    with LiveView("resnet-7", world, out) as view:
        for step in range(61):
            facts = {"version": step, "reason": "insurance"}
            view.on_event(EventRow(S + step, "safe", "running", facts))
        for step in (61, 62):
            facts = {"version": step, "reason": "emergency"}
            view.on_event(EventRow(S + step, "safe", "running", facts))
    steps = [int(line.split(" is safe")[0].split()[-1]) for line in out.getvalue().splitlines()]
    assert steps == [0, 30, 60, 61, 62]


def test_the_first_process_is_shown_or_all_are() -> None:
    members = world().members
    out = io.StringIO()
    with LiveView("resnet-7", world, out) as view:
        for machine in members[:2]:
            for rank in (0, 1):
                view.on_line(machine, rank, f"\x1b[31mloss {rank}\x1b[0m")
        view.on_line(members[1], 1, "all", all_ranks=True)
    first, second = members[:2]
    assert out.getvalue() == f"{first}/0 | loss 0\n{second}/1 | all\n"


def test_setup_is_shown_before_a_generation_forms() -> None:
    found = replace(world(), members=())
    first = next(m.id for m in found.trained)
    out = io.StringIO()
    with LiveView("resnet-7", lambda: found, out) as view:
        view.on_line(first, 0, "setup: pip")
        view.on_line("m999", 0, "setup: pip")
    assert out.getvalue() == f"{first}/0 | setup: pip\n"


class Stuck(io.StringIO):
    """A terminal whose user has stopped it."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()

    def write(self, text: str) -> int:
        self.goes_on.wait(20)
        return super().write(text)


def test_a_reader_that_stops_blocks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats are answered by the thread that hands lines over."""
    monkeypatch.setattr(live, "_MAX_WAITING", 5)
    out, machine = Stuck(), world().members[0]
    with LiveView("resnet-7", world, out) as view:
        for number in range(50):
            view.on_line(machine, 0, str(number))
        out.goes_on.set()
        until(lambda: view._lines.empty(), 10)
        view.on_line(machine, 0, "the last")
    lines = out.getvalue().splitlines()
    assert lines[-1] == f"{machine}/0 | the last" and 3 < len(lines) < 12
    missing = [line for line in lines if "lines are not shown" in line]
    counts = [int(line.split()[0][1:]) for line in missing]
    assert counts and sum(counts) + len(lines) - len(missing) == 51


def test_a_closed_terminal_ends_no_job() -> None:
    out = io.StringIO()
    with LiveView("resnet-7", world, out) as view:
        out.close()
        view.on_line(world().members[0], 0, "nobody reads it")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with LiveView("resnet-7", world, out) as view:
        view.on_event(EventRow(S, "savenow", "running", {}))
        view.on_line(world().members[0], 0, "[red]loss 1")
    assert f"{world().members[0]}/0 | [red]loss 1" in out.getvalue()
    assert "goes in 90 s" in out.getvalue() and "a checkpoint was requested" in out.getvalue()


def _event_classes(union: Any) -> Iterator[type]:
    for one in get_args(union):
        yield from _event_classes(one) if get_args(one) else [one]


NUMBERS = st.floats(0, 1e6, allow_nan=False)
INJECTED = st.builds(d.Injected, mttp_s=NUMBERS) | st.builds(
    d.Injected, mttp_s=st.none(), lives_s=st.lists(NUMBERS, min_size=1).map(tuple)
)
ROWS = {float: NUMBERS, str: st.text("abc m", max_size=9), d.Injected: INJECTED}


@pytest.mark.parametrize("kind", list(_event_classes(d.Event)), ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=10)
def test_every_event_has_its_line(kind: type, data: st.DataObject) -> None:
    """A sentence that fails would hide a whole report."""
    for one, strategy in ROWS.items():
        st.register_type_strategy(one, strategy)
    facts = json.loads(
        json.dumps(
            vars(data.draw(st.from_type(kind))),
            default=lambda one: getattr(one, "value", None) or list(one),
        )
    )
    assert "\n" not in event_line(EventRow(0.0, kind.__name__.lower(), "up", facts))
