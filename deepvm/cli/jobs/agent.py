"""``deepvm agent``: the machine's part alone, under anybody else's engine."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from deepvm.cli.parameters import arg, opt


def agent(
    command: Annotated[list[str], arg("COMMAND...", "What trains, after --, such as torchrun train.py.")],
    metadata: Annotated[
        str, opt("Whose notices: aws, gcp, azure, auto (by the firmware), or a URL like EC2's.", "NAME|URL")
    ] = "aws",
    grace: Annotated[
        str, opt("After SIGTERM, pass it on when all ranks have saved, or after this time.", "TIME")
    ] = "25s",
) -> None:
    """Run a command whose trainers save before their machine is taken back; exits with its exit code.

    Example: deepvm agent --metadata gcp -- torchrun --nproc-per-node 8 train.py
    """
    import logging

    from deepvm.core.units import parse_seconds
    from deepvm.jobs.agent.alone import LoneAgent
    from deepvm.jobs.agent.notices import notice_source
    from deepvm.jobs.storage.backup_store import KEEP

    logging.basicConfig(format="deepvm agent: %(message)s", level=logging.WARNING)
    tiers, job = os.environ.get("DEEPVM_TIERS", "").split(), os.environ.get("DEEPVM_JOB", "job")
    keep = os.environ.get("DEEPVM_KEEP", "")
    kept = int(keep) if keep.isascii() and keep.isdigit() else KEEP
    found = LoneAgent(notice_source(metadata), tiers, job, parse_seconds(grace, "grace"), kept)
    raise typer.Exit(found.run(command))
