"""Cost of preemptions: how long spot VMs live, and how long saving and recovery take.

**Lives.** AWS's Spot Advisor counts all VMs of a type over a month, which gives mean lifetimes of
months; GPU machines that were held on spot markets lived for hours in public traces (half of one
fleet less than 3 h 59 min). Which of the two applies is unknown, so the lifetime is a range
between them, and plans are ranked by its geometric mean, or by a tenth more than at a bad time
where that costs them much (:func:`deepvm.planner.search.enumeration.counted_share`).

**Saving.** A version is copied to host memory, which stalls training, and sent to where the
architecture keeps it while training continues. Sharded state is sent by all VMs at once, else one
VM sends it. A bucket takes it from all of them; an anchor receives all at the speed of its own
network; memory nodes are as many as receive it in :func:`receive_s`. Reading it again takes as
long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from deepvm.core.arrays import FloatArray, IntArray
from deepvm.core.cluster.cluster import Cluster
from deepvm.core.cluster.instances import InstanceType
from deepvm.core.lifetimes import PREPARATION_S, SHORT_LIFE_S, START_S, band_life_s, kept_share
from deepvm.core.training.workload import Method
from deepvm.planner.columns import REGISTRY, Architecture, CheckpointLocation, TrainingTable
from deepvm.records import astuple, dataclass, replace

if TYPE_CHECKING:
    from deepvm.core.preemption.job import Job
    from deepvm.planner.request import PlanRequest


COPY_BYTES_PER_S = 6e9  # from one GPU to host memory
STORAGE_BYTES_PER_S = 1.25e9  # between one VM and a bucket, at most
# Receiving faster than this is not worth paying for: seconds in a lifetime of hours.
RECEIVE_TARGET_S = 10.0
_NETWORK_SHARE = 0.8  # of the bandwidth that a transfer reaches
_UNKNOWN_GBPS = 5.0


@dataclass(frozen=True)
class Lives:
    """Mean lifetime of a spot VM in seconds: at a bad time, as ranked, and at a good time."""

    bad_s: float
    usual_s: float
    good_s: float


def lives_of(instance: InstanceType, request: PlanRequest) -> Lives:
    """By the user's figure or history, else by public traces and AWS's band (unknown: worst)."""
    if request.life_s is not None:
        return Lives(request.life_s, request.life_s, request.life_s)
    if (known := instance.known_life) is not None:
        return Lives(known.low_s, known.mean_s, known.high_s)
    good = band_life_s(instance.interruption_band)
    return Lives(SHORT_LIFE_S, math.sqrt(SHORT_LIFE_S * good), good)


def receive_s(checkpoint_bytes: int) -> float:
    """Seconds in which memory nodes should receive a checkpoint: no slower than a bucket."""
    return max(RECEIVE_TARGET_S, checkpoint_bytes / STORAGE_BYTES_PER_S)


def nodes_to_receive(gbps: float, checkpoint_bytes: int) -> int:
    """Fewest memory nodes of this bandwidth, Gbit/s, that receive within :func:`receive_s`."""
    needed = checkpoint_bytes / receive_s(checkpoint_bytes) * 8 / 1e9 / _NETWORK_SHARE
    return max(1, math.ceil(needed / gbps - 1e-9))


def with_losses(
    sizes: TrainingTable, architecture: Architecture, request: PlanRequest
) -> TrainingTable:
    """The sizes with the kept share of a model's throughput: usual, at a bad and at a good time."""
    if not len(sizes):
        return sizes
    lives = [lives_of(t, request) for t in sizes.types]
    bad_s, usual_s, good_s = np.array([*map(astuple, lives)]).T[:, sizes.type_index]
    stall, moved = _saving(sizes.types, sizes.type_index, sizes.count, architecture, request)
    kept, kept_bad, kept_good = (
        np.where(
            sizes.spot > 0, kept_share(sizes.spot / life_s, stall, moved, START_S + moved), 1.0
        )
        for life_s in (usual_s, bad_s, good_s)
    )
    return replace(
        sizes, kept=kept, kept_bad=kept_bad, kept_good=kept_good, lost_per_s=sizes.spot / usual_s
    )


def as_counted(job: Job, cluster: Cluster, request: PlanRequest) -> Job:
    """A model's job on a cluster, with its forecast's lifetimes and latencies, to simulate."""
    from deepvm.core.preemption.job import ZERO, Span  # only simulations need it

    if not cluster.spot_count:
        return job  # never preempted, it saves nothing
    gpu = cluster.gpu
    count = np.array([cluster.gpu_count])
    saving = _saving((gpu,), np.zeros(1, int), count, REGISTRY[cluster.architecture], request)
    stall, moved = (Span.of(float(seconds[0])) for seconds in saving)
    ready = Span(*(seconds + moved.mean for seconds in PREPARATION_S))
    life = lives_of(gpu, request).usual_s
    # Without notices, as in kept_share: the ranking and the simulation must agree.
    return replace(
        job, save_s=stall, backup_s=moved, preparation_s=ready, grace_s=ZERO, mttp_s=(life,)
    )


def _saving(
    types: Sequence[InstanceType],
    type_index: IntArray,
    count: IntArray,
    architecture: Architecture,
    request: PlanRequest,
) -> tuple[FloatArray, FloatArray]:
    """Seconds that a save stalls ``count`` VMs of some types, and seconds to move it."""
    gpus = np.array([t.gpu.count if t.gpu else 1 for t in types])[type_index]
    gbps = np.array([t.network_baseline_gbps or t.network_gbps or _UNKNOWN_GBPS for t in types])[
        type_index
    ]
    assert request.training is not None
    size = float(request.checkpoint_bytes)
    sharded = request.training.workload.method is Method.FSDP
    reach = gbps / 8 * 1e9 * _NETWORK_SHARE
    if architecture.keeps is CheckpointLocation.STORAGE:
        reach = np.minimum(reach, STORAGE_BYTES_PER_S)
    each = np.full(len(count), size)
    if sharded:
        each = size / count
    moved = each / reach
    if architecture.keeps is CheckpointLocation.ANCHOR and sharded:
        moved = (size - each) / reach  # all but its own part
    if architecture.keeps is CheckpointLocation.MEMORY:
        moved = np.maximum(moved, receive_s(request.checkpoint_bytes))
    return each / (gpus * COPY_BYTES_PER_S), moved
