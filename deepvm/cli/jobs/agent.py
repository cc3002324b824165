"""``deepvm agent``: the machine's part alone, under anybody else's engine."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from deepvm.cli.parameters import arg, opt


def agent(
    command: Annotated[list[str], arg("COMMAND...", "What trains, after --, such as torchrun train.py.")],
    metadata: Annotated[str, opt("Whose notices: aws, gcp, azure, or a URL like EC2's.", "NAME|URL")] = "aws",
) -> None:
    """Run a command whose trainers save before their machine is taken back; exits with its exit code.

    Example: deepvm agent --metadata gcp -- torchrun --nproc-per-node 8 train.py
    """
    import logging

    from deepvm.jobs.agent.alone import LoneAgent
    from deepvm.jobs.agent.notices import notice_source
    from deepvm.jobs.storage.backup_store import KEEP

    logging.basicConfig(format="deepvm agent: %(message)s", level=logging.WARNING)
    tiers = os.environ.get("DEEPVM_TIERS", "").split()
    keep = os.environ.get("DEEPVM_KEEP", "")
    kept = int(keep) if keep.isascii() and keep.isdigit() else KEEP
    found = LoneAgent(notice_source(metadata), tiers, os.environ.get("DEEPVM_JOB", "job"), kept)
    raise typer.Exit(found.run(command))
