"""What preemptions cost a cluster: how long its spot VMs live, and how long it takes to save and to come back.

**Lives.** AWS's Spot Advisor counts all VMs of a type over a month, which gives mean lives of months; GPU machines that
were held on spot markets lived for hours in public traces (half of one fleet less than 3 h 59 min). Nobody knows which
of the two a user meets, so the life is a range between them, and plans are ranked by its geometric mean.

**Saving.** A version is copied to host memory, which stalls training, and sent to where the architecture keeps it while
training goes on. Sharded state is sent and read by all VMs at once, else one VM sends it and each reads it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from deepvm.core.cluster.instances import InstanceType
from deepvm.core.preemption.goodput import kept_share
from deepvm.core.preemption.interruption_bands import BAND_SHARES, mean_life_s
from deepvm.core.training.workload import Method
from deepvm.planner.architectures import Architecture, Keeps
from deepvm.planner.columns import TrainingTable
from deepvm.planner.job_forecast import START_S
from deepvm.planner.request import PlanRequest

SHORT_LIFE_S = 4 * 3600.0
"""Of a spot VM with GPUs at a busy time, by public traces."""
COPY_BYTES_PER_S = 6e9  # from one GPU to host memory
STORAGE_BYTES_PER_S = 1.25e9  # between one VM and a bucket, at most
_OF_THE_NETWORK = 0.8
_UNKNOWN_GBPS = 5.0


@dataclass(frozen=True)
class Lives:
    """Mean life of one spot VM of a type, seconds: at a bad time, as plans are ranked, and at a good one."""

    bad_s: float
    usual_s: float
    good_s: float


def lives_of(instance: InstanceType, request: PlanRequest) -> Lives:
    """By the user's own figure, else by public traces and by AWS's band; an unknown band counts as the worst."""
    if request.life_s is not None:
        return Lives(request.life_s, request.life_s, request.life_s)
    band = instance.interruption_band
    good = mean_life_s(BAND_SHARES[-1 if band is None else band])
    return Lives(SHORT_LIFE_S, math.sqrt(SHORT_LIFE_S * good), good)


def with_losses(sizes: TrainingTable, architecture: Architecture, request: PlanRequest) -> TrainingTable:
    """The sizes with what is kept of their throughput: usually, at a bad and at a good time."""
    if request.training is None or not len(sizes):
        return sizes
    size, sharded = float(request.checkpoint_bytes), request.training.workload.method is Method.FSDP
    gbps = np.array([_gbps(t) for t in sizes.types])[sizes.type_index]
    gpus = np.array([t.gpu.count if t.gpu else 1 for t in sizes.types])[sizes.type_index]
    reach = gbps / 8 * 1e9 * _OF_THE_NETWORK
    if architecture.keeps is Keeps.STORAGE:
        reach = np.minimum(reach, STORAGE_BYTES_PER_S)
    each = size / sizes.count if sharded else np.full(len(sizes), size)
    stall, moved = each / (gpus * COPY_BYTES_PER_S), each / reach
    lives = [lives_of(t, request) for t in sizes.types]
    shares = []
    for column in ("usual_s", "bad_s", "good_s"):
        life = np.array([getattr(one, column) for one in lives])[sizes.type_index]
        shares.append(np.where(sizes.spot > 0, kept_share(sizes.spot / life, stall, moved, START_S + moved), 1.0))
    usual = sizes.spot / np.array([one.usual_s for one in lives])[sizes.type_index]
    return replace(sizes, kept=shares[0], kept_bad=shares[1], kept_good=shares[2], lost_per_s=usual)


def _gbps(instance: InstanceType) -> float:
    return instance.network_baseline_gbps or instance.network_gbps or _UNKNOWN_GBPS
