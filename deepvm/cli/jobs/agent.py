"""``deepvm agent``: save before a preemption, under an engine other than ``deepvm run``."""

import logging
import os

import typer

from deepvm.cli.parameters import SAVE_POLICIES, arg, opt


def agent(
    command: list[str] = arg("COMMAND...", "What trains, after --, such as torchrun train.py."),
    metadata: str = opt(
        "aws",
        "Whose notices: aws, gcp, azure, auto (by the firmware), or a URL like EC2's.",
        "NAME|URL",
    ),
    grace: str = opt(
        "25s", "After SIGTERM, pass it on when all ranks have saved, or after this time.", "TIME"
    ),
    save_policy: str | None = opt(
        None,
        f"When to save without a notice: {SAVE_POLICIES}; default: DEEPVM_SAVE_POLICY, else"
        " adaptive.",
        "NAME",
        complete="complete_save_policy",
    ),
) -> None:
    """Run a command whose trainers save before their machine is preempted.

    Exits with its exit code.

    Example: deepvm agent --metadata gcp -- torchrun --nproc-per-node 8 train.py
    """
    from deepvm.core.preemption.savepolicy import SaveFacts, parse_policy
    from deepvm.core.units import parse_seconds
    from deepvm.jobs.agent.notices import notice_source
    from deepvm.jobs.agent.standalone_agent import StandaloneAgent
    from deepvm.jobs.storage.backup_store import KEEP

    logging.basicConfig(format="deepvm agent: %(message)s", level=logging.WARNING)
    environ = os.environ.get
    option = "save_policy"
    if save_policy is None:
        option = "DEEPVM_SAVE_POLICY"
        save_policy = environ(option, "").strip() or "adaptive"
    mttp_s = float(SaveFacts.mttp_s)
    if mtbf := environ("DEEPVM_MTBF", "").strip():
        mttp_s = parse_seconds(mtbf, "DEEPVM_MTBF", allowed="a time such as 2h")
    keep = environ("DEEPVM_KEEP", "").strip()
    standalone = StandaloneAgent(
        notice_source(metadata),
        environ("DEEPVM_TIERS", "").split(),
        environ("DEEPVM_JOB", "job"),
        policy=parse_policy(save_policy, option),
        mttp_s=mttp_s,
        grace_s=parse_seconds(grace, "grace"),
        keep=int(keep) if keep.isascii() and keep.isdigit() else KEEP,
    )
    raise typer.Exit(standalone.run(command))
