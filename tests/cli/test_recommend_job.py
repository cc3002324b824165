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
