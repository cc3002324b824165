"""Every pair of a state and an event is decided, and the tables hold together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from itertools import product
from typing import Any

import pytest

from deepvm.jobs.decisions.states import (
    JOBS,
    MACHINES,
    Job,
    JobEvent,
    Machine,
    MachineEvent,
    job_after,
    machine_after,
)

TABLES: list[
    tuple[Mapping[Any, Mapping[Any, Any]], type[Enum], type[Enum], Callable[[Any, Any], Any]]
] = [
    (MACHINES, Machine, MachineEvent, machine_after),
    (JOBS, Job, JobEvent, job_after),
]

# A row is a state, a column an event; a dot: it stays as it is.
MACHINE_TABLE = """
          launched refused absent beat    warm   notice  silent  overdue   release   gone
intent    booting  failed  failed warming member noticed .       releasing releasing ended
booting   .        .       ended  warming member noticed .       releasing releasing ended
warming   .        .       ended  .       member noticed suspect releasing releasing ended
member    .        .       ended  .       .      noticed suspect .         releasing ended
noticed   .        .       ended  .       .      .       .       .         releasing ended
suspect   .        .       ended  warming member noticed .       lost      releasing ended
releasing .        .       ended  .       .      .       .       .         .         ended
lost      .        .       ended  .       .      .       .       .         .         ended
ended     .        .       .      .       .      .       .       .         .         .
failed    .        .       .      .       .      .       .       .         .         .
"""
JOB_TABLE = """
          form     started  save     go-on    broken   trained  crashed  stop
pending   forming  .        .        .        .        .        failed   stopped
forming   forming  running  .        .        .        done     failed   stopped
running   forming  .        saving   .        forming  done     failed   stopped
saving    forming  .        .        running  forming  done     failed   stopped
done      .        .        .        .        .        .        .        .
failed    .        .        .        .        .        .        .        .
stopped   .        .        .        .        .        .        .        .
"""


@pytest.mark.parametrize(
    ("text", "states", "events", "after"),
    [(MACHINE_TABLE, Machine, MachineEvent, machine_after), (JOB_TABLE, Job, JobEvent, job_after)],
)
def test_every_pair(
    text: str, states: type[Enum], events: type[Enum], after: Callable[[Any, Any], Any]
) -> None:
    head, *rows = (line.split() for line in text.strip("\n").splitlines())
    expected = {
        (states(state), events(event)): states(state if cell == "." else cell)
        for state, *cells in rows
        for event, cell in zip(head, cells, strict=True)
    }
    assert set(expected) == set(product(states, events))
    assert {pair: after(*pair) for pair in expected} == expected


@pytest.mark.parametrize(("table", "states", "events", "after"), TABLES)
def test_every_state_can_be_reached(
    table: Mapping[Any, Mapping[Any, Any]],
    states: type[Enum],
    events: type[Enum],
    after: Callable[[Any, Any], Any],
) -> None:
    seen, left = set(), [next(iter(states))]
    while left:
        state = left.pop()
        if state not in seen:
            seen.add(state)
            left += [after(state, event) for event in events]
    assert seen == set(states)


def test_what_is_over_stays_so() -> None:
    assert all(machine_after(s, e) is s for s in Machine if s.over for e in MachineEvent)
    assert all(job_after(s, e) is s for s in Job if s.over for e in JobEvent)


def test_every_machine_can_be_released_and_ends() -> None:
    for state in [s for s in Machine if not s.over]:
        asked = machine_after(state, MachineEvent.RELEASE)
        assert asked in (Machine.RELEASING, Machine.LOST)
        assert machine_after(asked, MachineEvent.GONE) is Machine.ENDED
        assert machine_after(state, MachineEvent.GONE) is Machine.ENDED


def test_what_may_cost_is_given_up_only_to_end() -> None:
    """From a state with a bill there is no way to one without but by the word of the cloud."""
    for state in [s for s in Machine if s.costs]:
        for event in MachineEvent:
            if not machine_after(state, event).costs:
                assert event in (MachineEvent.GONE, MachineEvent.ABSENT)
                assert machine_after(state, event) is Machine.ENDED
