"""Finding the newest version that is complete and undamaged, and giving it back to the objects of the training."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from deepvm.checkpoint.manifest import Manifest
from deepvm.checkpoint.ranks import Ranks
from deepvm.checkpoint.state import TrainingState
from deepvm.checkpoint.tiers.base import Tier
from deepvm.errors import CheckpointError, DamagedError, RequestError

log = logging.getLogger("deepvm.checkpoint")


def restore_newest(state: TrainingState, tiers: Sequence[Tier], job: str, ranks: Ranks) -> int:
    """Restore the newest version that every rank can have; damaged and unreachable ones are passed over and logged.

    Args:
        state: what gets its state back.
        tiers: where versions are; the same on all ranks.
        job: whose.
        ranks: all of them come by.

    Returns:
        The version, 0 when there is none.

    Raises:
        CheckpointError: no tier answers, what was found is of another model, or versions are there and none of them can
            be had now.
    """
    found = ranks.told(_candidates(tiers, job) if not ranks.rank else None)
    if isinstance(found, CheckpointError):  # raised by all ranks: none must wait for another
        raise found
    withheld: Exception | None = None
    damaged = 0
    with tempfile.TemporaryDirectory(prefix="deepvm-") as folder:
        for manifest, number in found:
            tier, path = tiers[number], None
            try:
                path = tier.fetch(manifest, Path(folder))
            except (CheckpointError, OSError) as error:  # whatever it is, the other ranks wait below
                damaged += isinstance(error, DamagedError)
                withheld = withheld if isinstance(error, DamagedError) else error
                log.warning("version %d on %s is passed over: %s", manifest.version, tier.url, error)
            if not ranks.least([path is not None])[0]:  # all ranks restore it, or none
                continue
            assert path is not None
            tree = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
            try:
                version = state.restore(tree, ranks.rank, ranks.world)
            except CheckpointError as error:
                raise CheckpointError(f"version {manifest.version} of {job} on {tier.url}: {error}") from error
            log.info("restored version %d from %s", version, tier.url)
            return version
    # A node that dies meanwhile comes back with what it promised: a run that began anew would be the loss of all of it.
    if not ranks.least([withheld is None])[0]:
        raise CheckpointError(f"there are versions, and none can be had now; start again when it can: {withheld or ''}")
    if not ranks.least([not damaged])[0]:
        raise CheckpointError(
            f"all versions of {job} are damaged, see the log; to start anew remove them, or give this training another "
            "name in DEEPVM_JOB"
        )
    return 0


def _candidates(tiers: Sequence[Tier], job: str) -> list[tuple[Manifest, int]] | CheckpointError:
    """Complete versions and the number of their tier, newest first; of the same one, that of the first tier."""
    found: list[tuple[Manifest, int]] = []
    silent: list[Exception] = []
    for number, tier in enumerate(tiers):
        try:
            found += [(manifest, number) for manifest in tier.versions(job)]
        except (CheckpointError, RequestError) as error:  # such as a job's name that is too long for parts of it
            silent.append(error)
    if silent and not found:  # a run that began anew would overwrite what may be there
        return CheckpointError(f"{silent[0]}; a version may be there, so this training does not begin anew")
    for problem in silent:
        log.warning("a newer version may exist where nobody answers: %s", problem)
    return sorted(found, key=lambda pair: -pair[0].version)
