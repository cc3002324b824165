"""``recommend --job`` as a user meets it: files, simulations, errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deepvm.cli.main import main

JOB = "name: gpt\nsteps: 20000\nstep_s: [4.5, 4.7]\nsave_s: 2.5\nbackup_s: [11, 15]\nallocation_s: [62, 218]\n"
JOB += "preparation_s: [143, 183]\ngrace_s: 30\nmttp_s: 43200\n"
ASK = ["recommend", "--pw", "3", "--catalog", "paper", "--speedup", "ring", "-o", "json"]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(words)
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return int(end.value.code or 0), out, err


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return str(path)


def test_simulated_figures_agree_with_expected_ones(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    closed = json.loads(run(capsys, *ASK, "--job", job)[1])
    code, out, _ = run(capsys, *ASK, "--job", job, "--simulate", "300")
    found = json.loads(out)
    assert code == 0
    assert found["request"]["work"]["job"] == "gpt" and found["request"]["work"]["measured_on"] == "g4dn.xlarge"
    for one, other in zip(closed["configurations"], found["configurations"], strict=True):
        expected, simulated = one["expected"], other["expected"]
        assert expected["by"] == "closed form" and expected["closed_form_holds"]
        assert simulated["by"] == "simulation" and simulated["runs"] == 300
        assert simulated["makespan_s"] == pytest.approx(expected["makespan_s"], rel=0.02)
        assert simulated["total_cost_usd"] == pytest.approx(expected["total_cost_usd"], rel=0.02)
        assert simulated["makespan_p50_s"] < simulated["makespan_p95_s"]
        hours = simulated["makespan_s"] / 3600
        assert simulated["total_cost_usd"] == pytest.approx(hours * other["usd_per_hour"], rel=1e-6)


def test_outside_of_the_closed_form_it_simulates_and_says_so(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *ASK, "--job", job, "--mttp", "2h", "--top", "1")
    first = json.loads(out)["configurations"][0]
    assert code == 0 and first["gpu"]["spot_count"] > 10
    assert first["expected"]["by"] == "simulation" and not first["expected"]["closed_form_holds"]
    assert "outside of the range of the closed form" in err


def test_where_the_answer_says_otherwise_it_is_said(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Simulated means that break a limit which the closed form keeps; and alternatives are simulated as well."""
    ask = [*ASK, "--job", job, "--mttp", "90min", "--top", "1"]
    free = json.loads(run(capsys, *ask)[1])
    assert free["configurations"][0]["expected"]["by"] == "simulation"
    for alternative in free["alternatives"]:
        expected = alternative["expected"]
        assert expected["closed_form_holds"] or expected["by"] == "simulation"
    takes = free["configurations"][0]["expected"]["makespan_s"]
    held = json.loads(run(capsys, *ask, "--deadline", f"{takes - 60:.0f}s", "--objective", "throughput")[1])
    first = held["configurations"][0]
    late = first["expected"]["makespan_s"] > takes - 60
    assert late == any("more than the deadline" in w for w in first["warnings"])


def test_why_not_is_simulated_too(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["explain", "g5.xlarge", *ASK[1:], "--job", job, "--mttp", "20min", "--objective", "throughput"]
    code, out, err = run(capsys, *ask)
    expected = json.loads(out)["configuration"]["expected"]
    assert code == 0 and expected["by"] == "simulation" and "the verdict is by the closed form" in err


def test_a_simulation_that_takes_too_long_is_left_out(
    job: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    long = tmp_path / "long.yaml"
    long.write_text(JOB.replace("20000", "20000000"))
    code, out, err = run(capsys, *ASK, "--job", str(long), "--mttp", "2h", "--top", "1", "--simulate", "10")
    expected = json.loads(out)["configurations"][0]["expected"]
    assert code == 0 and expected["by"] == "closed form" and not expected["closed_form_holds"]
    assert "may be far off" in err


def test_a_sweep_knows_the_job(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = ["sweep", "--pw", "1:3:1", "--catalog", "paper", "--policy", "deepvm", "--job", job, "--mttp", "2h"]
    out = run(capsys, *sweep, "-o", "csv")
    rows = [line.split(",") for line in out[1].splitlines()]
    assert rows[0][9:] == ["makespan_s", "total_cost_usd", "closed_form_holds"] and len(rows) == 4
    hours = float(rows[1][9]) / 3600
    assert float(rows[1][10]) == pytest.approx(hours * float(rows[1][7]), rel=1e-6)
    assert "outside of the range of the closed form" in out[2]
    document = json.loads(run(capsys, *sweep, "-o", "json")[1])
    assert document["rows"][0]["makespan_s"] == pytest.approx(float(rows[1][9]))
    assert "expected time" in run(capsys, *sweep)[1]


def test_a_job_of_other_machines_is_refused(job: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for line in ("vms: 4", "market: on-demand"):
        other = tmp_path / "other.yaml"
        other.write_text(JOB + line + "\n")
        code, out, err = run(capsys, *ASK, "--job", str(other), "--simulate", "10")
        assert code == 2 and not out and f"--job: '{line}'" in err


def test_without_a_job_nothing_is_expected(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, *ASK)[1])
    assert "expected" not in found["configurations"][0] and "work" not in found["request"]


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (["--simulate", "10"], 2, "--simulate: '10'"),
        (["--work", "10", "--simulate", "none"], 2, "--simulate: 'none'"),
        (["--work", "10", "--simulate", "0"], 2, "--simulate: '0'"),
        (["--work", "-1"], 2, "--work"),
        (["--deadline", "12h"], 2, "--deadline"),
        (["--objective", "makespan"], 2, "--objective"),
        (["--work", "10", "--total-budget", "much"], 2, "--total-budget"),
        (["--job", "no-such.yaml"], 4, "no-such.yaml"),
    ],
)
def test_wrong_use(words: list[str], code: int, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    ended, out, err = run(capsys, *ASK, *words)
    assert ended == code and named in err and not out
