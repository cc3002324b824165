"""Find the newest complete, undamaged checkpoint and load it into the training's objects."""

import logging
import os
import secrets
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import torch

from deepvm.checkpoint import arguments
from deepvm.checkpoint.files.file_names import file_name
from deepvm.checkpoint.format.manifest import CommitRecord, check_contents
from deepvm.checkpoint.loggers import log
from deepvm.checkpoint.tiers.base import Store, Tier, without_secrets
from deepvm.checkpoint.training.ranks import Ranks
from deepvm.checkpoint.training.state import TrainingState
from deepvm.core.units import format_bytes, format_seconds
from deepvm.errors import CheckpointError, DamagedError, RequestError

_MOST_SHOWN = 4
_CHANGED_SETTINGS = (
    "this training has other settings than the one that saved the checkpoint: %s. Optimizers and"
    " schedulers continue with the old values, which are in force now; modules are as built here."
    " To use the new values, set them after restore_latest(), in optimizer.param_groups and in the"
    " schedulers. To start at 0 with them, give this training another name (job= or DEEPVM_JOB)."
    " The next checkpoint records the new settings, which ends this warning"
)


def restore_newest(
    state: TrainingState,
    tiers: Sequence[Tier],
    job: str,
    ranks: Ranks,
    *,
    named: bool = True,
    allow_fresh: bool = False,
    epoch: int | None = None,
) -> int:
    """Restore the newest checkpoint that every rank can read; returns it, 0 for none. Collective.

    If something is left of a checkpoint, only ``allow_fresh`` starts at 0, and sets that aside.
    Without ``named`` it continues no other training's. Raises CheckpointError on all ranks.
    """
    found = ranks.by_first(lambda: _candidates(tiers, job))
    machines = ranks.gather_objects(_machine())
    first = machines.index(machines[ranks.rank])
    withheld: Exception | None = None
    damaged: dict[tuple[int, str], str] = {}
    with tempfile.TemporaryDirectory(prefix="deepvm-") as folder:
        for manifest, number in found:
            tier = tiers[number]
            where = without_secrets(tier.url)
            # One copy and one reading for all ranks of a machine.
            problems: list[Exception] = []
            fetch = partial(_fetched, tier, manifest, Path(folder), problems)
            paths = ranks.gather_results(fetch if first == ranks.rank else lambda: None)
            for error in problems:
                if isinstance(error, DamagedError):
                    damaged[manifest.version, tier.url] = str(error)
                else:
                    withheld = withheld or error
                log.warning("version %d on %s is skipped: %s", manifest.version, where, error)
            path = paths[first]
            # All ranks restore it, or none
            if not all(paths[rank] for rank in map(machines.index, machines)):
                if first == ranks.rank and path is not None and path.parent == Path(folder):
                    path.unlink()  # there may be no space for two
                continue
            assert path is not None
            version, failed, changes = _load(path, state, ranks, "" if named else job)
            if not ranks.minimum([failed is None])[0]:  # nor may one train on while another cannot
                why = failed or "another rank cannot load it, see its error"
                text = f"version {manifest.version} of {job} on {where}: {why}"
                raise CheckpointError(text) from failed
            if not ranks.rank:
                who = f"job {job}"
                if epoch is not None:
                    who += f", generation {epoch}"
                who += f", file {file_name(manifest.job, manifest.version)}"
                facts = f"{who}, {_saved(manifest.created)}, {format_bytes(manifest.size)}"
                _tell(f"resumed from version {manifest.version} of {where} ({facts})")
                if changes:
                    log.warning(_CHANGED_SETTINGS, "; ".join(changes))
            return version
    # A node that dies meanwhile comes back with what it acknowledged: starting at 0 now would lose
    # all of it.
    if not ranks.minimum([withheld is None])[0]:
        raise CheckpointError(
            "checkpoints exist but none can be read now; training was not restarted from step 0."
            f" Retry when the storage answers: {withheld or 'see the log of another rank'}"
        ) from withheld
    damaged |= ranks.by_first(lambda: _evidence(tiers, job))
    if ranks.minimum([not damaged])[0]:
        where = ", ".join(without_secrets(tier.url) for tier in tiers)
        text = f"no checkpoint at {where} (job {job}): starts at 0"
        if not named and (others := ranks.by_first(lambda: _other_jobs(tiers, job))):
            text += f"; other jobs there: {', '.join(others)}"
        if not ranks.rank:
            _tell(text)
        return 0
    text = _described(damaged)
    if not allow_fresh:
        raise CheckpointError(
            f"all checkpoints of {job} are damaged: {text}. Look at them with 'deepvm ckpt verify',"
            " copy a good one there from elsewhere, give this training job another name (job= or"
            " DEEPVM_JOB), or start over at 0 with restore_latest(allow_fresh=True), which sets"
            " them aside"
        )
    left = {(manifest.version, tiers[number].url) for manifest, number in found} | damaged.keys()
    ranks.by_first(lambda: _set_aside(tiers, job, left))
    log.warning(
        "%s starts over at 0; what is left of its checkpoints was quarantined: %s", job, text
    )
    return 0


def inspect_latest(
    *, tiers: str | Path | Tier | Sequence[str | Path | Tier] | None = None, job: str | None = None
) -> dict[str, Any] | None:
    """The newest undamaged checkpoint on the device ``meta``: names, shapes and types only.

    For a training whose model or optimizer is built differently after some step (pruned, with more
    parameter groups): read this, build them as they were, then restore::

        saved = inspect_latest(tiers=tiers)
        if saved and len(saved["optimizer"]["param_groups"]) > 1:
            optimizer.add_param_group({"params": model.head.parameters()})

    Args:
        tiers: where checkpoints are, as for :class:`Checkpointer`.
        job: name of the training job, as for :class:`Checkpointer`.

    Returns:
        What the file holds, ``{"model", "optimizer", "extra", "version"}`` (``version`` is the
        step), or None if there is no checkpoint.

    Raises:
        RequestError: an argument is invalid.
        CheckpointError: no tier answers, or checkpoints exist but none can be read.
    """
    name = arguments.name_of(job)[0]
    opened = arguments.open_all(arguments.check_tiers(tiers), secrets.token_hex(8), 0, 0)
    problem: CheckpointError | None = None
    try:
        for manifest, number in _candidates(opened, name):
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


def _fetched(
    tier: Tier, manifest: CommitRecord, folder: Path, problems: list[Exception]
) -> Path | None:
    try:
        return tier.fetch(manifest, folder)
    except Exception as error:  # the other ranks wait for an answer
        problems.append(error)
        return None


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        folder = os.stat(tempfile.gettempdir())
        return f"{boot} {folder.st_dev} {folder.st_ino} {os.getuid()}"
    except OSError:  # not on Linux
        return secrets.token_hex(8)


def _saved(created: str) -> str:
    text = f"saved {created.replace('T', ' ').replace('+00:00', ' UTC')}"
    with suppress(TypeError, ValueError):  # another program wrote no time, or another form of it
        age_s = (datetime.now(timezone.utc) - datetime.fromisoformat(created)).total_seconds()
        text += f", {format_seconds(max(round(age_s), 0))} ago"
    return text


def _load(
    path: Path, state: TrainingState, ranks: Ranks, unnamed: str
) -> tuple[int, Exception | None, list[str]]:
    try:
        tree = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        check_contents(tree)
        changes = state.fingerprint.changes(tree)
        if changes and unnamed:
            raise CheckpointError(
                f"it was saved with other settings: {'; '.join(changes)}. If this is another"
                " training, give it another name (job= or DEEPVM_JOB); if it continues the same"
                f" one, set DEEPVM_JOB={unnamed}"
            )
        return state.restore(tree, ranks.rank, ranks.world), None, changes
    except Exception as error:
        return 0, error, []


def _other_jobs(tiers: Sequence[Tier], job: str) -> list[str]:
    """Other jobs with checkpoints there, as far as known: a memory node answers for one job."""
    names = set[str]()
    for tier in tiers:
        with suppress(CheckpointError, RequestError):
            names |= tier.jobs() if isinstance(tier, Store) else set()
    return sorted(names - {job})


def _evidence(tiers: Sequence[Tier], job: str) -> dict[tuple[int, str], str]:
    try:
        return {(d.version, tier.url): d.problem for tier in tiers for d in tier.damaged(job)}
    except (CheckpointError, RequestError) as error:
        raise CheckpointError(
            f"{error}; a checkpoint may be there, so this training run does not start over"
        ) from error


def _described(damaged: Mapping[tuple[int, str], str]) -> str:
    rows = [
        f"version {version} on {without_secrets(url)}: {problem}"
        for (version, url), problem in sorted(damaged.items(), reverse=True)
    ]
    if len(rows) > _MOST_SHOWN:
        rows[_MOST_SHOWN:] = [f"and {len(rows) - _MOST_SHOWN} more"]
    return "; ".join(rows) or "another rank cannot read them, see its log"


def _set_aside(tiers: Sequence[Tier], job: str, left: Collection[tuple[int, str]]) -> None:
    try:
        for tier in tiers:
            numbers = {version for version, url in left if url == tier.url}
            if numbers:
                tier.set_aside(job, numbers)
    except (CheckpointError, RequestError) as error:
        raise CheckpointError(
            f"{error}; this training run does not overwrite damaged checkpoints"
        ) from error


def _candidates(tiers: Sequence[Tier], job: str) -> list[tuple[CommitRecord, int]]:
    """Complete checkpoints with the index of their tier, newest first, then in tier order."""
    found: list[tuple[CommitRecord, int]] = []
    silent: list[Exception] = []
    for number, tier in enumerate(tiers):
        try:
            found += [(manifest, number) for manifest in tier.versions(job)]
        except (CheckpointError, RequestError) as error:
            # Such as a job name that is too long for its parts
            silent.append(error)
    if silent and not found:  # starting at 0 would overwrite what may be there
        raise CheckpointError(
            f"{silent[0]}; a checkpoint may be there, so this training run does not start over"
        )
    for problem in silent:
        log.warning("a newer checkpoint may exist where no tier answers: %s", problem)
    return sorted(found, key=lambda pair: -pair[0].version)


def _tell(text: str) -> None:
    """Log a startup message; without a handler for INFO, write it to stderr."""
    if log.hasHandlers():
        log.info("%s", text)
    else:
        logging.StreamHandler().emit(logging.makeLogRecord({"msg": f"deepvm: {text}"}))
