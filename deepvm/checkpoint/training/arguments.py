"""The arguments of a checkpointer: refused by name when they cannot be used, before anything is opened."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from deepvm.checkpoint.files import durable_write
from deepvm.checkpoint.files.version_dir import check_job
from deepvm.checkpoint.tiers.base import Tier
from deepvm.checkpoint.tiers.file import FileTier
from deepvm.checkpoint.tiers.registry import open_tier
from deepvm.checkpoint.training.announce import shown
from deepvm.errors import RequestError

JOB = "DEEPVM_JOB"
"""Variable with the name of the training."""
_DEFAULT = "job"
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "gpfs", "beegfs", "9p", "afs", "glusterfs")
_SHARED = ("tcp://", "tcps://", "s3://")

log = logging.getLogger("deepvm.checkpoint")


def check(model: Any, tiers: Any, slots: Any, keep: Any, keep_every: Any, journal: Any) -> list[str | Tier]:
    """The tiers as a list of URLs and tiers, if all of these can be used; a path is a folder.

    Raises:
        RequestError: one cannot; names it.
    """
    if not isinstance(model, torch.nn.Module):
        raise RequestError("model", model, "a torch.nn.Module")
    _whole("slots", slots, 1, "2 overlap one version with the next")
    _whole("keep", keep, 0, "0 keeps all")
    _whole("keep_every", keep_every, 0, "0 keeps none beside the newest")
    if journal is not None and not isinstance(journal, (str, os.PathLike)):
        raise RequestError("journal", journal, "the name of a file")
    several = isinstance(tiers, Sequence) and not isinstance(tiers, str)
    rows = list(tiers) if several else [] if tiers is None else [tiers]
    if not rows:
        raise RequestError("tiers", tiers, "at least one, such as file:///mnt/checkpoints")
    rows = [Path(t).absolute().as_uri() if isinstance(t, os.PathLike) else t for t in rows]
    for row in rows:
        if not isinstance(row, (str, Tier)):
            raise RequestError("tiers", row, "URLs such as file:///mnt/checkpoints or tcp://host:port")
    return rows


def open_all(tiers: Sequence[str | Tier], session: str, keep: int, keep_every: int) -> list[Tier]:
    """The tiers that are meant, each able to take versions as far as can be told now.

    Raises:
        RequestError: no such kind of place, or no token for it.
        CheckpointError: a place takes nothing.
    """
    opened = [t if isinstance(t, Tier) else open_tier(t, session, keep, keep_every) for t in tiers]
    for tier in opened:
        tier.prove()
    return opened


def name_of(job: Any) -> tuple[str, bool]:
    """The name of the training, and whether anybody has given it one.

    Raises:
        RequestError: it cannot be a name.
    """
    name = job or os.environ.get(JOB)
    if name and not isinstance(name, str):
        raise RequestError("job", name, "a text")
    return check_job(name or _DEFAULT), bool(name)


def warn_of_no_name(tiers: Sequence[Tier]) -> None:
    """Say it if a training without a name goes where others may go, who would be taken for this one."""
    places = [shown(tier.url) for tier in tiers if _is_shared(tier)]
    if places:
        log.warning(
            "this training has no name of its own, it is '%s'; another one without a name at %s would be taken for it: "
            "give each a name with job= or %s",
            *(_DEFAULT, ", ".join(places), JOB),
        )


def _is_shared(tier: Tier) -> bool:
    if isinstance(tier, FileTier):
        kind = durable_write.medium(tier.folder.path).kind
        return kind in _NETWORK or kind.startswith("fuse.")
    return tier.url.startswith(_SHARED)


def _whole(name: str, value: Any, least: int, hint: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RequestError(name, value, f"a whole number from {least}; {hint}")
