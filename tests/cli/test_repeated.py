"""The command line on a page repeats the request."""

from __future__ import annotations

import shlex
from dataclasses import fields
from typing import Any

from typer.testing import CliRunner

from deepvm.cli.parameters import words_of
from deepvm.core.options import default_of, option_of
from deepvm.services.plan_options import RankFlags


def test_only_what_differs_from_the_defaults() -> None:
    for changes, expected in [
        ({}, "--pw 3"),
        (
            {"model": "llama-8b", "method": "fsdp", "tokens": "2B"},
            "--pw 3 --model llama-8b --method fsdp --tokens 2B",
        ),
        (
            {"instance_type": ["g5.*", "p4d.*"]},
            "--pw 3 --instance-type 'g5.*' --instance-type 'p4d.*'",
        ),
        ({"activation_checkpointing": False}, "--pw 3 --no-activation-checkpointing"),
        (
            {"activation_checkpointing": True, "estimates": True},
            "--pw 3 --activation-checkpointing --estimates",
        ),
        ({"job_file": "my job.yaml", "simulate": "50"}, "--pw 3 --job 'my job.yaml' --simulate 50"),
        (
            {"region": ["us-east-1"], "cpu_architecture": "arm64"},
            "--pw 3 --region us-east-1 --cpu-arch arm64",
        ),
        ({"exclude": ["-x"]}, "--pw 3 --exclude=-x"),
    ]:
        assert shlex.join(words_of(RankFlags(pw="3", **changes))) == expected


def other(name: str, default: object) -> Any:
    """A value that is not the default, and that the option takes."""
    choices = {
        **{
            "method": "lora",
            "precision": "bf16",
            "prices": "live",
            "price_basis": "p95",
            "network": "peak",
        },
        **{
            "software": "tuned",
            "rank": "plans",
            "objective": "flopp",
            "policy": "noscale",
            "speedup": "ring",
        },
        **{
            "cpu_architecture": "arm64",
            "generation": "any",
            "solver": "frontier",
            "source": "gpuhunt",
        },
    }
    if name in choices:
        return choices[name]
    if isinstance(default, bool) or name == "activation_checkpointing":
        return not default
    return ["a b", "'c'"] if isinstance(default, list) else "$7"


def test_the_parser_reads_back_every_option() -> None:
    import typer

    from deepvm.cli.parameters import takes_flags

    app, read = typer.Typer(), list[RankFlags]()

    @takes_flags
    def recommend(flags: RankFlags) -> None:
        read.append(flags)

    app.command()(recommend)
    given = {f.name: other(f.name, default_of(f)) for f in fields(RankFlags) if option_of(f)}
    words = ["deepvm", "recommend", *words_of(RankFlags(**given))]
    done = CliRunner().invoke(app, words[2:])
    assert done.exit_code == 0, done.output
    assert {name: getattr(read[0], name) for name in given} == given
