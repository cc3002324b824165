"""The command line on a page repeats the request."""

from __future__ import annotations

import shlex
from dataclasses import MISSING, fields
from typing import Any

from typer.testing import CliRunner

from deepvm.cli.plan.options import RankFlags
from deepvm.cli.plan.repeated import command_of


def test_only_what_differs_from_the_defaults() -> None:
    for changes, expected in [
        ({}, "--pw 3"),
        (
            {"model": "llama-8b", "method": "fsdp", "tokens": "2B"},
            "--model llama-8b --method fsdp --pw 3 --tokens 2B",
        ),
        (
            {"instance_type": ["g5.*", "p4d.*"]},
            "--pw 3 --instance-type 'g5.*' --instance-type 'p4d.*'",
        ),
        ({"activation_checkpointing": False}, "--no-activation-checkpointing --pw 3"),
        (
            {"activation_checkpointing": True, "estimates": True},
            "--activation-checkpointing --pw 3 --estimates",
        ),
        ({"job_file": "my job.yaml", "simulate": "50"}, "--pw 3 --job 'my job.yaml' --simulate 50"),
        (
            {"region": ["us-east-1"], "cpu_arch": "arm64"},
            "--pw 3 --region us-east-1 --cpu-arch arm64",
        ),
        ({"exclude": ["-x"]}, "--pw 3 --exclude=-x"),
    ]:
        assert (
            command_of("recommend", RankFlags(pw="3", **changes)) == f"deepvm recommend {expected}"
        )


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
        **{"cpu_arch": "arm64", "generation": "any", "solver": "frontier", "source": "gpuhunt"},
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
    given = {
        f.name: other(f.name, f.default if f.default_factory is MISSING else f.default_factory())
        for f in fields(RankFlags)
    }
    words = shlex.split(command_of("recommend", RankFlags(**given)))
    done = CliRunner().invoke(app, words[2:])
    assert done.exit_code == 0, done.output
    assert {name: getattr(read[0], name) for name in given} == given
