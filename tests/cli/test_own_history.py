"""``recommend --mttp history`` and ``simulate --lives history``: what the user's own machines have
shown counts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.command import Run
from support.schemas import check

from deepvm.jobs.decisions.world import JobLimits, JobState, MachineRecord, Pool
from deepvm.jobs.history.history import PLACE, History

DAY_S = 86400.0


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    found = str(tmp_path / "history.db")
    monkeypatch.setenv(PLACE, found)
    return found


def lived(
    place: str, kind: str, hours: float, count: int, *, cloud: str = "aws", zone: str = "us-east-1a"
) -> None:
    """Machines of a type that were all taken back after so many hours."""
    from deepvm.jobs.decisions.states import Machine

    world = JobState(JobLimits(1, 1), 0.0, pools=(Pool(kind, zone, "spot", 1.0),))
    machines = {
        f"m{n}": MachineRecord(
            f"m{n}",
            world.pools[0],
            n * DAY_S,
            Machine.ENDED,
            n * DAY_S,
            noticed_s=n * DAY_S + 1,
            ended_s=n * DAY_S + hours * 3600,
            end_reason="preempted",
        )
        for n in range(1, count + 1)
    }
    from dataclasses import replace

    with History.open({PLACE: place}) as history:
        history.add_job(f"{kind}-{cloud}-{hours}", 0.0, Path("/x"), {"cloud": cloud}, world)
        history.commit(f"{kind}-{cloud}-{hours}", world, replace(world, machines=machines), [])


def best(run: Run, *words: str) -> tuple[dict[str, Any], str]:
    code, out, err = run("recommend", "--offline", "--pw", "3", "-o", "json", *words)
    assert code == 0, err
    return json.loads(out)["configurations"][0], err


@pytest.mark.parametrize(
    "words", [(), ("--catalog", "paper", "--work", "100", "--objective", "total-cost")]
)
def test_types_that_never_last_are_not_recommended(
    run: Run, place: str, words: tuple[str, ...]
) -> None:
    first, _ = best(run, *words)
    kind = first["gpu"]["instance_type"]
    lived(place, kind, 0.2, 20)
    again, said = best(run, *words, "--mttp", "history")
    assert again["gpu"]["instance_type"] != kind
    assert (
        f"a spot {kind} lives" in said
        and "20 preemptions of 20" in said
        and "by their bands" in said
    )


def test_documents_say_where_a_life_is_known_from(run: Run, place: str) -> None:
    first, _ = best(run)
    kind = first["gpu"]["instance_type"]
    assert "known_life" not in first["gpu"]
    lived(place, kind, 500.0, 20)
    again, said = best(run, "--mttp", "history")
    known = again["gpu"]["known_life"]
    assert again["gpu"]["instance_type"] == kind and f"a spot {kind} lives" in said
    assert (known["preemptions"], known["machines"], known["newest_s"]) == (
        20,
        20,
        20 * DAY_S + 500.0 * 3600,
    )
    assert known["low_s"] < known["mean_s"] < known["high_s"]
    assert known["mean_s"] == pytest.approx((4 * 3600 + 20 * 500.0 * 3600) / 21)
    _, out, _ = run("recommend", "--offline", "--pw", "3", "-o", "json", "--mttp", "history")
    check(json.loads(out), "recommend")


def test_a_thin_history_is_not_a_figure(run: Run, place: str) -> None:
    lived(place, "g4dn.xlarge", 0.2, 2)
    lived(place, "g5.xlarge", 0.001, 9, cloud="local")
    code, out, err = run("recommend", "--offline", "--pw", "3", "--mttp", "history")
    assert code == 2 and "3 preemptions" in err


def test_no_history_at_all(run: Run, place: str) -> None:
    code, out, err = run("recommend", "--offline", "--pw", "3", "--mttp", "history")
    assert code == 2 and "history" in err
    code, out, err = run("simulate", "--preset", "gpt-117m", "--lives", "history")
    assert code == 2 and "no job of yours" in err


def test_doubt_is_part_of_it(run: Run, place: str) -> None:
    """The same mean life of few machines and of many: the fewer are known, the worse it counts."""
    from deepvm.core.lifetimes import known_life

    few, many = known_life(3 * 36_000.0, 3, 3, 0.0), known_life(300 * 36_000.0, 300, 300, 0.0)
    assert few is not None and many is not None
    assert few.low_s < 0.6 * many.low_s and few.high_s > many.high_s


@pytest.mark.system
def test_lives_that_were_ended_on_purpose_are_no_market_s(run: Run, place: str) -> None:
    lived(place, "g4dn.xlarge", 0.01, 50, cloud="local", zone="local")
    words = ("simulate", "--preset", "gpt-117m", "--runs", "5", "--lives")
    for pool in ("", ":g4dn.xlarge"):
        code, _, err = run(*words, f"history{pool}")
        assert code == 2 and "expected history:g4dn.xlarge/local" in err
    lived(place, "g4dn.xlarge", 9, 3)
    assert "3 lifetimes, 3 ended by a preemption" in run(*words, "history:g4dn.xlarge")[2]
    # Whoever names the pool wants it
    assert "50 lifetimes" in run(*words, "history:g4dn.xlarge/local")[2]


def test_simulated_with_own_lives(run: Run, place: str) -> None:
    lived(place, "g4dn.xlarge", 2.0, 12)
    lived(place, "g5.xlarge", 9.0, 12, zone="us-east-1b")
    hours = {}
    for pool in ("", ":g4dn.xlarge", ":g5.xlarge/us-east-1b"):
        words = [
            "simulate",
            "--preset",
            "gpt-117m",
            "--runs",
            "20",
            "--lives",
            f"history{pool}",
            "-o",
            "json",
        ]
        code, out, err = run(*words)
        assert code == 0, err
        hours[pool] = json.loads(out)["preemptions"]["mean"]
        assert "ended by a preemption" in err
    assert hours[":g5.xlarge/us-east-1b"] < hours[""] < hours[":g4dn.xlarge"]
    code, out, err = run("simulate", "--preset", "gpt-117m", "--lives", "history:p3.2xlarge")
    assert code == 2 and "history:g5.xlarge/us-east-1b" in err
    code, out, err = run("simulate", "--preset", "gpt-117m", "--lives", "mine")
    assert code == 2 and "history:TYPE/ZONE" in err


@pytest.mark.parametrize(
    "words",
    [
        ("recommend", "--offline", "--pw", "3", "--mttp", "history"),
        ("simulate", "--preset", "gpt-117m", "--lives", "history"),
    ],
)
def test_without_sqlalchemy(
    run: Run, place: str, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.delitem(sys.modules, "deepvm.jobs.history.history")
    for name in [n for n in sys.modules if n.split(".")[0] == "sqlalchemy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    code, _, err = run(*words)
    assert code == 2 and "'.[run]'" in err
