"""What people type who mean something else: each is told what, with exit code 2."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.command import Run

from deepvm.cli.app import COMMANDS

PAPER = ["--catalog", "paper"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["recommend", "-p", "3"], "No such option: -p\n"),
        (
            ["recommend", "--pw", "3", "--cataolg", "paper"],
            "No such option: --cataolg (Possible options: --catalog",
        ),
        (
            ["recommend", "3", "--method", "tp"],
            "invalid value for --method: 'tp' (expected auto, ddp, fsdp, lora; tensor and pipeline"
            " parallelism are not modeled: deepvm help models)\n",
        ),
        (
            ["recommend", "3", "--tensor-parallel", "8"],
            "no such option: --tensor-parallel (tensor and pipeline parallelism are not modeled:"
            " deepvm help models)\n",
        ),
        (
            ["recommend", "3", "--model", "resnet50", "--tokens", "2B"],
            "Error: --tokens does not fit resnet50, which trains on images"
            " (try: --samples 2B, or --model llama-8b)\n",
        ),
        (["recommend", "--pw=3$", *PAPER], "--pw: '3$'"),
        (["recommend", "--pw", "$3", *PAPER], "; did you mean --pw 3?"),
        (
            ["recommend", "--pw", "3", *PAPER, "--architecture", "teiring"],
            "or tiering; did you mean --architecture tiering?",
        ),
        (
            ["recommend", "--pw", "3", *PAPER, "--gpu", "T5"],
            "a name or glob that matches a type, such as A10G, K80, M60, T4",
        ),
        (["explain", "g5.xlrage", "--pw", "3", *PAPER], "; did you mean g5.xlarge"),
        (
            ["recommend", "--pw", "3", "--instance-type", "g4nd.xlarge", *PAPER],
            "; did you mean --instance-type g4dn.xlarge",
        ),
        (
            ["recommend", "--pw", "3", *PAPER, "--work", "3", "--measured-on", "g4nd.xlarge"],
            "did you mean --measured-on g4dn.xlarge",
        ),
        (["simulate", "--preset", "gpt-117"], "did you mean --preset gpt-117m?"),
        (
            ["simulate", "--preset", "gpt-117m", "--policy", "adaptvie"],
            "did you mean --policy adaptive?",
        ),
        (["profile", "eflops", "--model", "resent50"], "did you mean --model resnet50?"),
        (["catalog", "refresh", "--only", "sopt"], "did you mean --only spot?"),
        (["recomend", "--pw", "3"], "No such command 'recomend'. Did you mean 'recommend'?"),
        (["catalog", "lsit"], "No such command 'lsit'. Did you mean 'list'?"),
        (["help", "recomend"], "No such command 'recomend'. Did you mean 'recommend'?"),
        (["help", "-x"], "No such option: -x"),
    ],
    ids=lambda w: " ".join(w) if isinstance(w, list) else "",
)
def test_what_was_meant(words: list[str], said: str, run: Run) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("did you mean") + err.count("Did you mean") <= 1


@pytest.mark.parametrize(
    "words",
    [
        ["recommend", "3", "--model", "resnet50", "--top", "2"],
        ["recommend", "--model", "resnet50", "3", "--top", "2"],
        ["recommend", "--top", "2", "--model", "resnet50", "3"],
        ["explain", "g5.xlarge", "3"],
        ["explain", "3", "g5.xlarge"],
        ["explain", "--model", "resnet50", "3", "g5.xlarge"],
        ["sweep", "--model", "resnet50", "1:3:1"],
    ],
    ids=" ".join,
)
def test_a_budget_is_understood_anywhere(words: list[str], run: Run) -> None:
    amount = next(w for w in words if w in ("3", "1:3:1"))
    rest = [w for w in words if w != amount]
    assert (
        run(*words, "--catalog", "aws-us-east-1")[:2]
        == run(*rest, "--pw", amount, "--catalog", "aws-us-east-1")[:2]
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["recommend", "3", "--top", "3", "5"], "budget given twice: 3 and 5"),
        (["recommend", "--pw", "4", "--top", "3", "3"], "budget given twice: 3 and --pw"),
        (["explain", "g5.xlarge", "3", "4"], "budget given twice: 3 and 4"),
        (["recommend", "--offline", "three"], "--pw: 'three'"),
        (
            ["recommend", "3", "--model", ""],
            "--model: not given or empty (expected NAME|FILE; leave the option out",
        ),
        (["recommend", "3", "--region="], "--region: not given or empty (expected NAME"),
        (
            ["explain", "g5.xlarge", "3", "--cloud", ""],
            "--cloud: not given or empty (expected NAME",
        ),
        (["recommend", "3", "--exclude", "g5.*,zz*"], "--exclude: 'zz*'"),
    ],
    ids=lambda w: " ".join(w) if isinstance(w, list) else "",
)
def test_words_that_are_no_budget_and_empty_values(
    words: list[str], message: str, run: Run
) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "") and message in err


def test_several_names_in_one_value(run: Run) -> None:
    together = run("recommend", "3", *PAPER, "--exclude", "g4dn.*, c5.*", "-o", "json")
    assert (
        together[:2]
        == run("recommend", "3", *PAPER, "--exclude", "g4dn.*", "--exclude", "c5.*", "-o", "json")[
            :2
        ]
    )
    assert '"g4dn.xlarge"' not in json.dumps(json.loads(together[1])["configurations"])


def test_what_is_missing_is_shown_by_an_example(run: Run) -> None:
    for words, said in (
        (
            ["sweep"],
            "Missing option '--pw'. Example: deepvm sweep --pw 0:10:0.1 --catalog simulated -o csv",
        ),
        (
            ["explain", "--pw", "3"],
            "Missing argument 'TYPE'. Example: deepvm explain g5.xlarge --pw 3",
        ),
    ):
        code, out, err = run(*words)
        assert (code, out) == (2, "") and err.rstrip().endswith(said)
    code, out, err = run("recommend")
    assert (code, out) == (
        2,
        "",
    ) and "--pw: not given (expected an amount in $/h, such as deepvm recommend 3" in err
    assert run(*said.partition("deepvm ")[2].split())[0] == 0


def test_a_mistyped_region_is_not_one_on_the_other_coast(run: Run) -> None:
    code, _, err = run("recommend", "--pw", "3", "--region", "us-esat-1", "--offline")
    assert code == 4 and err.rstrip().endswith("did you mean us-east-1?")


@pytest.mark.parametrize("name", ["us-east1", "useast1", "US-EAST-1", "us_east_1"])
def test_a_region_of_another_form(name: str, run: Run) -> None:
    code, _, err = run("recommend", "--pw", "3", "--offline", "--region", name)
    assert code == 2 and err.rstrip().endswith("; did you mean --region us-east-1?)")


def test_a_file_of_quotas_that_is_missing_is_no_number(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run("recommend", "--pw", "3", *PAPER, "--quota", "quotas2024")
    assert code == 4 and "quotas2024: does not exist" in err
    code, _, err = run("recommend", "--pw", "3", *PAPER, "--quota", "")
    assert code == 2 and "--quota: not given or empty" in err


@pytest.mark.parametrize("name", ["64", "64vcpus", "0", "1e3"])
def test_a_number_is_no_file_of_quotas(
    name: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run("recommend", "--pw", "3", *PAPER, "--quota", name)
    assert (code, out) == (2, "")
    assert f"--quota: '{name}' (expected none, or a JSON file of limits" in err
    # The example is one: what it shows can be read back, and has the number that was meant.
    example = err[err.index('{"schema') :].rstrip().removesuffix(")")
    assert json.loads(example)["quotas"][0]["vcpus"] == (int(name) if name.isdigit() else 64)
    Path("mine.json").write_text(example)
    code, _, err = run("recommend", "--pw", "3", *PAPER, "--quota", "mine.json")
    assert code in (0, 3) and "no type of catalog" not in err


def test_a_file_whose_name_is_a_number_is_read(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"family": "G and VT", "market": "spot", "vcpus": 64}
    Path("64").write_text(json.dumps({"schema_version": "deepvm.quotas/1", "quotas": [row]}))
    assert run("recommend", "--pw", "3", *PAPER, "--quota", "64")[0] == 0


def test_help_is_a_command(run: Run) -> None:
    for entry in COMMANDS:
        code, out, err = run("help", entry.name)
        assert (code, out, err) == run(entry.name, "--help") and code == 0 and err == ""
    assert run("help", "catalog", "show") == run("catalog", "show", "-h")
    assert run("-h") == run("--help")
    assert "help" in run("--help")[1]


def test_a_value_that_looks_like_an_option_stays_one(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short option with its value behind it is no mistake."""
    monkeypatch.chdir(tmp_path)
    code, out, err = run("recommend", "--pw", "3", *PAPER, "-ojson")
    assert code == 0 and json.loads(out) and "did you mean" not in err
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("output", ["table", "json"])
def test_an_unmeasured_gpu_leads_to_its_estimate(output: str, run: Run) -> None:
    words = [
        "recommend",
        "--pw",
        "3",
        "--gpu",
        "H100",
        "--prices",
        "snapshot",
        "--model",
        "none",
        "-o",
        output,
    ]
    code, out, err = run(*words)
    assert code == 3
    said = (
        json.loads(out)["reason"]
        if output == "json"
        else next(t for t in err.splitlines() if "GPU" in t)
    )
    assert said.lower().startswith(
        "no gpu type can be used: without measured eflops (h100): p5.4xlarge, p5.48xlarge"
    )
    assert (
        "To change that: allow the estimates of these types with --estimates, or measure their"
        " eFLOPS" in err
    )
    assert run(*words, "--estimates")[0] == 0
