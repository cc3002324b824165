"""Replay of jobs with a deadline: against a loop over seconds, and never late."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.places import SHARED

from deepvm.core.preemption.deadlines import (
    SPOT,
    DeadlinePolicy,
    DeadlineProgress,
    Greedy,
    OnDemandOnly,
    UniformProgress,
)
from deepvm.errors import RequestError
from deepvm.simulator.traces.deadline_replay import FORESIGHT, DeadlineJob, replay, replay_traces
from deepvm.simulator.traces.trace import Trace, read_traces

REAL = SHARED / "data" / "spot-traces" / "availability" / "1-node"


def second_by_second(
    name: str, up: list[bool], gap: int, job: DeadlineJob, deadline: float
) -> tuple[float, float, int, int]:
    """(end, cost, preemptions): the rules once more, in words of one job and one second."""
    total, cycle = int(job.total_s), int(job.cycle_s)
    now = preemptions = 0
    on, starting, done, kept, paid = "wait", 0, 0, 0, 0.0
    while True:
        if now % gap == 0:
            tick = now // gap
            spot = tick < len(up) and up[tick]
            if on == "spot" and not spot:
                on, done, preemptions = "wait", kept, preemptions + 1
            spare = deadline - now - (total - kept) - job.restart_s
            # What the line of uniform progress leaves until the deadline
            far = (total - kept) / total * deadline
            early = deadline - now - far
            if name == "on-demand":
                wanted = "on-demand"
            elif on == "spot":
                wanted = "on-demand" if spare <= gap else "spot"
            elif spare <= gap + job.restart_s + cycle + job.backup_s:
                wanted = "on-demand"
            elif on == "on-demand":
                wanted = (
                    "spot" if name != "greedy" and spot and early >= job.restart_s else "on-demand"
                )
            elif spot:
                wanted = "spot"
            else:
                wanted = "on-demand" if name != "greedy" and early < 0 else "wait"
            if wanted != on:
                on, starting, done = wanted, int(job.restart_s), kept
        now += 1
        if on == "wait":
            continue
        paid += job.price_ratio if on == "spot" else 1.0
        if starting:
            starting -= 1
            continue
        done += 1
        if not cycle:
            kept = done
        elif done - job.backup_s >= 0 and (done - int(job.backup_s)) % cycle == 0:
            kept = max(kept, done - int(job.backup_s))
        if done == total:
            return float(now), paid / job.on_demand_s, preemptions


NAMES: dict[str, DeadlinePolicy] = {
    "greedy": Greedy(),
    "uniform-progress": UniformProgress(),
    "on-demand": OnDemandOnly(),
}
jobs = st.tuples(
    st.integers(100, 900),
    st.integers(0, 90),
    st.sampled_from([0, 10, 45, 200]),
    st.integers(0, 20),
    st.integers(0, 30),
).map(
    lambda v: DeadlineJob(
        float(v[0]),
        float(v[1]),
        float(v[2]),
        float(v[3] if v[2] else 0),
        float(v[4] if v[2] else 0),
        price_ratio=0.25,
    )
)
histories = st.lists(st.tuples(st.booleans(), st.integers(1, 12)), min_size=1, max_size=12).map(
    lambda runs: [up for up, count in runs for _ in range(count)]
)


@given(
    st.sampled_from(list(NAMES)),
    jobs,
    histories,
    st.integers(5, 60),
    st.integers(0, 1500),
    st.integers(0, 30),
)
def test_as_second_by_second_and_never_late(
    name: str, job: DeadlineJob, up: list[bool], gap: int, more: int, start: int
) -> None:
    """Every feasible deadline from no slack on, with restarts, lost work and saves."""
    deadline = job.restart_s + job.total_s + more
    starts = np.array([0, min(start, len(up) - 1)])
    deadlines = np.array([deadline, deadline + 100.0])
    found = replay(NAMES[name], np.array(up), float(gap), job, starts, deadlines)
    assert not found.late.any() and (found.took_s <= deadlines).all()
    for i, begin in enumerate(starts):
        expected = second_by_second(name, up[begin:], gap, job, deadlines[i])
        got = (found.took_s[i], found.cost[i], found.preemptions[i])
        assert got == pytest.approx(expected)
    paid = job.price_ratio * found.spot_s + found.on_demand_s
    assert found.cost == pytest.approx(paid / job.on_demand_s)


def test_a_deadline_that_on_demand_cannot_meet_is_late_and_said_so() -> None:
    job = DeadlineJob(1000.0, 100.0)
    found = replay(
        Greedy(), np.zeros(9, dtype=bool), 10.0, job, np.array([0, 0]), np.array([1099.0, 1100.0])
    )
    assert found.took_s.tolist() == [1100.0, 1100.0] and found.late.tolist() == [True, False]


def test_a_trace_behind_another_does_not_lend_its_machines() -> None:
    """The second trace is all spot; a job at the end of the first must not run into it."""
    up = np.array([True] * 4 + [True] * 200)
    job, deadline = DeadlineJob(100.0, 0.0), np.array([1000.0])
    one = replay(Greedy(), up[:4], 10.0, job, np.array([0]), deadline)
    both = replay(Greedy(), up, 10.0, job, np.array([0]), deadline, np.array([4]))
    assert one.cost[0] == both.cost[0] and one.on_demand_s[0] == 60.0


def pool(up: str, gap: float = 600.0) -> Trace:
    return Trace(Path(up[:6]), gap, np.array([int(c) for c in up]))


def test_rows_and_their_means() -> None:
    traces = [pool("110" * 40), pool("10" * 60, 300.0), pool("1" * 3)]
    notes: list[str] = []
    job = DeadlineJob(4 * 3600.0, price_ratio=0.3)
    rows = replay_traces(
        traces,
        job,
        [0.2, 1.0],
        ["greedy", "on-demand"],
        starts=7,
        foresight=True,
        note=notes.append,
    )
    assert len(notes) == 1 and "is left out: 0.5 h, the longest deadline is 8.0 h" in notes[0]
    assert len(rows) == 3 * 2 * 3
    for mean in (r for r in rows if r.trace is None):
        own = [r for r in rows if r.trace and (r.slack, r.policy) == (mean.slack, mean.policy)]
        assert mean.cost == pytest.approx(sum(r.cost for r in own) / 2) and mean.starts == sum(
            r.starts for r in own
        )
    by = {(r.trace, r.slack, r.policy): r.cost for r in rows}
    for trace, slack, policy in by:
        assert by[trace, slack, FORESIGHT] <= by[trace, slack, policy] + 1e-9
        if policy == "on-demand":
            assert by[trace, slack, policy] == pytest.approx(1.0)


def test_what_a_row_says_of_its_starts() -> None:
    """One trace, three starts, against each of them alone."""
    trace, job = (
        pool("1" * 6 + "0" * 20 + "110" * 20),
        DeadlineJob(2 * 3600.0, 60.0, price_ratio=0.25),
    )
    row = replay_traces([trace], job, [0.5], ["uniform-progress"], starts=3)[0]
    up = trace.counts > 0
    begin = np.linspace(0, len(up) - 18, 3).astype(np.int64)
    alone = [
        replay(UniformProgress(), up, 600.0, job, begin[[i]], np.array([3 * 3600.0]))
        for i in range(3)
    ]
    costs = [float(r.cost[0]) for r in alone]
    assert len(set(costs)) == 3 and row.starts == 3
    assert row.cost == pytest.approx(sum(costs) / 3) and row.cost_p95 == pytest.approx(
        np.percentile(costs, 95)
    )
    shares = [float(r.on_demand_s[0] / (r.spot_s + r.on_demand_s)[0]) for r in alone]
    assert row.on_demand == pytest.approx(sum(shares) / 3) and 0 < row.on_demand < 1
    assert row.preemptions == pytest.approx(sum(int(r.preemptions[0]) for r in alone) / 3)
    assert row.took == pytest.approx(sum(float(r.took_s[0]) for r in alone) / 3 / (3 * 3600))


@dataclass(frozen=True)
class Watched(DeadlinePolicy):
    """Notes whether a policy leaves a spot VM that is there."""

    policy: DeadlinePolicy
    left: list[bool]

    def choose(self, standing: DeadlineProgress) -> Any:
        chosen = self.policy.choose(standing)
        self.left.append(bool(np.any((standing.on == SPOT) & standing.spot_up & (chosen != SPOT))))
        return chosen

    def stay_s(self, standing: DeadlineProgress) -> Any:
        return self.policy.stay_s(standing)


@given(
    st.sampled_from(["greedy", "uniform-progress"]),
    jobs,
    histories,
    st.integers(5, 60),
    st.integers(0, 1500),
)
def test_a_spot_machine_is_never_left_so_no_last_save_is_missing(
    name: str, job: DeadlineJob, up: list[bool], gap: int, more: int
) -> None:
    """Whoever starts on spot has the time for a version there, and each version gives that time
    anew.
    """
    watched = Watched(NAMES[name], [])
    replay(
        watched,
        np.array(up),
        float(gap),
        job,
        np.array([0]),
        np.array([job.restart_s + job.total_s + more]),
    )
    assert watched.left and not any(watched.left)


def test_the_picture_of_deadlines() -> None:
    """A line for each policy at its means, a dot for each trace, and the two levels between which
    costs lie.
    """
    from deepvm.reports.simulation.traces import deadlines_figure

    traces = [pool("110" * 40), pool("10" * 60, 300.0)]
    job = DeadlineJob(4 * 3600.0, price_ratio=0.3)
    rows = replay_traces(
        traces, job, [0.2, 1.0], ["greedy", "uniform-progress"], starts=5, foresight=True
    )
    figure = deadlines_figure(rows, job)
    (axes,) = figure.axes
    assert [t.get_text() for t in axes.get_xticklabels()] == ["0.2", "1"]
    assert axes.get_xlabel().startswith("slack") and axes.get_ylabel().startswith(
        "cost over on-demand"
    )
    policies = ["greedy", "uniform-progress", FORESIGHT]
    lines = {str(line.get_label()): line for line in axes.get_lines() if len(line.get_xdata()) == 2}
    assert set(policies) <= set(lines)
    (legend,) = figure.legends
    assert [t.get_text() for t in legend.get_texts()] == policies
    for name in policies:
        means = [r.cost for r in rows if r.policy == name and r.trace is None]
        assert list(lines[name].get_ydata()) == pytest.approx(means)
    dots = [line for line in axes.get_lines() if line.get_linestyle() == "None"]
    assert len(dots) == 3
    for name, line in zip(policies, dots, strict=True):
        own = [(round(float(x)), float(y)) for x, y in zip(*line.get_data(), strict=True)]
        assert own == [
            ([0.2, 1.0].index(r.slack), r.cost) for r in rows if r.policy == name and r.trace
        ]
    flat = [
        line for line in axes.get_lines() if line.get_label() not in policies and line not in dots
    ]
    levels = [line.get_ydata()[0] for line in flat]
    assert levels == [1.0, 0.3] and {t.get_text() for t in axes.texts} == {
        "on-demand alone",
        "spot without a preemption",
    }
    assert "2 traces" in axes.get_title() and "deadlines missed: 0" in axes.get_title()
    top = axes.get_ylim()[1]
    assert all(float(np.max(line.get_ydata())) <= top for line in axes.get_lines())


def test_how_far_the_bound_is() -> None:
    told: list[tuple[int, int]] = []
    traces = [pool("110" * 40), pool("10" * 60, 300.0)]
    replay_traces(
        traces,
        DeadlineJob(4 * 3600.0),
        [0.2, 1.0],
        ["greedy"],
        starts=5,
        foresight=True,
        progress=lambda count, total: told.append((count, total)),
    )
    assert sum(count for count, _ in told) == 20 and {total for _, total in told} == {20}


def test_copies_of_nothing_are_refused_with_the_next_step() -> None:
    job = DeadlineJob(4 * 3600.0, 300.0)
    with pytest.raises(RequestError, match=r"slack: 0.01 \(expected from 0.0209"):
        replay_traces([pool("10" * 60)], job, [0.01], ["greedy"])
    with pytest.raises(RequestError, match="work.*less: no trace is as long"):
        replay_traces([pool("10")], job, [0.1], ["greedy"])
    with pytest.raises(RequestError, match="starts"):
        replay_traces([pool("10" * 60)], job, [0.1], ["greedy"], starts=0)
    with pytest.raises(RequestError, match="nodes"):
        replay_traces([pool("10" * 60)], job, [0.1], ["greedy"], nodes=0)
    for wrong in (
        {"work_s": 0.0},
        {"restart_s": -1.0},
        {"price_ratio": 1.5},
        {"save_s": 3.0},
        {"work_s": math.nan},
    ):
        with pytest.raises(RequestError):
            DeadlineJob(**({"work_s": 10.0} | wrong))


@pytest.mark.skipif(not REAL.exists(), reason="the recorded traces are not here")
def test_on_recorded_traces_no_deadline_is_missed() -> None:
    traces = read_traces([REAL / "aws-10-26-2022"])
    rows = replay_traces(
        traces,
        DeadlineJob(48 * 3600.0),
        [0.05, 0.2, 1.0],
        ["greedy", "uniform-progress"],
        starts=20,
    )
    assert all(r.missed == 0 for r in rows)
    means = {(r.slack, r.policy): r.cost for r in rows if r.trace is None}
    assert means[0.05, "uniform-progress"] < means[0.05, "greedy"] < 1.0
    assert means[1.0, "greedy"] < means[0.2, "greedy"] < means[0.05, "greedy"]


@pytest.mark.slow
def test_the_command_prints_rows_for_programs_and_people(tmp_path: Path) -> None:
    import subprocess
    import sys

    file = tmp_path / "pool.json"
    file.write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": [1, 1, 0] * 80}))

    def deepvm(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "deepvm.cli.main", "traces", "deadline", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    about = [str(file), "--work", "6h", "--slack", "0.1,1", "--starts", "5"]
    answer = deepvm(*about, "-o", "json", "--plot", str(tmp_path / "cost.png"))
    document = json.loads(answer.stdout)
    assert answer.returncode == 0 and document["schema_version"] == "deepvm.traces-deadline/1"
    assert [(r["slack"], r["policy"], r["missed"]) for r in document["means"]] == [
        (0.1, "greedy", 0),
        (0.1, "uniform-progress", 0),
        (1.0, "greedy", 0),
        (1.0, "uniform-progress", 0),
    ]
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")
    table = deepvm(*about).stdout
    assert table.startswith("slack  policy") and "Means over 1 trace of a job of 6 h" in table
    refused = deepvm(str(file), "--work", "6h", "--slack", "0.001")
    assert refused.returncode == 2 and "--slack: 0.001 (expected from 0.0139" in refused.stderr
