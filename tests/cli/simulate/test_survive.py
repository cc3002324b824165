"""``deepvm survive`` as people and scripts meet it."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.command import COUNTED, Run
from support.places import GOLDEN_FOLDER
from support.stored_catalog import Clone, row

import deepvm
from deepvm.catalog.store import load_catalog
from deepvm.core.lifetimes import BAND_SHARES, KnownLifetime, mean_life_s
from deepvm.jobs.decisions.states import Machine
from deepvm.jobs.decisions.world import JobLimits, JobState, MachineRecord, Pool
from deepvm.jobs.history.history import PLACE, History

ASK = [
    "survive",
    "--instance-type",
    "g4dn.xlarge",
    "--for",
    "4h",
    "-r",
    "us-east-1",
    "--prices",
    "snapshot",
]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Jobs of nobody else."""
    found = str(tmp_path / "history.db")
    monkeypatch.setenv(PLACE, found)
    return found


def ask(run: Run, *words: str, count: int = 4) -> dict[str, Any]:
    code, out, err = run(*ASK, "--count", str(count), "-o", "json", *words)
    assert code == 0, err
    return dict(json.loads(out))


def lived(place: str, hours: float, gangs: int, size: int, *, refused: int = 0) -> None:
    """Gangs that were all taken back after so many hours; and machines that did not come."""
    pool, now_s = Pool("g4dn.xlarge", "us-east-1a", "spot", 1.0), time.time()
    world = JobState(JobLimits(1, 1), 0.0, pools=(pool,))
    machines = {}
    for n in range(gangs * size):
        at_s = now_s - (30 - n // size) * 86400.0
        machines[f"m{n}"] = MachineRecord(
            f"m{n}",
            pool,
            at_s,
            Machine.ENDED,
            at_s,
            ended_s=at_s + hours * 3600,
            end_reason="preempted",
        )
    for n in range(refused):
        machines[f"r{n}"] = MachineRecord(
            f"r{n}", pool, now_s - n, Machine.ENDED, None, ended_s=now_s, end_reason="refused"
        )
    with History.open({PLACE: place}) as history:
        history.add_job("job", 0.0, Path("/x"), {"cloud": "aws"}, world)
        history.commit("job", world, replace(world, machines=machines), [])


def test_the_table_says_what_it_rests_on(run: Run) -> None:
    code, out, err = run(*ASK, "--count", "8")
    assert code == 0, err
    assert out.startswith("8 x g4dn.xlarge on the spot market of us-east-1, for 4 h\n")
    for words in (
        "all of this",
        "independent:",
        "public traces (",
        "interruption band: 15-20 %",
        "not asked",
        "--mttp",
    ):
        assert words in out


def test_more_and_longer_is_less_probable(run: Run) -> None:
    one, eight, longer = ask(run, count=1), ask(run, count=8), ask(run, "--for", "12h", count=8)
    assert one["lasts"]["value"] > eight["lasts"]["value"] > longer["lasts"]["value"]
    assert eight["vm_count"] == 8
    assert longer["for_s"] == 43200
    assert eight["lasts_if_independent"] < eight["lasts"]["value"]


def test_own_jobs_count(run: Run, place: str) -> None:
    before = ask(run)
    assert before["evidence"]["own_jobs"] is None
    lived(place, 0.2, gangs=10, size=4, refused=12)
    after = ask(run)
    assert after["evidence"]["own_jobs"] == {
        "machines": 40,
        "preemptions": 40,
        "machine_s": pytest.approx(40 * 720),
        "gang": 4.0,
        "refused": 12,
    }
    assert after["lasts"]["value"] < before["lasts"]["value"] / 2
    assert ask(run, "--zone", "us-east-1a")["evidence"]["own_jobs"] == after["evidence"]["own_jobs"]
    assert "that of use1-az1 is unknown" in run(*ASK, "--count", "4", "--zone", "use1-az1")[2]
    elsewhere = ask(run, "--instance-type", "g5.xlarge")
    assert elsewhere["evidence"]["own_jobs"] is None


def test_stored_prices_and_a_limit(run: Run, tmp_path: Path) -> None:
    clone = Clone(tmp_path / "clone", datetime.now(timezone.utc))
    for days, price in ((9, "0.20"), (6, "0.40"), (3, "0.21"), (0.01, "0.22")):
        clone.store(days, row("g4dn.xlarge", price))
    found = ask(run, "--history", str(clone.folder))
    prices = found["evidence"]["prices"]
    assert (prices["limit_counts"], prices["limit_usd_per_hour"]) == (False, 0.526)
    (zone,) = prices["zones"]
    assert (zone["versions"], zone["versions_sold"], zone["usd_per_hour"]) == (4, 4, 0.22)
    assert zone["windows"] == zone["windows_below_limit"] == 53
    capped = ask(run, "--history", str(clone.folder), "--max-price", "0.3")
    assert capped["evidence"]["prices"]["zones"][0]["windows_below_limit"] == 35
    assert capped["both"]["value"] == pytest.approx(found["both"]["value"] * 35.5 / 54)
    other = ask(run, "--zone", "use1-az2", "--history", str(clone.folder))
    assert (other["zone"], other["evidence"]["prices"]) == ("use1-az2", None)
    code, out, _ = run(*ASK, "--count", "2", "--history", str(clone.folder), "--max-price", "0.3")
    assert code == 0
    assert "the price stays at or below $0.3000/h" in out


@pytest.mark.system
def test_a_history_that_is_not_there(run: Run) -> None:
    code, _, err = run(*ASK, "--count", "2", "--history", "none-such")
    assert code == 4 and "none-such" in err


def test_what_cannot_be_asked(run: Run) -> None:
    for words, code, text in [
        (["--count", "0"], 2, "count"),
        (["--count", "2", "--for", "0h"], 2, "for"),
        (["--count", "2", "--for", "4"], 2, "for"),
        (
            ["--count", "2", "--instance-type", "g4dn.xlarg"],
            2,
            "did you mean --instance-type g4dn.xlarge ",
        ),
        (["--count", "2", "--max-price", "1"], 2, "--history"),
        (["--count", "2", "--catalog", "paper"], 2, "region"),
        (["--count", "2", "--catalog", "lambda"], 2, "Lambda"),
        (["--count", "2", "--catalog", "runpod", "-r", ""], 2, "spot market"),
        (["--count", "1.5"], 2, "count"),
        (["--count", "10001"], 2, "10000"),
        (["--count", "2", "--for", "nan"], 2, "for"),
        (["--count", "2", "--for", "1e300h"], 2, "for"),
        (["--count", "2", "--history", ".", "--max-price", "nan"], 2, "max-price"),
        (["--count", "2", "--history", ".", "--max-price", "0"], 2, "max-price"),
        (["--count", "2", "-r", "nowhere"], 2, "nowhere"),
        (["--count", "2", "--zone", "narnia"], 2, "a zone of us-east-1"),
        (["--count", "2", "--zone", "use2-az1"], 2, "a zone of us-east-1"),
        (["--count", "2", "--zone", "us-east-2a"], 2, "a zone of us-east-1"),
        (["--count", "2", "--zone", "us-east-1"], 2, "a zone of us-east-1"),
        (
            ["--count", "2", "--catalog", "paper", "-r", "", "--zone", "use1-az1"],
            2,
            "distinguish zones",
        ),
        (["--count", "2", "--prices", "live", "--offline"], 2, "offline"),
        (["--count", "2", "-o", "xml"], 2, "xml"),
        (["--count", "2", "--days", "91", "--history", "."], 2, "days"),
        (["--count", "2", "--catalog", "paper", "-r", "", "--history", "."], 2, "a cloud's market"),
    ]:
        found, _, err = run(*ASK, *words)
        assert found == code, err
        assert text in err


def test_recommend_takes_prices_from_a_clone(run: Run, tmp_path: Path) -> None:
    clone = Clone(tmp_path / "clone", datetime.now(timezone.utc))
    for days, price in ((9, "0.20"), (6, "0.40"), (3, "0.21")):
        clone.store(days, row("g4dn.xlarge", price))
    words = [
        "recommend",
        "--pw",
        "3",
        "--model",
        "none",
        "--instance-type",
        "g4dn.xlarge",
        "-r",
        "us-east-1",
    ]
    words += [
        "--prices",
        "snapshot",
        "--price-basis",
        "max",
        "--history",
        str(clone.folder),
        "-o",
        "json",
    ]
    code, out, err = run(*words)
    assert code == 0, err
    assert "skypilot-catalog" in out
    group = json.loads(out)["configurations"][0]
    assert "0.4" in json.dumps(group)
    assert "reading 3 stored versions of" in err
    assert "prices of the last 9.0 days, not 30" in err
    words[words.index("max")] = "current"
    code, _, err = run(*words)
    assert code == 0
    assert "has no effect without --price-basis" in err


def test_other_forms(run: Run) -> None:
    wanted = ask(run, count=2)
    code, out, _ = run(*ASK, "--count", "2", "-o", "yaml")
    assert code == 0
    assert yaml.safe_load(out) == wanted
    code, out, _ = run(*ASK, "--count", "2", "-o", "csv")
    assert code == 0
    (only,) = csv.DictReader(io.StringIO(out))
    assert float(only["both.value"]) == pytest.approx(wanted["both"]["value"])
    assert (only["zone"], only["evidence.own_jobs.machines"]) == ("", "")


def test_recommend_says_what_public_traces_say_of_its_cluster(run: Run) -> None:
    words = [
        "recommend",
        "--pw",
        "3",
        "--model",
        "none",
        "--work",
        "50h",
        "-r",
        "us-east-1",
        "--prices",
        "snapshot",
    ]
    code, out, err = run(*words)
    assert code == 0, err
    found = re.search(
        r"all (\d+) live through ([\d.]+) h with (\d+)% \((\d+)% to (\d+)%\), as with '--mttp"
        r" ([\d.]+)d'",
        " ".join(out.split()),
    )
    assert found is not None, out
    count, hours, percent, low, high, days = (float(text) for text in found.groups())
    assert math.exp(-count * hours / 24 / days) == pytest.approx(percent / 100, abs=0.006)
    # The same numbers as those of deepvm survive.
    same = ask(run, "--for", f"{hours}h", count=int(count))
    assert same["lasts"]["value"] == pytest.approx(percent / 100, abs=0.006)
    assert [100 * same["lasts"][end] for end in ("low", "high")] == pytest.approx(
        [low, high], abs=0.6
    )
    code, out, _ = run(*words, "--mttp", "12h")
    assert code == 0
    assert "public traces" not in out


@pytest.mark.parametrize(
    ("more", "first"),
    [
        (["--pw", "3"], "the same cluster"),
        (["--pw", "30", "--save-policy", "static:1000000"], "52 x g4dn.xlarge spot"),
    ],
)
def test_recommend_says_what_comes_first_by_public_traces(
    run: Run, more: list[str], first: str
) -> None:
    """Doubt in how long VMs live is carried into the ranking: the bands of all types are off by the
    same factor.
    """
    words = [
        "recommend",
        "--model",
        "none",
        "--work",
        "500h",
        "-r",
        "us-east-1",
        "--prices",
        "snapshot",
        *more,
    ]
    code, out, err = run(*words)
    assert code == 0, err
    said = re.search(
        r"all types live ([\d.]+)% shorter, (.*?) comes first \(([\d.]+) (h|d), \$([\d.]+)\)",
        " ".join(out.split()),
    )
    assert said is not None and said[2].startswith(first)
    factor, hours = 1 - float(said[1]) / 100, float(said[3]) * (24 if said[4] == "d" else 1)
    work = {"work": "500h", "save_policy": more[-1] if len(more) > 2 else "adaptive"}
    catalog = load_catalog("aws-us-east-1", prices="snapshot")
    shorter = [
        replace(i, known_life=KnownLifetime(life_s, life_s, life_s, 9, 9, 0.0))
        for i in catalog
        for life_s in [
            factor
            * mean_life_s(BAND_SHARES[-1 if i.interruption_band is None else i.interruption_band])
        ]
    ]
    other = deepvm.recommend(replace(catalog, instances=tuple(shorter)), more[1], **work)[0]
    assert other.outlook is not None
    assert (other.outlook.total_s / 3600, other.outlook.cost_usd) == pytest.approx(
        (hours, float(said[5])), rel=2e-3
    )


def test_golden(run: Run, place: str) -> None:
    """``WRITE_GOLDEN=1`` writes it anew."""
    lived(place, 5.0, gangs=10, size=4, refused=12)
    code, out, err = run(*ASK, "--count", "8")
    assert code == 0, err
    path = GOLDEN_FOLDER / "survive.txt"
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(out)
    assert out == path.read_text()


_WITHOUT_SOCKETS = """
import socket
import sys
from deepvm.cli.main import main

seen = []
sys.addaudithook(lambda event, args: seen.append(event) if event.startswith("socket.") else None)
try:
    words = ["--instance-type", "g4dn.xlarge", "--count", "8", "--for", "4h", "--offline"]
    main(["survive", *words, *sys.argv[1:]])
except SystemExit as end:
    assert end.code in (0, None), end.code
assert not seen, seen
print("boto3" in sys.modules)
"""


def test_without_network_cache_and_credentials(tmp_path: Path) -> None:
    """A machine of its own: nothing in any of its folders, no variables, and no socket."""
    home = {
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_SOCKETS],
        env={**home, **COUNTED},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "8 x g4dn.xlarge on the spot market of us-east-1" in done.stdout
    assert done.stdout.endswith("False\n")
    assert "Traceback" not in done.stderr
