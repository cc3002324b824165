"""What the newest checkpoint holds, before there is a model to restore it into."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from deepvm.checkpoint import arguments
from deepvm.checkpoint.format.contents import check_contents
from deepvm.checkpoint.restore import candidates
from deepvm.checkpoint.tiers.base import Tier
from deepvm.errors import CheckpointError


def inspect_latest(
    *, tiers: str | Path | Tier | Sequence[str | Path | Tier] | None = None, job: str | None = None
) -> dict[str, Any] | None:
    """The newest undamaged checkpoint, with tensors on the device ``meta``: names, shapes and types without values.

    For a training whose model or optimizer is built differently after some step: pruned, with more parameter groups,
    with buffers that have grown. Read this, build them as they were, then restore::

        saved = inspect_latest(tiers=tiers)
        if saved and len(saved["optimizer"]["param_groups"]) > 1:
            optimizer.add_param_group({"params": model.head.parameters()})

    Args:
        tiers: where checkpoints are, as for :class:`Checkpointer`.
        job: name of the training job, as for :class:`Checkpointer`.

    Returns:
        What the file holds, ``{"model", "optimizer", "extra", "version"}`` (``version`` is the step), or None if there
        is no checkpoint.

    Raises:
        RequestError: an argument is invalid.
        CheckpointError: no tier answers, or checkpoints exist but none can be read.
    """
    name = arguments.name_of(job)[0]
    opened = arguments.open_all(arguments.check_tiers(tiers), secrets.token_hex(8), 0, 0)
    problem: CheckpointError | None = None
    try:
        for manifest, number in candidates(opened, name):
            try:
                with tempfile.TemporaryDirectory(prefix="deepvm-") as folder:
                    path = opened[number].fetch(manifest, Path(folder))
                    tree = torch.load(path, map_location="meta", mmap=True, weights_only=True)
            except CheckpointError as error:
                problem = problem or error
                continue
            check_contents(tree)
            return dict(tree)
    finally:
        for tier in opened:
            tier.close()
    if problem is not None:
        raise problem
    return None
