"""Every pair of a state and an event is decided, and the tables hold together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
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
] = [(MACHINES, Machine, MachineEvent, machine_after), (JOBS, Job, JobEvent, job_after)]


@pytest.mark.parametrize(("table", "states", "events", "after"), TABLES)
def test_every_state_and_event_has_a_place(
    table: Mapping[Any, Mapping[Any, Any]],
    states: type[Enum],
    events: type[Enum],
    after: Callable[[Any, Any], Any],
) -> None:
    assert set(table) == set(states)
    assert {event for row in table.values() for event in row} == set(events)


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
