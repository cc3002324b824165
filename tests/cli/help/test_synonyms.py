"""What people of other programs type, and the command line that each is told: it can be copied, and
is one.
"""

from __future__ import annotations

import re
import shlex

import pytest
import typer
from support.command import Run

from deepvm.cli.app import app
from deepvm.cli.help.synonyms import COMMANDS, OPTIONS, SUBCOMMANDS, meant

ROOT = typer.main.get_command(app)
R = ["recommend", "--pw", "3", "--prices", "snapshot"]


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        ("recommend --price 3", "--pw 3"),
        ("recommend --budget-per-hour=3", "--pw=3"),
        ("recommend --max-price 3", "--pw 3"),
        ("recommend --cost 3", "--pw 3"),
        ("recommend --pw 3 --gpus 4", "--gpus-min 4"),
        ("recommend --pw 3 --gpu-type A100", "--gpu A100"),
        ("recommend --pw 3 --checkpoint 1GB", "--checkpoint-size 1GB"),
        ("recommend --pw 3 --machine-type g5.xlarge", "--instance-type g5.xlarge"),
        ("recommend --pw 3 --batch-size 8", "--batch-per-gpu 8"),
        ("recommend --pw 3 --seq-len 4096", "--seq 4096"),
        ("recommend --pw 3 --bf16", "--precision bf16"),
        ("recommend --pw 3 --lora", "--method lora"),
        ("recommend --pw 3 --json", "--output json"),
        ("recommend --pw 3 --format json", "--output json"),
        ("recommend --pw 3 --verbose", "--why"),
        ("recommend --pw 3 --az us-east-1a", "--zone us-east-1a"),
        ("recommend --pw 3 --provider aws", "--cloud aws"),
        ("export --price 3 plan.json", "--max-price 3"),
        ("performance predict --num-gpus 8", "--gpus 8"),
        ("performance predict --gpu-mem 40GB", "--gpu-memory 40GB"),
        ("profile eflops --batch-size 8", "--batch 8"),
    ],
)
def test_options(typed: str, suggested: str, run: Run) -> None:
    code, out, err = run(*typed.split())
    assert (code, out) == (2, "")
    assert err.rstrip().endswith(f"; did you mean {suggested}?")


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        ("plan --pw 3", "deepvm recommend"),
        ("train", "deepvm recommend"),
        ("price", "deepvm gpus"),
        ("cost", "deepvm gpus"),
        ("launch plan.json", "deepvm export"),
        ("benchmark", "deepvm profile eflops"),
        ("restore", "deepvm ckpt restore"),
        ("login", "deepvm doctor"),
        ("spot", "deepvm help spot"),
        ("exit-codes", "deepvm help exit-codes"),
        ("completion", "deepvm --install-completion"),
        ("recomend --pw 3", "deepvm recommend --pw 3"),
        ("catalog ls", "deepvm catalog list"),
        ("ckpt list", "deepvm ckpt ls"),
        ("tables rm", "deepvm tables remove"),
        ("help plan", "deepvm help recommend"),
        ("help benchmark", "deepvm help profile eflops"),
        ("help budgt", "deepvm help budget"),
    ],
)
def test_commands(typed: str, suggested: str, run: Run) -> None:
    code, out, err = run(*typed.split())
    assert (code, out) == (2, "")
    assert err.rstrip().endswith(f" Did you mean '{suggested}'?")
    first, *_ = suggested.removeprefix("deepvm ").split(" --")
    assert run("help", *first.removeprefix("help ").split())[0] == 0 or first.startswith("--")


@pytest.mark.parametrize(
    ("words", "suggested"),
    [
        (["--model", "meta-llama/Llama-3.1-8B"], "--model llama-8b"),
        (["--model", "falcon-40b"], "--params 40B"),
        (["--model", "llama-9b"], "--params 9B"),
        (["--gpu", "a100-80gb"], "--gpu A100 --gpu-memory-min 80GB"),
        (["--gpu", "H100 SXM"], "--gpu H100"),
        (["--instance-type", "p5"], "--instance-type 'p5.*'"),
        (["--instance-type", "ml.p4d.24xlarge"], "--instance-type p4d.24xlarge"),
        (["--instance-type", "a2-highgpu-1g"], "--gpu A100"),
        (["--region", "us-east"], "--region us-east-1"),
        (["--region", "virginia"], "--region us-east-1"),
        (["--region", "us-east-1a"], "--region us-east-1"),
        (["--region", "Frankfurt"], "--region eu-central-1"),
        (["--region", "westeurope"], "--region eu-west-1"),
        (["--gpu-memory-min", "16G"], "--gpu-memory-min 16GB"),
        (["--checkpoint-size", "1.4 gigabytes"], "--checkpoint-size 1.4GB"),
        (["--checkpoint-size", "2gib"], ""),
        (["--model", "gpt2", "--seq", "1k"], "--seq 1024"),
        (["--model", "gpt2", "--tokens", "2B", "--deadline", "1 week"], "--deadline 7d"),
        (["--model", "gpt2", "--tokens", "2 billion"], "--tokens 2B"),
        (["--model", "gpt2", "--tokens", "2B", "--deadline", "12 hours"], "--deadline 12h"),
        (["--pw", "3$/h"], "--pw 3"),
        (["--pw", "3 USD"], "--pw 3"),
        (["--pw", "$3"], "--pw 3"),
        (["--pw", "3,50"], "--pw 3.50"),
        (["--pw", "1,000 dollars per hour"], "--pw 1000"),
    ],
    ids=lambda w: w[-1] if isinstance(w, list) else "",
)
def test_values(words: list[str], suggested: str, run: Run) -> None:
    code, out, err = run(*R, *words)
    if not suggested:
        assert code == 0
        return
    assert (code, out) == (2, "")
    found = re.search(r"did you mean (--.*?)\?", err)
    assert found and found[1] == suggested
    kept = dict(zip(R[1::2], R[2::2], strict=True)) | dict(
        zip(words[::2], words[1::2], strict=True)
    )
    del kept[words[-2]]
    again = ["recommend", *(w for pair in kept.items() for w in pair), *shlex.split(suggested)]
    if "--region" not in suggested:  # of which there is no snapshot
        assert run(*again)[0] in (0, 3)


@pytest.mark.parametrize("name", ["4090", "MI300X"])
def test_what_no_cloud_has_is_said(name: str, run: Run) -> None:
    for words in (
        [*R, "--gpu", name],
        ["gpus", "--gpu", name],
        ["performance", "predict", "--gpu", name],
    ):
        code, _, err = run(*words, *([] if words[0] == "recommend" else ["--model", "gpt2"]))
        assert code == 2 and f"{name} (" in err and "is in no cloud's catalog here" in err


def test_each_of_several_suggestions_can_be_copied(run: Run) -> None:
    err = run(*R, "--instance-type", "g5.xlrge")[2]
    assert (
        "did you mean --instance-type g5.xlarge or --instance-type g5.2xlarge or --instance-type"
        " g5.4" in err
    )
    assert "did you mean --model llama-8b or --model llama-" in run(*R, "--model", "lama-8b")[2]


def test_budgets_alone_are_understood(run: Run) -> None:
    words = ["--catalog", "paper", "-o", "csv"]
    assert run("sweep", "1:3:1", *words) == run("sweep", "--pw", "1:3:1", *words)


def test_the_amount_alone_may_have_a_unit(run: Run) -> None:
    for typed in ("$3", "3$", "3USD"):
        assert "did you mean --pw 3?" in run("recommend", typed)[2]


def test_every_command_that_is_suggested_exists(run: Run) -> None:
    for found in set(COMMANDS.values()):
        words = found.split()
        assert (
            words[0] in ("--install-completion", "--version") or run("help", *words[:2])[0] == 0
        ), found
    assert not set(COMMANDS) & set(ROOT.commands)  # type: ignore[attr-defined]


def every_option() -> dict[str, set[str]]:
    """The long options of each command, by its words."""
    found, left = {}, [("", ROOT)]
    while left:
        path, command = left.pop()
        found[path] = {
            o for p in command.params for o in (*p.opts, *p.secondary_opts) if o.startswith("--")
        }
        if hasattr(command, "list_commands"):
            context = typer.Context(command)
            left += [
                (f"{path} {n}".strip(), command.get_command(context, n))
                for n in command.list_commands(context)
            ]
    return found


def test_every_option_that_is_suggested_exists() -> None:
    options = every_option()
    all_of_them = set().union(*options.values()) | {"--help", "--debug"}
    groups = {word for path in options for word in path.split()[1:]}
    for name, found in OPTIONS.items():
        assert all(one.split()[0] in all_of_them for one in found.split("|")), name
        assert f"--{name}" not in options["recommend"]
    assert set().union(*(v.split("|") for v in SUBCOMMANDS.values())) <= groups


def test_meanings_know_no_case() -> None:
    assert (
        meant("Budget_Per_Hour", OPTIONS, ["--pw"]) == "--pw"
        and meant("price", OPTIONS, ["--top"]) == ""
    )
