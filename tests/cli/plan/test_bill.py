"""The whole bill on the command line: one line in the answer, items with sources in the reasons,
the same in JSON.
"""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from support.command import Run

from deepvm.core.extras import COSTS

ASKED = [
    "recommend",
    "--pw",
    "3",
    "--prices",
    "snapshot",
    "--region",
    "us-east-1",
    "--model",
    "llama-8b",
]
LORA = [*ASKED, "--method", "lora"]
POOL = {"name": "block-1", "instance_type": "p5.4xlarge", "count": 4, "usd_per_hour": 0.7}


def document(run: Run, *words: str) -> dict[str, Any]:
    code, out, err = run(*LORA, "-o", "json", *words)
    assert code == 0, err
    parsed: dict[str, Any] = json.loads(out)
    return parsed


def reserved(tmp_path: Path, **changes: Any) -> str:
    file = tmp_path / "reserved.json"
    file.write_text(
        json.dumps({"schema_version": "deepvm.reserved/1", "pools": [{**POOL, **changes}]})
    )
    return str(file)


def screen(run: Run, *words: str) -> str:
    """The default answer, in one line."""
    return " ".join(run(*words)[1].split())


def test_the_answer_has_one_line_and_the_reasons_every_item_with_its_source(run: Run) -> None:
    words = [*LORA, "--disk", "200GB", "--egress", "50GB", "--exclude-cost", "boot"]
    line = screen(run, *words).partition("besides VMs")[2].partition("To rent")[0]
    assert (
        "(disk, addresses, egress)" in line and "$4.50 (" in line and "without bucket, boot" in line
    )
    items = [
        text for text in run(*words, "--why")[1].splitlines() if text.startswith("Besides VMs, ")
    ]
    assert [text.split(":")[0] for text in items] == [
        f"Besides VMs, {n}" for n in ("disk", "addresses", "egress")
    ]
    assert all("(https://" in text for text in items)
    assert line.startswith(": $0.")


def test_help_names_the_costs_and_loads_no_bills() -> None:
    words = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "deepvm.cli.main",
        "help",
        "recommend",
        "--all",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert f"Costs not to count: {', '.join(COSTS)} or all" in " ".join(done.stdout.split())
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "deepvm.planner.options" in loaded
    loaded -= {"deepvm.catalog", "deepvm.catalog.price_sources"}  # the names of sources alone
    assert not [
        name
        for name in loaded
        if name.startswith(("deepvm.core.bill", "deepvm.core.units", "deepvm.catalog"))
    ]


def test_json_has_the_same_bill_for_every_cluster(run: Run) -> None:
    found = document(run, "--disk", "200GB", "--egress", "50GB", "--tokens", "200M")
    first = found["configurations"][0]
    vms = first["gpu"]["count"] + (first["memory"]["count"] if first["memory"] else 0)
    items = {item["name"]: item for item in first["bill"]["items"]}
    assert items["disk"]["usd_per_hour"] == pytest.approx(vms * 200 * 0.08 / 730, abs=1e-5)
    assert items["disk"]["official"] is True and items["egress"]["official"] is True
    assert items["egress"]["usd_once"] == 4.5 and items["egress"]["as_of"] == "2026-12-01"
    hours = first["expected"]["makespan_s"] / 3600
    whole = first["bill"]["total_usd_per_hour"] * hours + 4.5
    assert (
        first["bill"]["total_usd"]
        == first["expected"]["total_cost_usd"]
        == pytest.approx(whole, rel=0.01)
    )
    assert first["bill"]["in_budget"] is True and first["bill"]["total_usd_per_hour"] <= 3
    assert first["bill"]["total_usd_per_hour"] == pytest.approx(
        first["usd_per_hour"] + first["bill"]["usd_per_hour"]
    )
    others = [*found["configurations"], *found["alternatives"], found["on_demand"]]
    assert all("bill" in other for other in others)
    assert found["request"]["extras"]["disk_gb"] == 200


def test_simulated_runs_pay_for_all_of_it_too(run: Run) -> None:
    job = [
        "recommend",
        "--pw",
        "3",
        "--model",
        "none",
        "--work",
        "50h",
        "--prices",
        "snapshot",
        "--disk",
        "200GB",
    ]
    words = [*job, "--egress", "500GB", "-o", "json"]
    usual, simulated = (
        json.loads(run(*words, *more)[1])["configurations"][0]
        for more in ([], ["--simulate", "200"])
    )
    assert usual["gpu"] == simulated["gpu"]
    assert simulated["expected"]["runs"] == 200
    costs = [found["expected"]["total_cost_usd"] for found in (usual, simulated)]
    assert costs[1] == pytest.approx(costs[0], rel=0.05)
    assert costs[0] > 45 + usual["usd_per_hour"] * usual["expected"]["makespan_s"] / 3600


def test_the_page_says_it_too(run: Run) -> None:
    assert "Besides VMs, disk" in run(*LORA, "--disk", "200GB", "-o", "html")[1]


def test_more_than_the_budget_of_vms_is_called_out(run: Run) -> None:
    """Addresses count only once something is said of what comes besides VMs."""
    price = document(run)["configurations"][0]["usd_per_hour"]
    words = [str(price) if word == "3" else word for word in LORA]
    assert "! besides VMs" in (out := screen(run, *words)) and f"more than ${price}/h" in out
    assert "! besides VMs" not in screen(run, *words, "--disk", "0GB")


def test_disks_that_the_budget_cannot_pay_are_refused_with_the_price_of_all(run: Run) -> None:
    code, _, err = run(*LORA, "--disk", "100TB")
    assert code == 3 and re.search(r"\$[0-9.]+/h in all \(", err)


def test_csv_has_it_in_columns(run: Run) -> None:
    rows = list(
        csv.DictReader(
            io.StringIO(run(*LORA, "--disk", "200GB", "--egress", "50GB", "-o", "csv")[1])
        )
    )
    for row in rows:
        total = float(row["usd_per_hour"]) + float(row["besides_usd_per_hour"])
        assert float(row["in_all_usd_per_hour"]) == pytest.approx(total) and total <= 3
        assert float(row["besides_usd_once"]) >= 4.5
    without = run("recommend", "--pw", "3", "--catalog", "paper", "-o", "csv")[1]
    assert "besides" not in without.splitlines()[0]


def test_without_rates_the_options_say_that_they_do_nothing(run: Run) -> None:
    _, out, err = run("recommend", "--pw", "3", "--catalog", "paper", "--disk", "10GB", "--nat")
    assert "--disk has no effect: no rates are known for catalog paper" in err
    assert "--nat has no effect" in err and "Not counted: disks, data transfer" in out


def test_what_cannot_be_is_refused_by_the_options_name(run: Run) -> None:
    for words, named in [
        (["--disk", "200"], "--disk"),
        (["--egress", "a lot"], "--egress"),
        (["--disk", "1GB", "--disk-type", "gp9"], "--disk-type"),
        (["--exclude-cost", "coffee"], "--exclude-cost"),
        (["--savings-plan", "28"], "--savings-plan"),
        (["--savings-plan", "p9.*=28%"], "--savings-plan"),
    ]:
        code, _, err = run(*LORA, *words)
        assert code == 2 and named in err


def test_a_savings_plan_lowers_what_is_on_demand_and_plans_carry_it(run: Run) -> None:
    usual, saved = (
        document(run, "--architecture", "on-demand", *more)
        for more in ([], ["--savings-plan", "40%"])
    )
    first = saved["configurations"][0]["gpu"]
    assert (
        first["on_demand_discount"] == 0.4
        and "on_demand_discount" not in usual["configurations"][0]["gpu"]
    )
    assert saved["configurations"][0]["throughput"] >= usual["configurations"][0]["throughput"]


def test_a_reserved_pool_is_planned_with_its_price_count_and_end(run: Run, tmp_path: Path) -> None:
    file = reserved(tmp_path, until="2100-01-01T00:00:00Z", kind="capacity-block")
    gpu = document(run, "--reserved", file)["configurations"][0]["gpu"]
    assert gpu["instance_type"] == "p5.4xlarge" and gpu["reserved"]["pool"] == "block-1"
    assert gpu["on_demand_count"] == gpu["count"] <= 4 and gpu["on_demand_usd_per_hour"] == 0.7
    text = screen(run, *LORA, "--reserved", file)
    assert (
        "p5.4xlarge@block-1" in text
        and "ends at 2099-12-31 23:30 UTC, 30 min before the block" in text
    )


def test_a_pool_that_has_ended_is_told(run: Run, tmp_path: Path) -> None:
    code, _, err = run(*LORA, "--reserved", reserved(tmp_path, until="2020-01-01T00:00:00Z"))
    assert code == 0 and "reserved pool block-1 ended at 2020-01-01" in err


def test_a_price_that_is_hardly_right_is_asked_about(run: Run, tmp_path: Path) -> None:
    assert (
        "is its price right?" in run(*LORA, "--reserved", reserved(tmp_path, usd_per_hour=0.001))[2]
    )


def test_a_bad_file_of_pools_names_the_place(run: Run, tmp_path: Path) -> None:
    code, _, err = run(*LORA, "--reserved", reserved(tmp_path, count=0))
    assert code == 4 and "count" in err


def soon(hours: float) -> str:
    return (datetime.now(timezone.utc) + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_a_pool_that_ends_before_the_job_is_left_out_with_its_end_on_the_first_screen(
    run: Run, tmp_path: Path
) -> None:
    words = [*LORA, "--reserved", reserved(tmp_path, until=soon(24)), "--tokens", "20B"]
    out = screen(run, *words)
    first = out.partition("! p5.4xlarge@block-1 is")[2]
    assert "left out: its pool ends at" in first and "the job would take" in first
    assert "deepvm run --help" in out  # the plan is of others
    code, out, _ = run(*words, "--all")
    assert code == 0
    assert "Not considered (reserved): p5.4xlarge@block-1: its pool ends at" in out


def test_what_to_do_next_with_a_reserved_plan_is_what_works(run: Run, tmp_path: Path) -> None:
    """``run`` and the other exports refuse it."""
    words = [*LORA, "--reserved", reserved(tmp_path, until=soon(2400))]
    out = run(*words)[1]
    assert "deepvm run" not in out and "deepvm export plan.json --to torchrun" in " ".join(
        out.split()
    )
    plan = tmp_path / "plan.json"
    plan.write_text(run(*words, "-o", "json")[1])
    assert (
        run("export", str(plan), "--to", "torchrun", "--output-dir", str(tmp_path / "launch"))[0]
        == 0
    )
    code, _, err = run("export", str(plan), "--to", "skypilot")
    assert code == 2 and "are reserved" in err
