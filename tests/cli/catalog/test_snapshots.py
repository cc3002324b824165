"""``--cloud`` without a network: the prices of six clouds that come with deepvm."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from deepvm.catalog.clouds import REGISTRY

Run = Callable[..., tuple[int, str, str]]
OTHERS = [name for name in REGISTRY if name != "aws"]


def test_six_clouds_are_compared_without_a_network(run: Run) -> None:
    code, out, _ = run("recommend", "--pw", "12", "--cloud", "all", "--offline", "-o", "json")
    found = json.loads(out)
    assert code == 0 and {r["cloud"] for r in found["regions"]} == set(REGISTRY)
    assert all(r["best"] and r["source"]["prices_as_of"] for r in found["regions"])
    assert "left_out" not in found


def test_the_table_says_how_old_the_prices_of_each_are(run: Run) -> None:
    code, out, _ = run("recommend", "--pw", "12", "--cloud", "all", "--offline")
    lines = [
        t for t in out.splitlines() if t.endswith(" d old") and "/" not in t[:9] and t[0] != " "
    ]
    assert code == 0 and len(lines) == len(REGISTRY)


@pytest.mark.parametrize("cloud", OTHERS)
def test_one_cloud_alone(cloud: str, run: Run) -> None:
    code, out, err = run("recommend", "--pw", "7", "--cloud", cloud, "--offline")
    assert code == 0 and "prices are of 202" in err and "1 x " in out


def test_a_cloud_that_is_left_out_is_named_last_and_in_json(run: Run) -> None:
    """The answer holds for the clouds that are left, and the exit code is 4."""
    words = ("recommend", "--pw", "12", "--cloud", "aws,lambda", "--offline")
    words += ("--region", "us-west-1")
    code, out, _ = run(*words, "-o", "json")
    (gone,) = json.loads(out)["left_out"]
    assert code == 4 and gone["cloud"] == "aws" and not gone["region"]
    assert gone["reason"].startswith("no specifications of region us-west-1")
    code, out, _ = run(*words)
    left_out = out.index("left out: AWS: no specifications of region us-west-1")
    assert code == 4 and left_out < out.index("Speeds are"), "below the table"


def test_where_all_are_left_out_it_is_an_error(run: Run) -> None:
    words = ("recommend", "--pw", "3", "--cloud", "lambda,runpod", "--offline", "--zone", "a")
    code, out, err = run(*words)
    assert code == 2 and not out and "no catalog has zones of Lambda" in err


def test_the_catalog_commands_know_them(run: Run) -> None:
    assert "gcp-us-east4" in run("catalog", "list")[1]
    shown = run("catalog", "show", "azure-eastus", "-o", "json", "--offline")[1]
    assert "Standard_ND96isr_H100_v5" in shown
    status = run("catalog", "status", "--cloud", "gcp")[1]
    assert "us-east4" in status and "snapshot" in status and " d " in status
    code, out, err = run("catalog", "diff", "lambda-us-east-1", "lambda-us-west-1", "--offline")
    assert code == 0, out + err
