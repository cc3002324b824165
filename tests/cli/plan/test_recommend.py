"""The command line as people and scripts meet it: golden outputs, exit codes, pipes, terminals,
interruptions.
"""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.command import Run
from support.places import GOLDEN_FOLDER

from deepvm.planner.request import PolicyName

GOLDEN = GOLDEN_FOLDER
COMMAND = [sys.executable, "-m", "deepvm.cli.main"]


def settled(text: str) -> str:
    """Without what changes from day to day and from machine to machine: ages, and digits past the
    tenth.
    """
    text = re.sub(r"\d+(\.\d+)? (years|days) old", "<age> old", text)
    return re.sub(r"\d+\.\d{6,}(e[+-]?\d+)?", lambda m: f"{float(m[0]):.9g}", text)


GOLDENS = {
    "recommend.txt": ["recommend", "--pw", "3", "--catalog", "paper"],
    "recommend-wide.txt": ["recommend", "--pw", "6.5", "--output", "wide", "--catalog", "paper"],
    "recommend.json": ["recommend", "--pw", "3", "-o", "json", "--catalog", "paper"],
    "recommend.yaml": ["recommend", "--pw", "3", "-o", "yaml", "--top", "1", "--catalog", "paper"],
    "recommend.csv": ["recommend", "--pw", "6.5", "-o", "csv", "--catalog", "paper"],
    "recommend-explain.txt": [
        "recommend",
        "--pw",
        "3",
        "--explain",
        "g5.xlarge",
        "--catalog",
        "paper",
    ],
    "recommend-clamped.txt": [
        "recommend",
        "--pw",
        "0.6",
        "--catalog",
        "simulated",
        "--instance-type",
        "F",
    ],
    "recommend-infeasible.txt": ["recommend", "--pw", "0.3", "--catalog", "paper"],
    "recommend-infeasible.json": ["recommend", "--pw", "0.3", "-o", "json", "--catalog", "paper"],
    "recommend-infeasible-memory.txt": [
        "recommend",
        "--pw",
        "3",
        "--checkpoint-size",
        "1TB",
        "--architecture",
        "tiering",
        "--catalog",
        "paper",
    ],
    "recommend-cost-first.txt": [
        "recommend",
        "--pw",
        "3",
        "--policy",
        "cost-first",
        "--catalog",
        "paper",
    ],
    "recommend-cost-per-work.txt": [
        "recommend",
        "--pw",
        "3",
        "--objective",
        "cost-per-work",
        "--catalog",
        "paper",
    ],
    "recommend-work.txt": [
        "recommend",
        "--pw",
        "3",
        "--catalog",
        "paper",
        "--work",
        "100",
        "--mttp",
        "12h",
    ],
    "recommend-work-late.txt": [
        *(
            "recommend",
            "--pw",
            "3",
            "--catalog",
            "paper",
            "--work",
            "100",
            "--mttp",
            "12h",
            "--deadline",
            "12h",
        )
    ],
    "recommend-work.csv": [
        *(
            "recommend",
            "--pw",
            "3",
            "--catalog",
            "paper",
            "--work",
            "100",
            "--objective",
            "total-cost",
        ),
        *("--interruption-rate", "10%", "--deadline", "60h", "-o", "csv"),
    ],
    "explain-memory-node.txt": ["explain", "c6in.xlarge", "--pw", "3", "--catalog", "paper"],
    "explain-unprofiled.txt": ["explain", "p2.xlarge", "--pw", "3", "--catalog", "paper"],
    "sweep.txt": ["sweep", "--pw", "0:3:1", "--catalog", "simulated"],
    "sweep.csv": ["sweep", "--pw", "0:3:1", "--catalog", "simulated", "-o", "csv"],
    "sweep.json": [
        "sweep",
        "--pw",
        "0.3,3",
        "--policy",
        "deepvm",
        "-o",
        "json",
        "--catalog",
        "paper",
    ],
}
"""The paper's catalog does not change, so these outputs change with the code alone.

AWS's are in the README.
"""


@pytest.fixture(autouse=True)
def _on_the_papers_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user would have it, by a setting; an option beats it."""
    monkeypatch.setenv("DEEPVM_CATALOG", "paper")


def test_golden(run: Run) -> None:
    for name in GOLDENS:
        code, out, err = run(*GOLDENS[name])
        found = settled(f"$ deepvm {' '.join(GOLDENS[name])}\n# exit {code}\n{out}# stderr\n{err}")
        path = GOLDEN / name
        if os.environ.get("WRITE_GOLDEN"):
            path.write_text(found)
        assert found == path.read_text()


def test_every_golden_file_is_used() -> None:
    assert {
        p.name for p in GOLDEN.iterdir() if p.name.startswith(("recommend", "explain", "sweep"))
    } == set(GOLDENS)


def test_json_has_the_pinned_keys(run: Run) -> None:
    code, out, _ = run("recommend", "--pw", "3", "-o", "json")
    found = json.loads(out)
    assert code == 0
    assert {
        "schema_version",
        "request",
        "source",
        "configurations",
        "alternatives",
        "rejected",
    } <= set(found)
    assert found["schema_version"] == "deepvm.recommend/1"
    pinned = {
        "pw_usd_per_hour": 3.0,
        "catalog": "paper",
        "objective": "throughput",
        "policy": "deepvm",
    }
    pinned |= {
        "speedup": "hybrid",
        "checkpoint_bytes": 300_000_000,
        "buffers": 2,
        "top": 3,
        "solver": "ilp",
    }
    assert pinned.items() <= found["request"].items()
    source = {
        "catalog": "paper",
        "region": "us-east-1",
        "prices_as_of": "2023-10-01",
        "kind": "embedded",
    }
    assert source.items() <= found["source"].items()
    first = found["configurations"][0]
    gpu = {"instance_type": "g4dn.xlarge", "count": 17, "spot_count": 17, "on_demand_count": 0}
    assert gpu.items() <= first["gpu"].items()
    assert {"instance_type": "c5.xlarge", "count": 1}.items() <= first["memory"].items()
    assert (first["rank"], first["architecture"], first["usd_per_hour"]) == (1, "tiering", 2.8526)
    assert first["speedup"] == pytest.approx(3.9202, abs=1e-4)
    assert first["scaling_factor"] == pytest.approx(0.2306, abs=1e-4)
    assert first["throughput"] == pytest.approx(1477.924, abs=1e-3)
    assert first["flopp_spot"] == pytest.approx(377 * 3600 / 0.1578)
    assert first["z"] == pytest.approx(9365.806, abs=1e-3)
    assert first["usd_per_work"] == pytest.approx(2.8526 / 1477.924, rel=1e-6)
    assert first["binding"] == ["budget"]
    assert {r["instance_type"]: r["reason"] for r in found["rejected"]}["p2.xlarge"] == "unprofiled"


def test_formats_agree(run: Run) -> None:
    words = ["recommend", "--pw", "6.5", "-o"]
    as_json = json.loads(run(*words, "json")[1])
    assert yaml.safe_load(run(*words, "yaml")[1]) == as_json
    rows = list(csv.DictReader(io.StringIO(run(*words, "csv")[1])))
    assert [
        (r["instance_type"], int(r["vm_count"]), float(r["usd_per_hour"]), float(r["throughput"]))
        for r in rows
    ] == [
        (c["gpu"]["instance_type"], c["gpu"]["count"], c["usd_per_hour"], c["throughput"])
        for c in as_json["configurations"]
    ]


USAGE = [
    (["recommend"], "--pw"),
    (["recommend", "--pw", "-1"], "--pw: '-1'"),
    (["recommend", "--pw", "nan"], "--pw: 'nan'"),
    (["recommend", "--pw", "inf"], "--pw: 'inf'"),
    (["recommend", "--pw", "abc"], "--pw: 'abc'"),
    (["recommend", "--pw", ""], "--pw: not given or empty (expected USD/H"),
    (["recommend", "--pw", "3", "--checkpoint-size", "many"], "--checkpoint-size: 'many'"),
    (["recommend", "--pw", "3", "--checkpoint-size", "3 parsecs"], "such as 300MB"),
    (["recommend", "--pw", "3", "--checkpoint-size", "0"], "--checkpoint-size: '0'"),
    (["recommend", "--pw", "3", "--buffers", "0"], "--buffers: '0'"),
    (
        ["recommend", "--pw", "3", "--buffers", "two"],
        "--buffers: 'two' (expected a whole number from 1",
    ),
    (["recommend", "--pw", "3", "--top", "0"], "a whole number from 1 to 100"),
    (["recommend", "--pw", "3", "--max-nodes", "1000000"], "from 1 to 4096"),
    (["recommend", "--pw", "3", "--objective", "fast"], "throughput, flopp"),
    (["recommend", "--pw", "3", "--policy", "best"], "deepvm, noscale"),
    (
        ["recommend", "--pw", "3", "--architecture", "flat"],
        "single-anchor or spot-storage or tiering",
    ),
    (["recommend", "--pw", "3", "--instance-type", "g4d.*"], "--instance-type: 'g4d.*'"),
    (["recommend", "--pw", "3", "--gpu", "H100"], "such as"),
    (["recommend", "--pw", "3", "--memory-node", "g5.xlarge"], "--memory-node"),
    (["recommend", "--pw", "3", "--explain", "g6.xlarge"], "g5.xlarge"),
    (["recommend", "--pw", "3", "--time-limit", "0"], "--time-limit: '0'"),
    (["recommend", "--pw", "3", "--output", "xml"], "'json'"),
    (["recommend", "--pw", "3", "--no-such-option"], "--no-such-option"),
    (["sweep", "--pw", "10:0:1"], "high >= low"),
    (["sweep", "--pw", "0:10:0"], "--pw: '0'"),
    (["sweep", "--pw", "0:1"], "low:high:step"),
    (["sweep", "--pw", "0:1000000:0.001"], "at most 100000 budgets"),
    (["sweep", "--pw", "1", "--policy", "best"], "noscale"),
    (["sweep", "--pw", "1", "--plot", "figure.bmp"], ".png or .svg"),
    (["no-such-command"], "no-such-command"),
]


def test_wrong_usage_names_option_value_and_range(run: Run) -> None:
    for words, named in USAGE:
        code, out, err = run(*words)
        assert (code, out) == (2, "")
        assert named in err


def test_missing_data_is_exit_4(run: Run) -> None:
    for words, named in [
        (["--catalog", "no-such"], "paper"),
        (["--catalog", "no-such.json"], "no-such.json"),
        (["--catalog", "/"], "/"),
        (["--region", "eu-west-1"], "eu-west-1"),
        (["--catalog", "simulated", "--speedup", "ring"], "hybrid"),
        (["--quota", "no-such-quota.json"], "no-such-quota.json"),
    ]:
        code, out, err = run("recommend", "--pw", "3", *words)
        assert (code, out) == (4, "")
        assert named in err


def test_quota_options(tmp_path: Path, run: Run) -> None:
    words = [
        "recommend",
        "--pw",
        "10",
        "-o",
        "json",
        "--top",
        "1",
        "--instance-type",
        "g4dn.*",
        "--quota",
    ]
    limited = tmp_path / "quotas.json"
    limited.write_text(
        json.dumps(
            {
                "schema_version": "deepvm.quotas/1",
                "quotas": [{"family": "G and VT", "market": "spot", "vcpus": 16}],
            }
        )
    )
    first = json.loads(run(*words, str(limited))[1])["configurations"][0]
    assert (first["gpu"]["spot_count"], first["binding"]) == (4, ["quota"])
    free = json.loads(run(*words, "none")[1])["configurations"][0]
    assert free["gpu"]["count"] > 33


def test_a_profile_says_that_it_has_no_effect(run: Run) -> None:
    code, _, err = run("recommend", "--pw", "3", "--profile", "work", "--region", "us-east-1")
    assert code == 0
    assert "--profile has no effect" in err


def test_money_with_many_decimals_and_tiny_budgets(run: Run) -> None:
    assert (
        run("recommend", "--pw", "2.85259999999", "-o", "csv")[1].splitlines()[1].split(",")[3]
        == "16"
    )
    assert run("recommend", "--pw", "2.8526", "-o", "csv")[1].splitlines()[1].split(",")[3] == "17"
    assert run("recommend", "--pw", "1e-30")[0] == 3
    assert run("recommend", "--pw", "0")[0] == 3
    assert run("recommend", "--pw", "1e9")[0] == 0


def test_sweep_has_every_row(run: Run) -> None:
    out = run("sweep", "--pw", "0:10:0.1", "--catalog", "simulated", "-o", "csv")[1]
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == 101 * 4
    assert {r["pw"] for r in rows} == {f"{i / 10:g}" for i in range(101)}
    by_budget: dict[str, dict[str, float]] = {}
    for r in rows:
        by_budget.setdefault(r["pw"], {})[r["policy"]] = float(r["throughput"] or 0)
    assert all(max(p.values()) <= p["deepvm"] * (1 + 1e-9) for p in by_budget.values())


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_sweep_draws(ending: str, tmp_path: Path, run: Run) -> None:
    target = tmp_path / f"figure.{ending}"
    code, out, err = run(
        "sweep", "--pw", "0:2:0.5", "--catalog", "simulated", "-o", "csv", "--plot", str(target)
    )
    assert code == 0
    assert out.startswith("pw,policy,")
    assert str(target) in err
    assert target.stat().st_size > 1000


def test_a_picture_that_cannot_be_written(tmp_path: Path, run: Run) -> None:
    target = tmp_path / "no" / "folder.png"
    code, _, err = run("sweep", "--pw", "1", "--plot", str(target))
    assert code == 2
    assert str(target) in err and "a file in a folder that exists" in err


def test_explain_takes_filters_and_formats(run: Run) -> None:
    words = ["explain", "g5.xlarge", "--pw", "3", "-o", "json"]
    plain = json.loads(run(*words)[1])
    assert (plain["schema_version"], plain["instance_type"]) == ("deepvm.explain/1", "g5.xlarge")
    assert plain["configuration"]["gpu"]["instance_type"] == "g5.xlarge"
    under = json.loads(run("recommend", "--pw", "3", "--explain", "g5.xlarge", "-o", "json")[1])[
        "explanation"
    ]
    assert plain.pop("source")["catalog"] == "paper"
    assert {k: v for k, v in plain.items() if k != "schema_version"} == under
    excluded = json.loads(run(*words, "--exclude", "g5*")[1])
    assert excluded["rejection"]["reason"] == "excluded"
    code, _, err = run("explain", "g6.xlarge", "--pw", "3")
    assert code == 2
    assert err.startswith("Error: invalid value for TYPE: 'g6.xlarge'")


def test_a_quota_file_that_names_a_strange_family(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "quotas.json"
    file.write_text(
        '{"schema_version": "deepvm.quotas/1", "quotas": [{"family": "G", "market": "spot",'
        ' "vcpus": 4}]}'
    )
    code, _, err = run("recommend", "--pw", "3", "--quota", str(file))
    assert code == 0
    assert "'G'" in err and "G and VT" in err


def test_a_time_limit_leaves_the_enumerations_answer(run: Run) -> None:
    code, out, _ = run("recommend", "--pw", "3", "--time-limit", "0.000001")
    assert code == 0
    assert "17 g4dn.xlarge  1 c5.xlarge    2.8526" in out
    assert "Not proven (time-limit)" in out


def test_a_time_limit_that_was_reached_is_named_in_every_answer(run: Run) -> None:
    for words in [["--pw", "3"], ["--pw", "3", "-o", "csv"], ["--pw", "3", "-o", "json"]]:
        trained = ["--catalog", "aws-us-east-1", "--model", "resnet50"]
        late = run("recommend", *words, *trained, "--time-limit", "0.000001")
        shown = " ".join((late[1] + late[2]).split())
        assert "not proven: the time limit ended the integer program" in shown
        proven = run("recommend", *words, *trained)
        assert "not proven" not in proven[1] + proven[2] and proven[0] == late[0]


def test_every_policy_states_gains_that_its_table_shows(run: Run) -> None:
    for policy in PolicyName:
        for budget in ("1.3", "3", "6.5"):
            words = [
                "recommend",
                "--pw",
                budget,
                "--policy",
                policy.value,
                "-o",
                "json",
                "--explain",
                "g5.xlarge",
            ]
            found = json.loads(run(*words)[1])
            first, change, why = (
                found["configurations"][0],
                found["next_change"],
                found["explanation"],
            )
            if change:
                better = change["configuration"]["throughput"] / first["throughput"] - 1
                assert change["gain"] == pytest.approx(better), (policy, budget)
            if why["configuration"]:
                assert why["gap"] == pytest.approx(
                    1 - why["configuration"]["throughput"] / first["throughput"]
                )


def test_figures_to_act_on_are_enough(tmp_path: Path, run: Run) -> None:
    """A budget that a message names is enough when it is asked for."""
    document = json.loads(run("catalog", "show", "paper", "-o", "json")[1])
    for instance in document["instances"]:
        if instance["instance_type"] == "g4dn.xlarge":
            instance["spot_usd_per_hour"] = 0.157849
    file = tmp_path / "odd.json"
    file.write_text(json.dumps(document))
    code, _, err = run("recommend", "--pw", "0.3", "--catalog", str(file))
    assert code == 3
    named = re.search(r"cheapest feasible cluster costs \$(\S+)/h", err)
    assert named and named[1] == "0.3243"
    code, out, _ = run("recommend", "--pw", named[1], "--catalog", str(file))
    assert code == 0
    more = re.search(r"More money: \$(\S+)/h buys .*: (\d+) x ", out)
    assert more
    assert more[2] in run("recommend", "--pw", more[1], "--catalog", str(file))[1]
    fits = re.search(
        r"up to (\S+) (\S+)B\.",
        run("recommend", "--pw", "3", "--checkpoint-size", "1TB", "--architecture", "tiering")[2],
    )
    assert fits
    assert (
        run(
            "recommend",
            "--pw",
            "3",
            "--checkpoint-size",
            f"{fits[1]}{fits[2]}B",
            "--architecture",
            "tiering",
        )[0]
        == 0
    )


# --- as a process: pipes, terminals, full disks, signals ---


def process(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, timeout=120, **options
    )


def test_a_pipe_gets_no_boxes_and_no_colour() -> None:
    found = process(
        "recommend", "--pw", "3", env={**os.environ, "COLUMNS": "40", "FORCE_COLOR": ""}
    )
    assert found.returncode == 0
    assert not set(found.stdout) & set("│┃━─\x1b")
    # Nothing is cut off or wrapped
    assert "17 g4dn.xlarge  1 c5.xlarge    2.8526      1477.9  budget" in found.stdout


def on_a_terminal(*words: str, **environment: str) -> str:
    """What the command writes to a terminal."""
    parent, child = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "TERM")}
    env |= {"TERM": "xterm-256color"} | environment
    with subprocess.Popen(
        [*COMMAND, *words], stdin=child, stdout=child, stderr=subprocess.DEVNULL, env=env
    ) as running:
        os.close(child)
        text = b""
        while True:
            try:
                chunk = os.read(parent, 65536)
            except OSError:  # the terminal is closed when the process ends
                break
            if not chunk:
                break
            text += chunk
        running.wait(60)
    os.close(parent)
    return text.decode()


def test_a_terminal_gets_a_table_of_its_width() -> None:
    shown = on_a_terminal("recommend", "--pw", "6.5", COLUMNS="80")
    assert "\x1b[1;32m1  " in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert max(len(line) for line in plain.splitlines()) <= 80
    assert "1  single-anchor  32 g4dn.xlarge  1 g4dn.xlarge  5.5756" in plain  # nothing is folded


def test_no_color_and_dumb_terminals() -> None:
    colors = re.compile(r"\x1b\[[0-9;]*3[0-7]m")
    assert colors.search(on_a_terminal("recommend", "--pw", "3"))
    assert not colors.search(on_a_terminal("recommend", "--pw", "3", NO_COLOR="1"))
    assert "\x1b" not in on_a_terminal("recommend", "--pw", "3", TERM="dumb")


def test_a_reader_that_goes_away_is_quiet() -> None:
    words = [*COMMAND, "sweep", "--pw", "0:100:0.5", "-o", "csv"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None and running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == ""
        assert running.wait(60) == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_said() -> None:
    with open("/dev/full", "w") as full:
        found = subprocess.run(
            [*COMMAND, "recommend", "--pw", "3", "-o", "json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert found.returncode == 1
    assert "No space left" in found.stderr
    assert "Traceback" not in found.stderr


def test_an_interruption_is_exit_130() -> None:
    code = (
        "import deepvm.services.open_catalogs as m\n"
        "def stop(*a, **k): raise KeyboardInterrupt\n"
        "m.CatalogOpener.all = stop\n"
        "from deepvm.cli.main import main\n"
        "main(['recommend', '--pw', '3'])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.returncode == 130
    assert found.stderr == "Error: interrupted\n"


def test_a_bug_is_one_line_unless_debug() -> None:
    code = (
        "import deepvm.services.open_catalogs as m, sys\n"
        "def fail(*a, **k): raise RuntimeError('broken')\n"
        "m.CatalogOpener.all = fail\n"
        "from deepvm.cli.main import main\n"
        "main(sys.argv[1:])"
    )
    call = [sys.executable, "-c", code, "recommend", "--pw", "3"]
    quiet = subprocess.run(call, capture_output=True, text=True, timeout=60)
    assert quiet.returncode == 1
    assert "RuntimeError: broken" in quiet.stderr
    assert "Traceback" not in quiet.stderr
    loud = subprocess.run([*call, "--debug"], capture_output=True, text=True, timeout=60)
    assert "Traceback" in loud.stderr


def test_version_and_help() -> None:
    assert re.fullmatch(r"deepvm \d+\.\d+\.\d+\n", process("--version").stdout)
    shown = process("recommend", "--help")
    assert shown.returncode == 0
    assert not set(shown.stdout) & set("│╭╰\x1b")
    for option in ("--pw", "--catalog", "--region", "--checkpoint-size", "--explain", "--quota"):
        assert option in shown.stdout


def test_a_file_that_knows_zones_is_planned_within_the_one_asked_for(
    run: Run, tmp_path: Path
) -> None:
    def zone(name: str, price: float) -> dict[str, object]:
        return {"zone": name, "usd_per_hour": price}

    gpu = {
        "instance_type": "g", "vcpus": 4, "memory_gib": 16, "network_gbps": 10,
        "on_demand_usd_per_hour": 0.5,
        "spot_usd_per_hour": 0.2, "gpu": {"name": "T4", "count": 1}, "eflops": 100,
        "speedups": [{"kind": "ring", "c": 0.5, "l": 0}],
        "spot_zones": [zone("a1", 0.2), zone("b2", 0.25)],
    }  # fmt: skip
    node = {
        "instance_type": "m",
        "vcpus": 4,
        "memory_gib": 16,
        "network_gbps": 10,
        "on_demand_usd_per_hour": 0.1,
    }
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"schema_version": "deepvm.catalog/1", "instances": [gpu, node]}))
    code, out, err = run(
        "recommend", "--catalog", str(file), "--pw", "2", "--zone", "b2", "-o", "json"
    )
    assert (code, "no effect" in err) == (0, False)
    assert {
        (c["zone"], c["gpu"]["spot_usd_per_hour"]) for c in json.loads(out)["configurations"]
    } == {("b2", 0.25)}
    code, out, err = run("recommend", "--catalog", str(file), "--pw", "2", "--zone", "c3")
    assert (code, out) == (2, "") and "a1, b2" in err
    code, _, err = run("recommend", "--catalog", "paper", "--pw", "3", "--zone", "a1")
    assert code == 0 and "--zone a1 has no effect: catalog paper does not distinguish zones" in err


def test_an_id_of_hugging_face_names_its_preset(run: Run) -> None:
    words = ("recommend", "--pw", "12", "--offline", "--model")
    _, out, err = run(*words, "meta-llama/Llama-3.1-8B")
    assert "meta-llama/Llama-3.1-8B: planned as llama-8b" in err
    assert out == run(*words, "llama-8b")[1]
