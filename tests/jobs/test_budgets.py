"""Whole local jobs with deadlines, hourly budgets, more money after the end, and a history that
cannot be written.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.jobs.runs import Home, until

pytestmark = pytest.mark.slow  # whole jobs


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    yield found
    found.end()


@pytest.mark.parametrize("policy", ["greedy", "uniform-progress"])
def test_a_deadline_is_met_with_machines_on_demand(home: Home, policy: str) -> None:
    """Spot machines live for 2 s and go without a notice: on spot the job would hardly get
    anywhere.
    """
    budget = {"deadline": "60s", "deadline_policy": policy}
    inject = {"mttp": "2s", "missed": 1.0, "seed": 1}
    job = home.job(
        "late",
        "exec python own.py 400 0.05;",
        steps=400,
        budget=budget,
        inject=inject,
        save_policy="static:50",
    )
    began_s = time.monotonic()
    done = home.run("run", str(job), "-o", "json")
    assert done.returncode == 0 and time.monotonic() - began_s < 70, done
    found = home.document("jobs", "show", "late")
    assert found["state"] == "done" and found["steps"] == 400 and found["total_s"] < 60
    markets = [m["market"] for m in found["machines"]]
    # Uniform progress goes back to spot whenever it is ahead.
    assert "spot" in markets and "on-demand" in (
        markets if policy == "uniform-progress" else markets[-1:]
    )
    assert "machines are asked for on demand" in done.stderr
    bought = [m for m in found["machines"] if m["market"] == "on-demand"]
    assert {m["end_reason"] for m in bought} == {"released"}  # nothing on demand is taken back


def test_a_deadline_that_is_far_away_costs_nothing(home: Home) -> None:
    budget = {"deadline": "10min"}
    found = home.document(
        "run", str(home.job("early", "exec python own.py 100 0.02;", steps=100, budget=budget))
    )
    assert found["state"] == "done" and {m["market"] for m in found["machines"]} == {"spot"}


def test_a_deadline_without_steps_is_said_to_stop_only(home: Home) -> None:
    done = home.run(
        "run", str(home.job("stops", "exec python own.py 9999 0.02;", budget={"deadline": "6s"}))
    )
    assert done.returncode == 3, done
    assert "only stops the job in time" in done.stderr and "'steps: N'" in done.stderr
    assert "the deadline has come" in done.stderr and "jobs resume stops --deadline" in done.stderr


def test_more_money_lets_a_job_go_on(home: Home) -> None:
    job = home.job("poor", "exec python own.py 300 0.02;", budget={"total_usd": 0.0006})
    done = home.run("run", str(job))
    assert done.returncode == 3 and "jobs resume poor --total-usd 0.0" in done.stderr, done
    paid = home.document("jobs", "show", "poor")["cost_usd"]
    again = home.run("jobs", "resume", "poor", "--total-usd", f"{paid / 2:.6f}")
    assert again.returncode == 2 and "has cost" in again.stderr, again
    found = home.document("jobs", "resume", "poor", "--total-usd", "1")
    assert (found["state"], found["steps"], found["lost_steps"]) == ("done", 300, 0)
    assert found["saves"]["stop"] == 1 and found["cost_usd"] > paid


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"budget": {"usd_per_hour": 0.01}}, "buys 1 x g4dn.xlarge"),
        (
            {"budget": {"usd_per_hour": 0.45, "deadline": "1h"}, "steps": 9},
            "on demand, which the deadline may need",
        ),
    ],
)
def test_an_hourly_budget_that_buys_too_little(home: Home, more: dict[str, Any], said: str) -> None:
    done = home.run("run", str(home.job("cheap", "true;", **more)), "--dry-run")
    assert done.returncode == 2 and said in done.stderr and "budget.usd_per_hour" in done.stderr, (
        done
    )


def test_a_history_on_a_full_disk_ends_the_controller_and_not_the_training(home: Home) -> None:
    job = home.job("full", "exec python own.py 400 0.03;")
    process = home.start("run", str(job), program="support.jobs.impatient")
    until(lambda: (home.result / "starts-0").exists())
    history = home.jobs.parent / "history.db-wal"
    size = history.stat().st_size
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    home.run("jobs", "save", "full")  # an event to write down
    _, said = process.communicate(timeout=60)
    assert process.returncode == 4 and b"jobs resume full" in said and b"Traceback" not in said, (
        said
    )
    assert home.document("jobs", "orphans")["orphans"][0]["machine"] == "m1"  # it trains on
    found = home.document("jobs", "resume", "full")
    assert (found["state"], found["steps"], len(found["machines"])) == ("done", 400, 1)
    assert (home.result / "starts-0").read_text() == "0 "
    assert os.path.exists(history.with_name("history.db"))
