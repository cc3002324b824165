"""``deepvm traces`` as people and scripts meet it, on small made-up traces."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.command import Run
from support.places import GOLDEN_FOLDER, ROOT, SHARED

from deepvm.simulator.jobfile import parse_job

GOLDEN = GOLDEN_FOLDER
REAL = SHARED / "data" / "spot-traces"
needs_traces = pytest.mark.skipif(not REAL.is_dir(), reason="the shared traces are not here")


def runs(*ticks: int) -> list[int]:
    """That many ticks down, up, down, up ..."""
    return [i % 2 for i, count in enumerate(ticks) for _ in range(count)]


TRACES: dict[str, tuple[float, list[int]]] = {
    "zone-a.json": (600, runs(2, 3, 1, 1, 4, 30, 2, 1, 1, 2, 7, 90, 3, 5, 1, 1, 2, 12)),
    "zone-b.json": (600, runs(0, 4, 3, 1, 1, 1, 2, 8, 5, 2, 2, 1, 1, 60, 4)),
    "four.json": (300, [0, 2, 4, 4, 4, 3, 4, 4, 1, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4, 2, 4, 0]),
    "copy.json": (300, [0, 2, 4, 4, 4, 3, 4, 4, 1, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4, 2, 4, 0]),
    "quiet.json": (60, runs(1, 200)),
}


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, (gap, data) in TRACES.items():
        (tmp_path / name).write_text(
            json.dumps({"metadata": {"gap_seconds": gap}, "data": data, "prices": [1.5]})
        )
    (tmp_path / "none.json").write_text('{"metadata": {"gap_seconds": 60}, "data": [0, 0]}')
    (tmp_path / "bad.json").write_text('{"metadata": {"gap_seconds": 60}, "data": [0, 1, "up"]}')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(run: Run) -> Run:
    return partial(run, "traces")


ZONES = ["zone-a.json", "zone-b.json"]
GOLDENS = {
    "traces-show.txt": ["show", *ZONES, "four.json", "copy.json", "quiet.json", "none.json"],
    "traces-fit.txt": ["fit", *ZONES, "quiet.json", "--each"],
    "traces-replay.txt": ["replay", *ZONES, "four.json", "--nodes", "1"],
    "traces-show.json": ["show", "four.json", "quiet.json", "--nodes", "1", "-o", "json"],
}


@pytest.mark.parametrize("name", GOLDENS)
def test_golden(name: str, traces: Path, run: Run) -> None:
    """``WRITE_GOLDEN=1`` writes it anew."""
    code, out, err = run(*GOLDENS[name])
    found = f"$ deepvm traces {' '.join(GOLDENS[name])}\n# exit {code}\n{out}# stderr\n{err}"
    path = GOLDEN / name
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(found)
    assert found == path.read_text()


def guide_table(first: str) -> str:
    """The block of the guide whose first line begins so."""
    text = (ROOT / "docs" / "internals" / "guide" / "simulate.md").read_text()
    return next(
        block for block in text.split("```text\n")[1:] if block.startswith(first)
    ).partition("```")[0]


@needs_traces
def test_the_replay_of_the_guide_is_what_is_printed(run: Run) -> None:
    code, out, _ = run("replay", str(REAL))
    assert code == 0 and guide_table("policy ") in out and "32 traces: 4276 lifetimes" in out


@pytest.mark.slow
@needs_traces
def test_the_deadlines_of_the_guide_are_what_is_printed(run: Run) -> None:
    code, out, _ = run("deadline", str(REAL), "--slack", "0.1,0.5,1")
    assert code == 0 and guide_table("slack ") in out


def test_every_golden_file_is_used() -> None:
    assert {p.name for p in GOLDEN.glob("traces-*")} == set(GOLDENS)


def test_json_of_a_fit(traces: Path, run: Run) -> None:
    code, out, err = run("fit", *ZONES, "quiet.json", "--each", "-o", "json")
    found = json.loads(out)
    assert (code, err, found["schema_version"]) == (0, "", "deepvm.traces-fit/1")
    assert {f["law"] for f in found["fits"]} == {"exponential", "weibull", "lomax", "lognormal"}
    assert [f["aic"] for f in found["fits"]] == sorted(f["aic"] for f in found["fits"])
    assert [(e["trace"], len(e["fits"])) for e in found["each"]] == [
        (ZONES[0], 4),
        (ZONES[1], 4),
        ("quiet.json", 0),
    ]
    exponential = next(f for f in found["fits"] if f["law"] == "exponential")
    # Time seen over lives that ended, but for the half gaps of the likelihood.
    assert exponential["parameters"]["mean_s"] == pytest.approx(
        found["machine_s"] / found["preemptions"], rel=0.02
    )


def test_csv_of_a_fit_holds_the_same(traces: Path, run: Run) -> None:
    fits = json.loads(run("fit", *ZONES, "-o", "json")[1])["fits"]
    rows = list(csv.DictReader(io.StringIO(run("fit", *ZONES, "-o", "csv")[1])))
    assert [(r["trace"], r["law"], r["parameter"], float(r["value"])) for r in rows] == [
        ("all", f["law"], p, v) for f in fits for p, v in f["parameters"].items()
    ]


def test_json_of_a_replay_adds_up(traces: Path, run: Run) -> None:
    code, out, err = run(
        "replay", ".", "--policies", "best-fixed,thesis,best-fixed", "--save", "2,30,2"
    )
    assert code == 4 and "bad.json" in err and out == ""
    (traces / "bad.json").unlink()
    code, out, err = run(
        "replay", ".", "--policies", "best-fixed,thesis", "--save", "2,30", "-o", "json"
    )
    found = json.loads(out)
    assert code == 0 and "Note: four.json is left out: it holds the same as copy.json" in err
    assert (found["schema_version"], found["step_s"], found["mttp_prior_s"]) == (
        "deepvm.traces-replay/1",
        4.6,
        10800.0,
    )
    assert found["traces"] == ["copy.json", "quiet.json", *ZONES]
    assert [(r["policy"], r["save_s"]) for r in found["rows"]] == [
        ("best-fixed", 2.0),
        ("best-fixed", 30.0),
        ("thesis", 2.0),
        ("thesis", 30.0),
    ]
    for row in found["rows"]:
        for key in ("machine_s", "saves_s", "lost_s", "preemptions"):
            assert row[key] == pytest.approx(sum(p[key] for p in row["pools"]))
        assert row["cost_share"] == pytest.approx(
            (row["saves_s"] + row["lost_s"]) / row["machine_s"]
        )
    text = run("replay", ".", "--policies", "best-fixed,thesis", "--save", "2,30", "-o", "csv")[1]
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 4 * 5 and {r["trace"] for r in rows} == {"all", *found["traces"]}
    assert [float(r["cost_share"]) for r in rows[::5]] == [r["cost_share"] for r in found["rows"]]
    assert [float(r["lost_s"]) for r in rows[1:5]] == [
        p["lost_s"] for p in found["rows"][0]["pools"]
    ]
    quiet = next(p for p in found["rows"][0]["pools"] if p["trace"] == "quiet.json")
    assert quiet["interval_s"] is None and quiet["cost_share"] == 0  # nothing was ever lost there


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ["show", "bad.json"],
            4,
            "bad.json:1: invalid value for data[2]: 'up'"
            " (expected the numbers of machines at each tick",
        ),
        (
            ["fit", "quiet.json"],
            4,
            "quiet.json: 0 lifetimes ended, a fit needs 5; add traces of like machines",
        ),
        (
            ["replay", "zone-a.json", "--policies", "thesis,hasard"],
            2,
            "--policies: 'hasard' (expected",
        ),
        (["replay", "zone-a.json", "--step", "0"], 2, "--step: '0' (expected a time above 0"),
        (["show", "zone-a.json", "--plot", "no/a.png"], 2, "'no/a.png' (expected a file in a"),
        (
            ["show", "none.json", "--plot", "a.png"],
            4,
            "none.json: no life of all machines begins in it",
        ),
    ],
)
def test_errors_say_what_where_and_what_next(
    words: list[str], code: int, message: str, traces: Path, run: Run
) -> None:
    found, _, err = run(*words)
    assert found == code and message in err
    assert not list(traces.glob("*.tmp")) and not list(traces.glob("*.p*"))


def test_a_picture_shows_availability_and_survival(traces: Path, run: Run) -> None:
    code, _, err = run("show", *ZONES, "four.json", "--plot", "a.png")
    assert (code, err) == (0, "")
    assert (traces / "a.png").read_bytes().startswith(b"\x89PNG")
    code, _, err = run("show", "quiet.json", "--plot", "b.svg")
    assert code == 0 and "Note: no laws are drawn: quiet.json: 0 lifetimes ended" in err
    assert b"<svg" in (traces / "b.svg").read_bytes()


def test_what_the_picture_holds(traces: Path) -> None:
    from deepvm.reports.simulation.traces import MAX_DRAWN, traces_figure
    from deepvm.simulator.traces.lifetime_fit import fit_lives, survival_curve
    from deepvm.simulator.traces.trace import pools_of, read_traces

    found = read_traces([*ZONES, "four.json"])
    pools = pools_of(found)
    fits = fit_lives(pools)
    above, below = traces_figure(found, pools, fits).axes
    assert [t.get_text() for t in above.get_yticklabels()] == [
        "zone-a (1)",
        "zone-b (1)",
        "four (4)",
    ]
    lines = {str(line.get_label()).split(" ")[0]: line for line in below.get_lines()}
    assert list(lines) == [*(f.law.name for f in fits), "seen"]
    x, y = (np.asarray(v, dtype=float) for v in lines["lomax"].get_data())
    lomax = next(f for f in fits if f.law.name == "lomax")
    assert y == pytest.approx((1 + x * 3600 / lomax.values[0]) ** -lomax.values[1])
    assert set(survival_curve(pools)[1]) <= set(np.asarray(lines["seen"].get_ydata(), dtype=float))
    # Area of the bars: machine time in days, over the width of a row.
    day = sum(t.counts.sum() / t.nodes * t.gap_s for t in found) / 86_400
    area = 0.0
    for bars in above.collections:
        for path in bars.get_paths():
            px, py = path.vertices.T
            area += abs(float(np.sum(px[:-1] * py[1:] - px[1:] * py[:-1])) / 2)
    assert area == pytest.approx(0.8 * day, rel=1e-6)
    many = traces_figure(found * 20, pools, ())
    assert len(many.axes[0].get_yticklabels()) == MAX_DRAWN
    assert f"the first {MAX_DRAWN} of 60 traces" in str(many.get_suptitle())


def test_what_was_fitted_can_be_planned_with(traces: Path, run: Run) -> None:
    out = run("fit", *ZONES, "quiet.json")[1]
    found = re.search(r"--mttp ([\d.]+)h'.* 'mttp_s: (\d+)' and 'lifetime: ([a-z]+:[\d.]+)'", out)
    assert found is not None
    job = parse_job(f"steps: 1\nstep_s: 1\nmttp_s: {found[2]}\nlifetime: {found[3]}\n", "job")
    assert job.lifetime == "lognormal:1.747" and float(found[1]) == pytest.approx(2.83)
    assert "To plan with them" not in run("fit", *ZONES, "four.json")[1]


def test_policies_that_cost_nothing_are_compared_with_nothing(traces: Path, run: Run) -> None:
    code, out, _ = run("replay", "quiet.json", "--policies", "none,thesis")
    assert code == 0 and out.splitlines()[-1].split() == ["thesis", "-", "-", "-"]
