"""A catalog as one workload sees it: throughput of one VM per type, and its scaling."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from deepvm.core.cluster.cluster import Recommendation
from deepvm.core.cluster.instances import Catalog, InstanceType
from deepvm.core.cluster.speedup import FloatArray
from deepvm.core.training.curve import StepTimeSpeedup
from deepvm.core.training.speed import Training, TrainingSpeed


def trained(catalog: Catalog, training: Training, most_vms: int) -> Catalog:
    """The catalog with throughput in the workload's unit and curves by the step-time law.

    Types of whose speed nothing is known lose their eFLOPS, and say why; what does not fit into a
    type's memory has a curve that is 0 everywhere. ``most_vms``: the largest cluster that matters.
    """
    sizes = np.arange(1, most_vms + 1, dtype=np.float64)
    return replace(
        catalog,
        instances=tuple(i if i.gpu is None else _trained(i, training, sizes) for i in catalog),
        eflops_unit=training.workload.units,
        default_speedup=StepTimeSpeedup.kind,
    )


def speed_of_one(instance: InstanceType, training: Training) -> TrainingSpeed | str:
    """The speed of one VM of a type, or why there is none."""
    found = training.speeds.speed(instance, training.workload, np.ones(1))
    if isinstance(found, str) or found.fits[0]:
        return found
    return found.needs


def _trained(instance: InstanceType, training: Training, sizes: FloatArray) -> InstanceType:
    known = training.speeds.speed(instance, training.workload, sizes)
    if isinstance(known, str):
        return replace(
            instance,
            eflops=None,
            eflops_basis="",
            eflops_source=known,
            speedups=(),
            default_speedup="",
        )
    curve = StepTimeSpeedup.of(known, partial(_speed, instance, training))
    return replace(
        instance,
        eflops=curve.unit,
        eflops_basis="",
        eflops_source="",
        speedups=(curve,),
        speedup_basis="",
        default_speedup="",
    )


def _speed(instance: InstanceType, training: Training, vms: FloatArray) -> TrainingSpeed:
    found = training.speeds.speed(instance, training.workload, vms)
    assert not isinstance(found, str)  # it was asked before
    return found


_WORTH_AN_OPTION = 0.05
"""A gain in speed."""


@dataclass(frozen=True)
class WithoutRecomputing:
    """What a plan gains if its activations stay in memory: a share of its speed.

    A batch is then computed in ``passes`` of at most so many ``samples`` on each GPU.
    """

    gain: float
    passes: int
    samples: int


def without_recomputing(r: Recommendation, training: Training) -> WithoutRecomputing | None:
    """None where that does not fit, gains little, or was decided by the user."""
    predicted = r.prediction
    workload = training.workload
    if predicted is None or not predicted.checkpointing or workload.checkpointing is not None:
        return None
    plain = replace(workload, checkpointing=False)
    vms = np.array([float(r.cluster.gpu_count)])
    found = training.speeds.speed(r.cluster.gpu, plain, vms)
    if isinstance(found, str) or not found.fits[0]:
        return None
    gain = float(found.throughput[0]) / predicted.throughput.value - 1
    batch = workload.batch_on(found.gpu_count)
    passes = math.ceil(batch / float(found.micro_batch[0]) - 1e-9)
    if gain < _WORTH_AN_OPTION:
        return None
    return WithoutRecomputing(gain, passes, math.ceil(batch / passes))
