"""The world on the disk: whatever has happened, another controller reads the same."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from support.effort import THOROUGH
from support.jobs.simulation import Faults, Simulation

from deepvm.core.preemption.savepolicy import parse_policy
from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.reconcile import react
from deepvm.jobs.decisions.world import JobLimits, JobState, Pool
from deepvm.jobs.decisions.world_document import from_document, from_row, to_document, to_row
from deepvm.jobs.history.history import History


def through_json(found: Any) -> Any:
    return json.loads(json.dumps(found))


def read_back(world: JobState) -> JobState:
    rows = {key: from_row(through_json(to_row(machine))) for key, machine in world.machines.items()}
    return from_document(through_json(to_document(world)), rows)


class Written(Simulation):
    """Reads the world back after each event."""

    seen = 0

    def check(self) -> None:
        super().check()
        assert read_back(self.world) == self.world
        self.seen += 1


def test_any_world_is_read_back() -> None:
    for seed in range(6 if THOROUGH else 3):
        faults = Faults(notices=2, losses=1, cuts=1, refusals=0.2, lost_replies=0.2)
        simulation = Written(
            random.Random(seed), JobLimits(1, 3, policy=parse_policy("static:7")), faults
        )
        simulation.run()
        assert simulation.seen > 100


def test_the_history_has_it_too() -> None:
    world = JobState(
        JobLimits(2, 2, anchor=(Pool("m7g.large", "z", "on-demand", 0.1),), anchors=1),
        0.0,
        pools=(Pool("a", "z", "spot", 1.0),),
    )
    with History(sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)) as history:
        assert history.add_job("job", 0.0, Path("/x"), {}, world)
        assert not history.add_job("job", 0.0, Path("/x"), {}, world)
        events: tuple[d.Event, ...] = (
            d.Tick(),
            d.Launched("m1", 1.0),
            d.Heartbeat("m2", warm=True),
        )
        for event in events:
            after, _ = react(world, event, 1.0)
            history.commit("job", world, after, [])
            world = after
            assert history.world("job") == world
