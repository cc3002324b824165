"""What heads cost is part of the bill, of its causes and of the budget, whatever the job has cost
besides.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.jobs import worlds

from deepvm.jobs.decisions.reconcile import react
from deepvm.jobs.decisions.states import Job
from deepvm.jobs.decisions.world import Head, JobLimits, JobState
from deepvm.jobs.decisions.world_document import from_document, to_document
from deepvm.jobs.history.job_report import final_document

HEADS = (
    Head("head-1", 0.36, worlds.START_S, worlds.START_S + 100),
    Head("head-2", 0.36, worlds.START_S + 150),
)


def test_they_are_in_the_final_document() -> None:
    job = worlds.many(20)
    world = replace(job.world, heads=HEADS)
    lived_s = 100 + world.now_s - HEADS[1].launched_s
    found = final_document("resnet-7", job.row.created_s, world, job.events, {"g4dn.xlarge": 0.526})
    assert found["head_usd"] == pytest.approx(0.0001 * lived_s)
    assert found["cost_usd"] == pytest.approx(job.document["cost_usd"] + found["head_usd"])
    assert sum(found["spent_usd"].values()) == pytest.approx(found["cost_usd"])
    assert found["on_demand_cost_usd"] == pytest.approx(
        job.document["on_demand_cost_usd"] + found["head_usd"]
    )
    assert found["machines"] == job.document["machines"] and job.document["head_usd"] == 0


def test_a_controller_that_is_started_again_knows_them() -> None:
    world = replace(worlds.one_machine().world, heads=HEADS)
    assert from_document(to_document(world), world.machines).heads == HEADS
    older = {key: value for key, value in to_document(world).items() if key != "heads"}
    assert from_document(older, world.machines).heads == ()


def test_a_budget_ends_a_job_that_only_its_head_costs_something() -> None:
    terms = JobLimits(1, 1, total_usd=0.05)
    world = JobState(
        terms, worlds.START_S, pools=(worlds.POOL,), heads=(Head("head-1", 0.36, worlds.START_S),)
    )
    assert world.usd_per_second == pytest.approx(0.0001)
    early, _ = react(world, [], worlds.START_S + 100)
    assert not early.ending
    late, _ = react(world, [], worlds.START_S + 499.9)
    assert late.job is Job.STOPPED
    assert late.ending.startswith("the budget of $0.05 does not last for another checkpoint and")
