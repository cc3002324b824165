"""``sweep`` with a job: what is drawn, and what is simulated."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from support.command import Run

ASK = ["sweep", "--pw", "1:3:1", "--catalog", "paper", "--policy", "deepvm"]
WORK = ["--work", "100", "--mttp", "12h"]
DOUBTFUL = ["--work", "4", "--mttp", "40min"]
"""A short job on machines that go soon: the closed form does not hold."""


def test_with_a_job_the_picture_shows_time_and_bill(run: Run, tmp_path: Path) -> None:
    assert run(*ASK, *WORK, "--plot", tmp_path / "job.svg")[0] == 0
    assert run(*ASK, "--plot", tmp_path / "figure7.svg")[0] == 0
    texts = [(tmp_path / f"{name}.svg").read_text() for name in ("job", "figure7")]
    assert (
        "expected time (h)" in texts[0]
        and "expected bill ($)" in texts[0]
        and "normalised" not in texts[0]
    )
    assert "normalised performance" in texts[1] and "expected" not in texts[1]


def test_rows_are_simulated(run: Run) -> None:
    closed = json.loads(run(*ASK, *WORK, "-o", "json")[1])["rows"]
    code, out, _ = run(*ASK, *WORK, "--simulate", "200", "-o", "json")
    rows = json.loads(out)["rows"]
    assert code == 0
    for one, other in zip(closed, rows, strict=True):
        assert "runs" not in one and other["runs"] == 200
        assert other["makespan_s"] == pytest.approx(one["makespan_s"], rel=0.02)
        assert other["makespan_p5_s"] < other["makespan_p50_s"] < other["makespan_p95_s"]
        assert (
            other["total_cost_p5_usd"] < other["total_cost_p50_usd"] < other["total_cost_p95_usd"]
        )
    text = run(*ASK, *WORK, "--simulate", "200", "-o", "csv")[1]
    assert [float(r["makespan_p95_s"]) for r in csv.DictReader(io.StringIO(text))] == [
        r["makespan_p95_s"] for r in rows
    ]


def test_the_table_has_the_95_percent(run: Run) -> None:
    head = run(*ASK, *WORK, "--simulate", "50")[1].splitlines()[0]
    assert head.endswith("expected time  time 95 %  expected cost  cost 95 %")
    assert "95 %" not in run(*ASK, *WORK)[1].splitlines()[0]


def test_where_the_closed_form_fails_simulation_is_what_is_advised(run: Run) -> None:
    assert "--simulate 400" in run(*ASK, *DOUBTFUL)[2]
    assert "--simulate" not in run(*ASK, *DOUBTFUL, "--simulate", "50")[2]


def test_rows_that_break_a_limit_when_simulated_are_named(run: Run, tmp_path: Path) -> None:
    """By the closed form it takes 15 210 s, simulated 15 321 s."""
    job = tmp_path / "job.yaml"
    job.write_text(
        "steps: 4000\nstep_s: [2.0, 2.2]\nsave_s: [2, 3]\nbackup_s: [10, 14]\nallocation_s: [60,"
        " 200]\npreparation_s: [143, 183]\ngrace_s: 0\nmttp_s: 900\n"
    )
    ask = ["sweep", "--pw", "1", *ASK[3:], "--job", job, "--mttp", "15min", "--deadline", "15260s"]
    assert "when simulated" not in run(*ask)[2]
    code, out, err = run(*ask, "--simulate", "400", "-o", "json")
    assert code == 0 and json.loads(out)["rows"][0]["makespan_s"] > 15_260
    assert "takes 4.256 h when simulated, more than the deadline" in err


def test_wrong_numbers_of_runs(run: Run) -> None:
    for runs in ["0", "many", "1000000"]:
        code, out, err = run(*ASK, *WORK, "--simulate", runs)
        assert (code, out) == (2, "") and f"--simulate: '{runs}'" in err


def test_without_a_job_there_is_nothing_to_simulate(run: Run) -> None:
    code, out, err = run(*ASK, "--simulate", "10")
    assert (code, out) == (2, "") and "--simulate needs --job, --work, --tokens" in err
