"""What an account without grants may rent: a row, a line and ``new_account`` of the JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepvm.io.user_dirs import read_data

Run = Callable[..., tuple[int, str, str]]


def answer(run: Run, *words: str) -> tuple[Any, str]:
    code, out, err = run("recommend", *words, "--offline", "-o", "json")
    assert code == 0, err
    return json.loads(out).get("new_account"), run("recommend", *words, "--offline")[1]


def test_aws_alone_names_a_cloud_that_needs_no_grant(run: Run) -> None:
    found, text = answer(run, "--pw", "12")
    assert found["reason"] == "a new account has 0 vCPUs of G and VT (spot)"
    assert (found["configuration"], found["cloud"]) == (None, "runpod")
    assert "--cloud runpod needs none (export only)" in text
    assert len(text.splitlines()) <= 15
    assert {s["cloud"] for s in found["sources"]} == {"aws", "runpod"}
    assert all(s["url"].startswith("https://") and s["read"] for s in found["sources"])


def test_aws_lacks_both_of_two_quotas(run: Run) -> None:
    text = run("recommend", "300", "--offline")[1]
    assert 'On-Demand P"; a new account has 0 of both, a grant' in " ".join(text.split())
    lines = text.splitlines()
    assert len(lines) <= 15 and max(map(len, lines)) <= 78


def test_a_row_of_several_clouds_needs_no_grant(run: Run) -> None:
    found, text = answer(run, "--pw", "12", "--cloud", "aws,runpod,gcp")
    plan = found["configuration"]
    assert plan["cloud"] == found["cloud"] == "runpod"
    (row,) = [line for line in text.splitlines() if line.startswith("new account")]
    assert plan["gpu"]["instance_type"] in row and f"{plan['usd_per_hour']:.2f}" in row
    assert '"new account", on RunPod, needs no grant' in " ".join(text.split())
    why = run("recommend", "--pw", "12", "--cloud", "aws,runpod", "--offline", "--why")[1]
    assert "docs.runpod.io" in why and "on runpod us-tx-3, needs no grant" in " ".join(why.split())


def test_the_default_of_gcp_is_known_and_that_of_azure_is_not(run: Run) -> None:
    assert answer(run, "--pw", "12", "--cloud", "gcp")[0]["reason"] == "a new account has 0 GPUs"
    found, text = answer(run, "--pw", "12", "--cloud", "azure")
    assert found["reason"] == "what a new account has is not documented"
    assert "a new account has 0" not in text


def test_a_cloud_without_grants_has_a_limit_too(run: Run) -> None:
    model = ("--model", "llama-70b", "--method", "lora", "--max-nodes", "1")
    dear = ("--pw", "150", "--architecture", "on-demand", "--instance-type", "p6-b200*")
    assert "needs none up to $80/h (export only)" in " ".join(answer(run, *dear, *model)[1].split())
    assert "needs none (export only)" in answer(run, "--pw", "60", *model)[1]


def test_one_vm_of_another_cloud_is_no_way_out_for_many_gpus(run: Run) -> None:
    """Nor is a plan that would take years."""
    sharded = ("--model", "llama-70b", "--method", "fsdp", "--tokens", "10B")
    assert "runpod" not in answer(run, "--pw", "300", *sharded)[1]
    document, text = answer(run, "--pw", "30", "--cloud", "all", *sharded)
    assert document["configuration"] is None and "needs no grant" not in text


def test_a_file_of_an_unknown_cloud_is_not_called_aws(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    assert run("catalog", "convert", "aws-us-east-1", str(file), "--prices", "snapshot")[0] == 0
    text = run("recommend", "--pw", "3", "--catalog", str(file))[1]
    assert " on AWS us-east-1" in text and "get 2 min notice" in text
    file.write_text(file.read_text().replace('"aws-us-east-1"', '"mine"'))
    text = run("recommend", "--pw", "3", "--catalog", str(file))[1]
    assert "with catalog mine" in text and "AWS" not in text and "can be reclaimed" in text


@pytest.mark.parametrize(
    "words", [["--pw", "12", "--quota", "none"], ["--pw", "3", "--catalog", "paper"]]
)
def test_where_limits_are_known_or_there_are_none(words: list[str], run: Run) -> None:
    assert answer(run, *words)[0] is None


def test_each_limit_has_its_source_and_date() -> None:
    for limits in read_data("clouds/new_accounts.json")["clouds"].values():
        for source in limits["sources"]:
            assert source["url"].startswith("https://docs.") and len(source["read"]) == 10
