"""The table of deadlines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deepvm.reports.simulation.traces import print_deadlines
from deepvm.simulator.traces.deadline_replay import FORESIGHT, DeadlineJob, DeadlineRow

JOB = DeadlineJob(work_s=7200.0, restart_s=300.0, price_ratio=0.33)


def test_the_bound_has_a_cost_alone(capsys: pytest.CaptureFixture[str]) -> None:
    row = DeadlineRow(
        trace=None,
        slack=0.5,
        policy="greedy",
        starts=3,
        missed=0,
        cost=0.4,
        cost_p95=0.5,
        on_demand=0.25,
        preemptions=1.0,
        took=0.9,
    )
    print_deadlines([row], JOB)
    out = capsys.readouterr().out
    assert "25.0%" in out and "lower bound" not in out
    print_deadlines([row, replace(row, policy=FORESIGHT)], JOB)
    out = capsys.readouterr().out
    assert f"{FORESIGHT}: the lower bound" in out
    assert [line.split()[-3:] for line in out.splitlines() if "foresight  " in line] == [["-"] * 3]
