"""The arguments of a checkpointer, checked by name before anything is opened."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from deepvm.checkpoint.files.file_names import check_job, derived_name
from deepvm.checkpoint.loggers import log
from deepvm.checkpoint.snapshot.strategies import DeviceCopyStrategy, MmapStrategy, Strategy
from deepvm.checkpoint.tiers.base import Tier, without_secrets
from deepvm.checkpoint.tiers.file import FileTier
from deepvm.checkpoint.tiers.registry import open_tier
from deepvm.core.preemption import savepolicy
from deepvm.core.units import parse_seconds
from deepvm.errors import RequestError
from deepvm.io.agent_board import AGENT
from deepvm.io.agent_link import EPOCH

JOB = "DEEPVM_JOB"  # Environment variable with the name of the training job
# Environment variable with the tiers of training jobs that name none, separated by blanks
PLACES = "DEEPVM_TIERS"
FOLDER = Path("checkpoints")  # For trainings that name no tiers, and run without an agent
# Environment variable: how many checkpoints to keep if the job does not say; and the default
KEPT, _KEEP = "DEEPVM_KEEP", 2
# Environment variable: mean time between failures of the cluster, such as ``2h``; the default
MTBF, MTBF_S = "DEEPVM_MTBF", 3600.0


def check(
    model: Any, tiers: Any, slots: Any, keep: Any, keep_every: Any, journal: Any
) -> list[str | Tier]:
    """Check these arguments; returns the tiers as :func:`check_tiers`. Raises RequestError."""
    if not isinstance(model, torch.nn.Module):
        raise RequestError("model", model, "a torch.nn.Module")
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise RequestError(
            "model",
            "FullyShardedDataParallel",
            "fully_shard(model), its successor in torch (FSDP2)",
        )
    check_whole("slots", slots, 1, "; 2 overlap one checkpoint with the next")
    check_whole("keep", keep, 0, "; 0 keeps all")
    check_whole("keep_every", keep_every, 0, "; 0 keeps none besides the newest")
    for place in as_list(journal):
        if not (isinstance(place, (str, os.PathLike)) or callable(place)):
            allowed = "the name of a file, a function of an event and its facts, or several"
            raise RequestError("journal", place, allowed)
    return check_tiers(tiers)


def saves_here(tiers: Any) -> bool:
    """Whether no place is named, and no agent's machine may vanish with this folder."""
    return tiers is None and not os.environ.get(PLACES, "").strip() and AGENT not in os.environ


def check_tiers(tiers: Any) -> list[str | Tier]:
    """The tiers as a list, paths as URLs; default: of :data:`PLACES`, or :data:`FOLDER`.

    Raises RequestError.
    """
    if saves_here(tiers):
        tiers = FOLDER
    elif tiers is None:
        tiers = os.environ.get(PLACES, "").split()
    rows = as_list(tiers)
    if not rows:
        example = "at least one, such as file:///mnt/checkpoints"
        raise RequestError("tiers", tiers, f"{example}, here or in {PLACES}, separated by blanks")
    for number, row in enumerate(rows):
        if isinstance(row, os.PathLike):
            rows[number] = Path(row).absolute().as_uri()
        elif not isinstance(row, (str, Tier)):
            allowed = "URLs such as file:///mnt/checkpoints or tcp://host:port"
            raise RequestError("tiers", row, allowed)
    return rows


def as_list(given: Any) -> list[Any]:
    """One value, several, or None for none, as a list."""
    if given is None:
        return []
    if isinstance(given, Sequence) and not isinstance(given, str):
        return list(given)
    return [given]


def open_all(tiers: Sequence[str | Tier], session: str, keep: int, keep_every: int) -> list[Tier]:
    """Open the tiers and check that each is usable. Raises RequestError, CheckpointError."""
    opened = [t if isinstance(t, Tier) else open_tier(t, session, keep, keep_every) for t in tiers]
    for tier in opened:
        tier.prove()
    return opened


def name_of(job: Any, default: str = "") -> tuple[str, bool]:
    """The name of the training job, and whether the user gave it. Raises RequestError."""
    name = job or os.environ.get(JOB)
    if name and not isinstance(name, str):
        raise RequestError("job", name, "a string")
    return check_job(name or default or derived_name()), bool(name)


def keep_of(keep: Any) -> Any:
    """How many checkpoints are kept: by the script or :data:`KEPT`. Raises RequestError."""
    if keep is None:
        keep = number_in(KEPT, 0, "0 keeps all")
    if keep is None:
        return _KEEP
    return keep


def epoch() -> int | None:
    """The number of this generation of the job, None outside of ``deepvm run``."""
    return number_in(EPOCH, 0, "deepvm run sets it")


def number_in(variable: str, least: int, hint: str) -> int | None:
    """The number in an environment variable, None without one. Raises RequestError."""
    text = os.environ.get(variable, "").strip()
    if text and not (text.isascii() and text.isdigit() and int(text) >= least):
        raise RequestError(variable, text, f"a whole number from {least}; {hint}")
    if text:
        return int(text)
    return None


def warn_of_no_name(tiers: Sequence[Tier], name: str) -> None:
    """Warn that another training job without a name can have the same one at these tiers."""
    if tiers:
        log.warning(
            "this training job was given no name, so it is '%s'; another one without a name at %s"
            " can have the same and would be taken for it: name each with job= or %s",
            name,
            ", ".join(without_secrets(tier.url) for tier in tiers),
            JOB,
        )


def parse_every(every: int | str | None) -> savepolicy.SavePolicy:
    """Read ``every``: None, steps (100), a time ("30s"), "auto", or the name of a save policy."""
    names = ", ".join(name for name in savepolicy.POLICIES if name != "none")
    allowed = f'a whole number of steps from 1, a time such as "30s" or "10min", or one of {names}'
    if every is None:
        return savepolicy.Never()
    if isinstance(every, bool) or not isinstance(every, (int, str)):
        raise RequestError("every", every, allowed)
    text = str(every).strip()
    if text.isascii() and text.isdigit():
        text = f"static:{text}"
    if text in savepolicy.POLICIES or ":" in text:
        try:
            return savepolicy.parse_policy(text)
        except RequestError:
            raise RequestError("every", every, allowed) from None
    return savepolicy.EverySeconds(parse_seconds(text, "every", allowed=allowed))


def mtbf_s(policy: savepolicy.SavePolicy) -> float:
    """The cluster's mean time between failures, s. Raises RequestError for :data:`MTBF`."""
    given = os.environ.get(MTBF, "").strip()
    if given and policy.shows_cost_first:  # others do not weigh the cost of saves against it
        return parse_seconds(given, MTBF, allowed="a time such as 2h")
    return MTBF_S


def choose_strategy(name: str, tiers: Sequence[Tier], job: str, world: int) -> Strategy:
    """The strategy of this name. Raises RequestError: there is none, or it cannot be used here."""
    if name in ("C", "layerwise"):
        return Strategy()
    if name == "G":
        return DeviceCopyStrategy()
    if name == "D":
        folders = [tier for tier in tiers if isinstance(tier, FileTier)]
        if not folders:
            allowed = "with a file:///folder among the tiers; without one use C"
            raise RequestError("strategy", name, allowed)
        if world > 1:
            raise RequestError("strategy", name, f"for one rank; there are {world}: use C")
        return MmapStrategy(folders[0], job)
    raise RequestError("strategy", name, "C, G, D or layerwise")


def check_whole(name: str, value: Any, least: int, hint: str) -> None:
    """Raise RequestError unless this is a whole number from ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RequestError(name, value, f"a whole number from {least}{hint}")
