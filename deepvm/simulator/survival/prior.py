"""What public traces say of an unknown spot pool: the prior that comes with deepvm."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

from deepvm.core.preemption.gang_survival import Availability, LifetimePosterior, LossRate
from deepvm.io.user_dirs import data_folder

PRIOR = "survival/public_traces.json"
"""Written by ``scripts/calibrate_survival.py``."""


@dataclass(frozen=True)
class Prior:
    """A belief, and which traces it is from.

    ``pools``: traces of one machine with a life that began in them. ``gangs``: traces of several.
    ``lives``, ``days``: of the pools.
    """

    belief: LifetimePosterior
    pools: int
    gangs: int
    lives: int
    days: float
    source: str = ""
    as_of: str = ""


@lru_cache(maxsize=1)
def public_prior() -> Prior:
    """What public traces have taught: the file that comes with deepvm."""
    raw = json.loads((data_folder() / PRIOR).read_text(encoding="utf-8"))
    belief = LifetimePosterior(
        LossRate(**raw["rate"]),
        Availability(**raw["availability"]),
        tuple(raw["loss_correlations"]),
        tuple(raw["had_correlations"]),
    )
    about = {key: raw[key] for key in ("pools", "gangs", "lives", "days", "source", "as_of")}
    return Prior(belief, **about)
