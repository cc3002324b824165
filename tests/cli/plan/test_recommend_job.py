"""``recommend --job`` as a user meets it: files, simulations, errors."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from support.command import Run

JOB = (
    "name: gpt\nsteps: 20000\nstep_s: [4.5, 4.7]\nsave_s: 2.5\nbackup_s: [11, 15]\nallocation_s:"
    " [62, 218]\n"
)
JOB += "preparation_s: [143, 183]\ngrace_s: 30\nmttp_s: 43200\n"
MOST = ["--objective", "throughput"]
ASK = ["recommend", "--pw", "3", "--catalog", "paper", "--speedup", "ring", "-o", "json"]


@pytest.fixture
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepvm.services.simulated_ranking.RUNS", 80)


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return str(path)


def short(job: str) -> str:
    """A fifth of the job, for what is simulated many times."""
    path = Path(job).with_name("short.yaml")
    path.write_text(Path(job).read_text().replace("steps: 20000", "steps: 4000"))
    return str(path)


def unannounced(job: str) -> None:
    """Without notices: machines that go together make a cluster faster than by the closed form."""
    Path(job).write_text(Path(job).read_text().replace("grace_s: 30", "grace_s: 0"))


def test_simulated_figures_agree_with_expected_ones(job: str, run: Run) -> None:
    closed = json.loads(run(*ASK, "--job", job)[1])
    code, out, _ = run(*ASK, "--job", job, "--simulate", "300")
    found = json.loads(out)
    assert code == 0
    keys = ["makespan_s", "total_cost_usd", "preemptions", "by", "closed_form_holds"]
    more = ["runs", "makespan_p5_s", "makespan_p50_s", "makespan_p95_s"]
    more += ["total_cost_p5_usd", "total_cost_p50_usd", "total_cost_p95_usd", "late_share"]
    assert list(closed["configurations"][0]["expected"]) == keys
    assert list(found["configurations"][0]["expected"]) == keys + more
    times = ["save_s", "durable_s", "allocation_s", "preparation_s", "grace_s"]
    asked = [
        "measured_on",
        "mttp_s",
        "interruption_rate",
        "save_policy",
        "deadline_s",
        "total_budget_usd",
    ]
    assert list(found["request"]["work"]) == ["job", "steps", "step_s", *times, *asked]
    assert (
        found["request"]["work"]["job"] == "gpt"
        and found["request"]["work"]["measured_on"] == "g4dn.xlarge"
    )
    for one, other in zip(closed["configurations"], found["configurations"], strict=True):
        expected, simulated = one["expected"], other["expected"]
        assert expected["by"] == "closed form" and expected["closed_form_holds"]
        assert simulated["by"] == "simulation" and simulated["runs"] == 300
        assert simulated["makespan_s"] == pytest.approx(expected["makespan_s"], rel=0.02)
        assert simulated["total_cost_usd"] == pytest.approx(expected["total_cost_usd"], rel=0.02)
        assert (
            simulated["makespan_p5_s"] < simulated["makespan_p50_s"] < simulated["makespan_p95_s"]
        )
        hours = simulated["makespan_s"] / 3600
        assert simulated["total_cost_usd"] == pytest.approx(hours * other["usd_per_hour"], rel=1e-6)


def test_a_model_is_simulated_as_it_is_counted(run: Run) -> None:
    ask = (
        "recommend",
        "--pw",
        "3",
        "--prices",
        "snapshot",
        "--model",
        "resnet50",
        "--epochs",
        "900",
        "-o",
        "json",
    )
    ask += ("--dataset-size", "1.3M", "--mttp", "8h")
    closed, found = (
        json.loads(run(*ask, *more)[1])["configurations"] for more in ((), ("--simulate", "200"))
    )
    for one, other in zip(closed, found, strict=True):
        assert other["expected"]["by"] == "simulation"
        assert other["expected"]["makespan_s"] == pytest.approx(
            one["expected"]["makespan_s"], rel=0.03
        )
        assert other["expected"]["preemptions"] == pytest.approx(
            one["expected"]["preemptions"], rel=0.1, abs=0.3
        )
    words = [word for word in ask if word not in ("-o", "json")]
    said = " 9 of 10 take "
    assert said in " ".join(run(*words, "--simulate", "20")[1].split())
    assert said not in " ".join(run(*words)[1].split())
    assert (
        "In 20 simulations at this speed, 9 of 10 take "
        in run(*words, "--simulate", "20", "--why")[1]
    )
    code, _, err = run(*ask, "--save-policy", "young")
    assert code == 2 and "--save-policy does not go with a model" in err


def test_a_sweep_of_a_model_is_simulated_and_names_its_unit(run: Run) -> None:
    ask = (
        "sweep",
        "--pw",
        "1,3",
        "--prices",
        "snapshot",
        "--model",
        "resnet50",
        "--policy",
        "deepvm",
    )
    out = run(*ask, "--samples", "1B", "--simulate", "5")[1]
    assert "speed (images/s)" in out and "eFLOPS" not in out
    header, *rows = csv.reader(io.StringIO(run(*ask, "-o", "csv")[1]))
    assert header[-3:] == ["throughput_low", "throughput_high", "source"]
    low, high = (float(rows[1][header.index(f"throughput_{end}")]) for end in ("low", "high"))
    assert low < float(rows[1][header.index("throughput")]) < high and rows[1][-1] == "derived"


def test_what_is_counted_for_a_job_is_said(job: str, run: Run) -> None:
    ask = ["recommend", "--pw", "3", "--prices", "snapshot", "--work", "100", "--mttp", "12h"]
    out = run(*ask, "--measured-on", "p4d.24xlarge")[1]
    assert (
        "\nAssumed: a save takes 0.545 s and is safe 2.83 s later; a new VM takes 2.33 min to come"
        " and 2.72 min " in out
    )
    assert "\nWarning: it rests on the estimated eFLOPS of p4d.24xlarge: " in out
    assert "are estimated" not in run(*ask, "--measured-on", "g5.xlarge")[1]
    code, _, err = run(*ask, "--simulate", "100001")
    assert code == 2 and "--simulate: '100001' (expected a whole number from 1 to 100000" in err


@pytest.mark.usefixtures("few_runs")
def test_outside_of_the_closed_form_it_simulates_and_says_so(job: str, run: Run) -> None:
    code, out, err = run(*ASK, "--job", short(job), "--mttp", "2h", "--top", "1")
    first = json.loads(out)["configurations"][0]
    assert code == 0 and first["gpu"]["spot_count"] > 10
    assert first["expected"]["by"] == "simulation" and not first["expected"]["closed_form_holds"]
    assert "outside of the range of the closed form" in err


@pytest.mark.usefixtures("few_runs")
def test_whatever_is_printed_is_simulated_where_the_closed_form_fails(job: str, run: Run) -> None:
    found = json.loads(run(*ASK, "--job", job, "--mttp", "90min", "--top", "1", *MOST)[1])
    assert found["configurations"][0]["expected"]["by"] == "simulation" and found["next_change"]
    others = [
        *found["alternatives"],
        found["next_change"]["configuration"],
        found["nearly_as_good"] or {},
    ]
    for expected in (other["expected"] for other in others if other):
        assert expected["closed_form_holds"] or expected["by"] == "simulation"


def test_a_cluster_within_the_range_stays_and_carries_a_warning(job: str, run: Run) -> None:
    """Its closed form keeps to the deadline by a second.

    The mean of a few runs does so by chance.
    """
    ask = [*ASK, "--job", job, "--top", "1", "--simulate", "9"]
    free = json.loads(run(*ask[:-2])[1])["configurations"][0]["expected"]
    assert free["closed_form_holds"]
    limit = free["makespan_s"] + 1
    first = json.loads(run(*ask, "--deadline", f"{limit:.3f}s")[1])["configurations"][0]
    late = first["expected"]["makespan_s"] > limit
    assert late == any("more than the deadline" in w for w in first["warnings"])


@pytest.mark.usefixtures("few_runs")
def test_where_it_is_simulated_the_simulation_ranks_and_rules_out(job: str, run: Run) -> None:
    """The order is that of the figures, a limit holds for all that is printed, and what it cost is
    said.
    """
    hybrid = [
        "recommend",
        "--pw",
        "3",
        "--catalog",
        "paper",
        "-o",
        "json",
        "--job",
        short(job),
        "--mttp",
        "75min",
    ]
    ask = [*hybrid, "--objective", "makespan", "--top", "5"]
    _, out, err = run(*ask)
    found = json.loads(out)["configurations"]
    takes = [r["expected"]["makespan_s"] for r in found]
    assert takes == sorted(takes) and [r["rank"] for r in found] == [1, 2, 3, 4, 5]
    assert all(r["expected"]["by"] == "simulation" for r in found)
    assert "outside of the range of the closed form" in err
    table = run(*ask, "-o", "csv")[1].splitlines()
    assert [float(row.split(",")[19]) for row in table[1:]] == takes
    # By throughput, the largest cluster is best until a simulation shows that it takes too long.
    unannounced(job)
    short(job)
    plain = [*hybrid, "--top", "3", *MOST]
    first = json.loads(run(*plain)[1])["configurations"][0]
    limit = first["expected"]["makespan_s"] - 60
    code, out, err = run(*plain, "--deadline", f"{limit:.0f}s")
    held = json.loads(out)["configurations"]
    assert code == 0 and len(held) == 3
    assert all(r["expected"]["makespan_s"] <= limit and not r["warnings"] for r in held)
    assert "Note: left out: " in err and "when simulated, more than the deadline" in err
    assert held[0]["gpu"]["count"] < first["gpu"]["count"] and held[0]["binding"][-1] == "deadline"
    assert "when simulated" in held[0]["binding_reasons"][-1]


def test_nothing_is_left_when_the_simulation_has_spoken(job: str, run: Run) -> None:
    """The closed form of a job on short-lived machines is a little hopeful: its best time may not
    be met.
    """
    ask = [
        *ASK,
        "--job",
        short(job),
        "--mttp",
        "8min",
        "--instance-type",
        "g4dn.xlarge",
        "--architecture",
        "tiering",
    ]
    ask += ["--objective", "makespan", "--top", "1"]
    from support.planning import recommend

    from deepvm.catalog.store import load_catalog
    from deepvm.simulator.jobfile import read_job

    closed = recommend(
        load_catalog("paper", offline=True),
        3,
        speedup="ring",
        job=read_job(Path(short(job))),
        mttp="8min",
        instance_type="g4dn.xlarge",
        architecture="tiering",
        objective="makespan",
    )[0]
    assert closed.outlook is not None and not closed.outlook.sound
    code, out, err = run(*ask, "--deadline", f"{closed.outlook.total_s + 1:.0f}s")
    found = json.loads(out)
    assert (
        code == 3 and found["configurations"] == [] and found["relax"]["constraint"] == "deadline"
    )
    assert (
        "no cluster keeps to the job's limits" in found["reason"]
        and "when simulated" in found["reason"]
    )
    assert found["solution"]["status"] == "infeasible" and "To change that: allow more time" in err


def test_prices_of_a_job_file_are_not_used_and_it_is_said(
    job: str, run: Run, tmp_path: Path
) -> None:
    priced = tmp_path / "priced.yaml"
    priced.write_text(JOB + "spot_usd_per_hour: 99\n")
    _, out, err = run(*ASK, "--job", job)
    _, same, told = run(*ASK, "--job", str(priced))
    assert same == out and "prices are not used" not in err
    assert f"Note: {priced}: its prices are not used, the catalog's are" in told


def test_machines_that_are_never_taken_away(job: str, run: Run) -> None:
    ask = [*ASK[:-2], "--job", job, "--interruption-rate", "0%"]
    code, out, _ = run(*ask)
    assert code == 0 and "No VM is ever preempted" in out and "never on average" not in out
    simulated = run(*ask, "--simulate", "20", "-o", "json")[1]
    assert json.loads(simulated)["configurations"][0]["expected"]["preemptions"] == 0


def test_why_not_shows_what_should_be_doubted(job: str, run: Run) -> None:
    """Also that a limit is broken when simulated; JSON has had it all along."""
    unannounced(job)
    ask = [
        "explain",
        "g4dn.xlarge",
        *ASK[1:-2],
        "--job",
        job,
        "--mttp",
        "75min",
        "--max-nodes",
        "17",
    ]
    takes = json.loads(run(*ask, "-o", "json")[1])["configuration"]["expected"]["makespan_s"]
    _, out, _ = run(*ask, "--deadline", f"{takes - 60:.0f}s")
    assert "Warning: " in out and "when simulated, more than the deadline." in out


@pytest.mark.usefixtures("few_runs")
def test_why_not_is_simulated_too(job: str, run: Run) -> None:
    ask = [
        "explain",
        "g5.xlarge",
        *ASK[1:],
        "--job",
        short(job),
        "--mttp",
        "20min",
        "--objective",
        "throughput",
    ]
    code, out, err = run(*ask)
    expected = json.loads(out)["configuration"]["expected"]
    assert (
        code == 0 and expected["by"] == "simulation" and "the verdict is by the closed form" in err
    )


def test_a_simulation_that_takes_too_long_is_left_out(job: str, run: Run, tmp_path: Path) -> None:
    long = tmp_path / "long.yaml"
    long.write_text(JOB.replace("20000", "20000000"))
    code, out, err = run(*ASK, "--job", str(long), "--mttp", "2h", "--top", "1", "--simulate", "10")
    expected = json.loads(out)["configurations"][0]["expected"]
    assert code == 0 and expected["by"] == "closed form" and not expected["closed_form_holds"]
    assert "may be far off" in err


def test_a_sweep_knows_the_job(job: str, run: Run) -> None:
    sweep = [
        "sweep",
        "--pw",
        "1:3:1",
        "--catalog",
        "paper",
        "--policy",
        "deepvm",
        "--job",
        job,
        "--mttp",
        "2h",
    ]
    out = run(*sweep, "-o", "csv")
    rows = [line.split(",") for line in out[1].splitlines()]
    assert rows[0][9:12] == ["makespan_s", "total_cost_usd", "closed_form_holds"] and len(rows) == 4
    hours = float(rows[1][9]) / 3600
    assert float(rows[1][10]) == pytest.approx(hours * float(rows[1][7]), rel=1e-6)
    assert "the closed form does not hold in " in out[2]
    document = json.loads(run(*sweep, "-o", "json")[1])
    assert document["rows"][0]["makespan_s"] == pytest.approx(float(rows[1][9]))
    assert "expected time" in run(*sweep)[1]


def test_a_job_of_other_machines_is_refused(job: str, run: Run, tmp_path: Path) -> None:
    for line in ("vms: 4", "market: on-demand"):
        other = tmp_path / "other.yaml"
        other.write_text(JOB + line + "\n")
        code, out, err = run(*ASK, "--job", str(other), "--simulate", "10")
        assert code == 2 and not out and f"--job: '{line}'" in err


def test_without_a_job_nothing_is_expected(run: Run) -> None:
    found = json.loads(run(*ASK)[1])
    assert "expected" not in found["configurations"][0] and "work" not in found["request"]


def test_wrong_use(run: Run) -> None:
    for words, code, named in [
        (["--simulate", "10"], 2, "--simulate needs --job"),
        (["--work", "10", "--simulate", "none"], 2, "--simulate: 'none'"),
        (["--work", "10", "--simulate", "0"], 2, "--simulate: '0'"),
        (["--work", "-1"], 2, "--work: '-1' (expected hours above 0"),
        (["--deadline", "12h"], 2, "--deadline"),
        (["--objective", "makespan"], 2, "--objective"),
        (["--work", "10", "--total-budget", "much"], 2, "--total-budget"),
        (["--job", "no-such.yaml"], 4, "no-such.yaml"),
    ]:
        ended, out, err = run(*ASK, *words)
        assert ended == code and named in err and not out


WORK = ["recommend", "--prices", "snapshot", "--work", "100", "--mttp", "12h"]


def test_clusters_are_compared_with_on_demand_alone_and_with_cheaper_ones(run: Run) -> None:
    words = [*WORK, "--pw", "2.02", "--measured-on", "g4dn.xlarge"]
    out = run(*words)[1]
    (line,) = (line for line in out.splitlines() if line.startswith("Without spot VMs: "))
    assert "1 x g5.xlarge at $1.01/h" in line and "expected 54.25 h and $54.58 (0." in line
    assert "\nLess money: 1 x g5.xlarge spot" in out and " at $0.59/h" in out
    assert "expected 54.68 h and $32.29 (0.1% longer, 70.7% cheaper)" in out
    found = json.loads(run(*words, "-o", "json")[1])
    alone = found["on_demand"]
    assert alone["expected"]["total_cost_usd"] == pytest.approx(
        alone["expected"]["makespan_s"] / 3600 * 1.006
    )
    assert "\nWithout spot VMs: 1 x g4dn.xlarge" in run(*words, "--objective", "total-cost")[1]
    assert (
        "\nWithout spot VMs: no cluster keeps within these limits."
        in run("recommend", "--pw", "3", "--work", "6000min", "--mttp", "12h", "--deadline", "48h")[
            1
        ]
    )


def test_runs_that_miss_the_deadline_are_counted(run: Run) -> None:
    words = [*WORK, "--pw", "3", "--measured-on", "g4dn.xlarge", "--deadline", "42h"]
    assert "\nWarning: this is an average: about half of all runs will be late" in run(*words)[1]
    late = json.loads(run(*words, "--simulate", "200", "-o", "json")[1])["configurations"][0][
        "expected"
    ]["late_share"]
    assert 0.2 < late < 0.8
    out = run(*words, "--simulate", "200")[1]
    assert f"; {100 * late:.1f} % miss the deadline.\n" in out and "every second" not in out
    assert (
        "every second"
        not in run(*WORK, "--pw", "3", "--measured-on", "g4dn.xlarge", "--deadline", "60h")[1]
    )


def test_what_costs_no_time_is_doubted(run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("steps: 100000\nstep_s: 3.6\n")
    words = ["recommend", "--prices", "snapshot", "--pw", "3", "--job", str(tmp_path / "job.yaml")]
    assert (
        "\nWarning: what takes 0 s there makes preemptions look cheaper than they are.\n"
        in run(*words)[1]
    )
    assert "what takes 0 s" not in run(*WORK, "--pw", "3")[1]
