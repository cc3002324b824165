"""Steps that were not measured: by data sheets, corrected by what published runs teach."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from typing import NamedTuple

import numpy as np

from deepvm.core.arrays import FloatArray, IntArray
from deepvm.core.training.evidence import (
    ACROSS,
    COMPUTE,
    LOCAL,
    NETWORK,
    Effects,
    Evidence,
    Loading,
)
from deepvm.core.training.roofline import (
    OVERLAP,
    STRAGGLING,
    Interconnect,
    Machine,
    computing_share,
    fitted,
    joined,
    nominal_steps,
)
from deepvm.core.training.speed import (
    InputStall,
    Parts,
    Source,
    SpeedUncertainty,
    TrainingSpeed,
    reading_s,
    waiting,
)
from deepvm.core.training.workload import Precision, Workload

_PUBLISHED_SD, _DERIVED_SD = 0.22, 0.28
"""The same of a step, roughly: exact values take long to compute and decide little here."""

REFERENCE_PARAMETERS = 7e9
SMALL_PARAMETERS = 1e9
REFERENCE_TOKENS = 16_384
REFERENCE_SEQUENCE = 2_048
_EIGHT = 8.0
MACHINE = "machine"
"""The kind of an effect that only clusters of one type of VM have."""
WIDTHS = {
    Precision.FP32: "full",
    Precision.TF32: "full",
    Precision.FP16: "half",
    Precision.BF16: "half",
    Precision.FP8: "quarter",
    Precision.FP4: "quarter",
}
"""How a GPU's units are used: what it achieves in fp32 says little about its tensor cores."""
_HALF = "half"
"""fp16 and bf16 run at one speed on tensor cores, so results of one hold for the other."""


def effects_of(
    workload: Workload,
    machine: Machine,
    precision: Precision,
    *,
    software: str,
    checkpointing: bool,
    several_vms: bool,
    site: str = "",
) -> Effects:
    """The effects on a step of a workload on one or several VMs, but :func:`batch_effects`.

    ``software``: ``eager``, ``transformers``, ``compiled`` or ``tuned``. ``site``: where it was
    measured, empty for a prediction, as nobody knows how well that code is written.
    """
    gpu = machine.accelerator
    model = workload.model
    net = machine.interconnect
    width = WIDTHS[precision]
    one = _one(workload, machine, precision)
    number = width if width == _HALF else precision.value
    # How fast units compute says nothing of a step that waits for memory.
    computing = computing_share(workload, gpu, precision, checkpointing=checkpointing)
    found = {
        "all": computing,
        f"generation={gpu.generation}/{width}": computing,
        f"gpu={gpu.chip}": computing,
        f"board={gpu.name}": computing,
        f"precision={number}": computing,
        f"gpu+precision={gpu.chip}/{number}": computing,
        f"family={model.family}": computing,
        f"family+generation={model.family}/{gpu.generation}/{width}": computing,
        f"memory={model.family}": 1 - computing,
        f"memory of={gpu.chip}": 1 - computing,
        f"model={model.name}": 1.0,
        f"model+gpu={one}": 1.0,
        f"method={workload.method.value}": 1.0,
        "local": 1.0,
        f"model: local={model.name}": 1.0,
        f"model+gpu: local={one}": 1.0,
        "across": 1.0,
        f"model: across={model.name}": 1.0,
        f"model+gpu: across={one}": 1.0,
        f"network: across={net.kind}": 1.0,
        f"model: network={model.name}": 1.0,
    }
    # What lies between matrix products differs from it; vendors rewrite those, too
    if software != "eager":
        found[f"software memory={model.family}/{software}"] = 1 - computing
        if software == "tuned":
            found[f"software={software}"] = computing
    if checkpointing:
        found["checkpointing"] = 1.0
    if model.transformer is not None:
        found["log parameters"] = math.log(model.parameters / REFERENCE_PARAMETERS)
        found["log parameters below 1e9"] = min(0.0, math.log(model.parameters / SMALL_PARAMETERS))
        found["log sequence"] = math.log(model.sequence / REFERENCE_SEQUENCE)
        found[f"model: log sequence={model.name}"] = math.log(model.sequence / REFERENCE_SEQUENCE)
    else:  # operations and bytes are counted or estimated, they do not follow from a shape
        found[f"counted model={model.name}"] = 1.0
    if several_vms:
        found |= {f"network={net.kind}": 1.0, f"{MACHINE}={net.machine}": 1.0}
    else:
        found |= {f"link={gpu.link}": 1.0, f"link+gpu={gpu.link}/{gpu.chip}": 1.0}
    if site:
        found |= {f"site: local={site}": 1.0, f"site: across={site}": 1.0}
    else:
        found["another site"] = 1.0
    return found


def batch_effects(
    workload: Workload, machine: Machine, precision: Precision, micro_batch: FloatArray
) -> dict[str, FloatArray]:
    """The effects of how many samples a GPU computes at once, ``micro_batch``, (sizes,) each."""
    model = workload.model
    one = _one(workload, machine, precision)
    if model.transformer is not None:
        return {
            "log tokens": np.log(np.maximum(micro_batch * model.sequence, 1.0) / REFERENCE_TOKENS)
        }
    return {
        f"model+gpu: log batch={one}": np.log(micro_batch / model.batch),
        # One of an eighth says what there is to say: a still smaller batch is launched, not
        # computed.
        f"model+gpu: inverse batch={one}": np.minimum(model.batch / micro_batch, _EIGHT) / _EIGHT,
    }


def _one(workload: Workload, machine: Machine, precision: Precision) -> str:
    return f"{workload.model.name}/{machine.accelerator.chip}/{WIDTHS[precision]}"


def parts_of(
    workload: Workload,
    machine: Machine,
    precision: Precision,
    vms: FloatArray,
    evidence: Evidence,
    *,
    software: str,
) -> Parts:
    """The nominal steps, corrected by what was published."""
    steps = nominal_steps(workload, machine, precision, vms)
    network = machine.interconnect
    # Many types differ in nothing that published runs tell apart.
    known = _published_name(machine, evidence)
    same = replace(machine, interconnect=Interconnect(network.kind, known, 0.0), vcpus=None)
    corrections = _corrections(workload, same, precision, tuple(vms.tolist()), evidence, software)
    sync = steps.sync_s * corrections.sync
    # Corrections for links and for networks are learnt apart: no network is faster than the links
    # behind it.
    between = np.maximum(np.maximum(sync, steps.local_s * corrections.links), steps.line_s)
    return Parts(
        steps=steps,
        grad_s=steps.grad_s * corrections.grad,
        sync_s=np.where(vms > 1, between, sync),
        straggling=corrections.slower + STRAGGLING * np.log(steps.gpus),
        per_vm=machine.gpus,
        evidence=evidence,
        loadings=partial(_loadings, workload, machine, precision, vms, evidence, software),
    )


def _published_name(machine: Machine, evidence: Evidence) -> str:
    """The name of a type of VM on whose network runs were published; empty for all others."""
    name = machine.interconnect.machine
    if f"{MACHINE}={name}" in evidence.names:
        return name
    return ""


def _loadings(
    workload: Workload,
    machine: Machine,
    precision: Precision,
    vms: FloatArray,
    evidence: Evidence,
    software: str,
) -> Iterator[tuple[IntArray, Loading]]:
    """What published runs say of steps on one VM and several, with and without checkpointing."""
    memory = fitted(
        workload, machine.accelerator, precision, tuple((vms * machine.gpus).tolist())
    ).memory
    for several, checkpointing in product((False, True), repeat=2):
        rows = np.flatnonzero(((vms > 1) == several) & (memory.checkpointing == checkpointing))
        if len(rows):
            effects = effects_of(
                workload,
                machine,
                precision,
                software=software,
                checkpointing=checkpointing,
                several_vms=several,
            )
            yield (
                rows,
                evidence.loading(
                    effects, batch_effects(workload, machine, precision, memory.micro_batch[rows])
                ),
            )


class _Corrections(NamedTuple):
    """How many times as long as nominal, by published runs; arrays of shape (sizes,).

    ``slower``: the logarithm for gradients on several GPUs, which ``grad`` includes. ``links``: of
    those within a VM.
    """

    slower: FloatArray
    grad: FloatArray
    sync: FloatArray
    links: float


@lru_cache(maxsize=256)
def _corrections(
    workload: Workload,
    machine: Machine,
    precision: Precision,
    vms: tuple[float, ...],
    evidence: Evidence,
    software: str,
) -> _Corrections:
    """Corrections of nominal steps: equal for machines that published runs do not distinguish."""
    sizes = np.array(vms)
    slower, grad, sync = (np.zeros(len(sizes)) for _ in range(3))
    for rows, loading in _loadings(workload, machine, precision, sizes, evidence, software):
        mean = loading.mean.T
        # More GPUs never make gradients faster, whatever noise says.
        within, across = (np.maximum(mean[part], -STRAGGLING) for part in (LOCAL, ACROSS))
        slower[rows] = within * math.log(machine.gpus) + across * np.log(sizes[rows])
        grad[rows] = np.exp(slower[rows] - mean[COMPUTE])
        sync[rows] = np.exp(-mean[NETWORK])
    one = effects_of(
        workload, machine, precision, software=software, checkpointing=False, several_vms=False
    )
    return _Corrections(
        slower, grad, sync, math.exp(-float(evidence.loading(one, {}).mean[0, NETWORK]))
    )


def predict(
    workload: Workload,
    machine: Machine,
    precision: Precision,
    vms: FloatArray,
    evidence: Evidence,
    *,
    software: str,
    published: bool,
) -> TrainingSpeed:
    """Nominal steps, corrected by published ones; ``published``: of this model, GPU, precision."""
    network = machine.interconnect
    same = replace(
        machine, interconnect=replace(network, machine=_published_name(machine, evidence), basis="")
    )
    found = _timed(workload, same, precision, tuple(vms.tolist()), evidence, software, published)
    loadings = partial(_loadings, workload, machine, precision, vms, evidence, software)
    parts = replace(found.parts, loadings=loadings)
    waits = found.waits
    steps = parts.steps
    doubt_of: Callable[[], SpeedUncertainty] = parts.doubt
    if waits is not None:
        doubt_of = lambda: parts.doubt().where_reading(waits)  # noqa: E731  of what is shown only
    return TrainingSpeed(
        machine=machine,
        workload=workload,
        precision=precision,
        vms=vms,
        fits=steps.memory.fits,
        step_s=found.step_s,
        throughput=found.throughput,
        checkpointing=steps.memory.checkpointing,
        micro_batch=steps.memory.micro_batch,
        batch=steps.batch,
        doubt_of=doubt_of,
        source=Source.PUBLISHED if published else Source.DERIVED,
        fitted_vms=machine.interconnect.fitted_vms,
        parts=parts,
        software=software,
    )


class _Timed(NamedTuple):
    """What speeds share across machines that differ only by name; arrays of shape (sizes,)."""

    parts: Parts
    waits: InputStall | None
    step_s: FloatArray
    throughput: FloatArray


@lru_cache(maxsize=256)
def _timed(
    workload: Workload,
    machine: Machine,
    precision: Precision,
    vms: tuple[float, ...],
    evidence: Evidence,
    software: str,
    published: bool,  # noqa: FBT001  a key of the cache
) -> _Timed:
    parts = parts_of(workload, machine, precision, np.array(vms), evidence, software=software)
    waits = None
    step = joined(parts.grad_s, parts.sync_s, OVERLAP)
    reading = reading_s(workload, machine, parts.steps.batch)
    if reading.any():
        waits = waiting(
            step, np.full(len(step), _PUBLISHED_SD if published else _DERIVED_SD), reading
        )
        step = waits.step_s
    throughput = workload.samples_of_step(parts.steps.gpus) * workload.model.units_per_sample / step
    return _Timed(parts, waits, step, throughput)
