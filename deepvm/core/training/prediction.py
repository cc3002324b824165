"""Steps that were not measured: by data sheets, corrected by what published runs teach."""

import math
from collections.abc import Iterator
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
from deepvm.core.training.speed import Parts, Source, TrainingSpeed, timing_of
from deepvm.core.training.workload import Precision, Workload
from deepvm.records import dataclass, replace

# Rough standard deviations of log T: exact ones take long to compute and decide little here
_PUBLISHED_SD, _DERIVED_SD = 0.22, 0.28

REFERENCE_PARAMETERS = 7e9
SMALL_PARAMETERS = 1e9
REFERENCE_TOKENS = 16_384
REFERENCE_SEQUENCE = 2_048
_EIGHT = 8.0
MACHINE = "machine"  # The kind of an effect that only clusters of one type of VM have
# How a GPU's units are used: what it achieves in fp32 says little about its tensor cores
WIDTHS = {
    Precision.FP32: "full",
    Precision.TF32: "full",
    Precision.FP16: "half",
    Precision.BF16: "half",
    Precision.FP8: "quarter",
    Precision.FP4: "quarter",
}
# fp16 and bf16 run at one speed on tensor cores, so results of one hold for the other
_HALF = "half"


@dataclass(frozen=True)
class TrainingSetup:
    """What is trained on which VMs."""

    workload: Workload
    machine: Machine
    precision: Precision
    software: str  # eager, transformers, compiled or tuned

    @property
    def model_and_gpu(self) -> str:
        """The kind of effects that only this model on this GPU has."""
        gpu = self.machine.accelerator
        return f"{self.workload.model.name}/{gpu.chip}/{WIDTHS[self.precision]}"


def effects_of(
    setup: TrainingSetup, *, checkpointing: bool, several_vms: bool, site: str = ""
) -> Effects:
    """The effects on a step, but :func:`batch_effects`; ``site``: empty for a prediction."""
    workload = setup.workload
    precision = setup.precision
    software = setup.software
    gpu = setup.machine.accelerator
    model = workload.model
    net = setup.machine.interconnect
    width = WIDTHS[precision]
    one = setup.model_and_gpu
    number = width if width == _HALF else precision.value
    # How fast units compute says nothing of a step that waits for memory.
    computing = computing_share(workload, gpu, precision, checkpointing=checkpointing)
    effects = {
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
        effects[f"software memory={model.family}/{software}"] = 1 - computing
        if software == "tuned":
            effects[f"software={software}"] = computing
    if checkpointing:
        effects["checkpointing"] = 1.0
    if model.transformer is not None:
        effects["log parameters"] = math.log(model.parameters / REFERENCE_PARAMETERS)
        effects["log parameters below 1e9"] = min(
            0.0, math.log(model.parameters / SMALL_PARAMETERS)
        )
        effects["log sequence"] = math.log(model.sequence / REFERENCE_SEQUENCE)
        effects[f"model: log sequence={model.name}"] = math.log(model.sequence / REFERENCE_SEQUENCE)
    else:  # operations and bytes are counted or estimated, they do not follow from a shape
        effects[f"counted model={model.name}"] = 1.0
    if several_vms:
        effects |= {f"network={net.kind}": 1.0, f"{MACHINE}={net.machine}": 1.0}
    else:
        effects |= {f"link={gpu.link}": 1.0, f"link+gpu={gpu.link}/{gpu.chip}": 1.0}
    if site:
        effects |= {f"site: local={site}": 1.0, f"site: across={site}": 1.0}
    else:
        effects["another site"] = 1.0
    return effects


def batch_effects(setup: TrainingSetup, micro_batch: FloatArray) -> dict[str, FloatArray]:
    """The effects of how many samples a GPU computes at once, ``micro_batch``, (sizes,) each."""
    model = setup.workload.model
    one = setup.model_and_gpu
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


def parts_of(setup: TrainingSetup, vms: FloatArray, evidence: Evidence) -> Parts:
    """The nominal steps, corrected by what was published."""
    machine = setup.machine
    steps = nominal_steps(setup.workload, machine, setup.precision, vms)
    name = machine.interconnect.machine
    if f"{MACHINE}={name}" not in evidence.names:
        name = ""
    # Many types differ in nothing that published runs tell apart.
    network = Interconnect(machine.interconnect.kind, name, 0.0)
    same = replace(setup, machine=replace(machine, interconnect=network, vcpus=None))
    corrections = _corrections(same, tuple(vms.tolist()), evidence)
    sync = steps.sync_s * corrections.sync
    # Corrections for links and for networks are learned separately, but no network is faster than
    # the links that feed it.
    between = np.maximum(np.maximum(sync, steps.local_s * corrections.links), steps.line_s)
    return Parts(
        steps=steps,
        grad_s=steps.grad_s * corrections.grad,
        sync_s=np.where(vms > 1, between, sync),
        straggling=corrections.slower + STRAGGLING * np.log(steps.gpus),
        per_vm=machine.gpus,
        evidence=evidence,
        loadings=partial(_loadings, setup, vms, evidence),
    )


def _loadings(
    setup: TrainingSetup, vms: FloatArray, evidence: Evidence
) -> Iterator[tuple[IntArray, Loading]]:
    """What published runs say of steps on one VM and several, with and without checkpointing."""
    machine = setup.machine
    gpus = tuple((vms * machine.gpus).tolist())
    memory = fitted(setup.workload, machine.accelerator, setup.precision, gpus).memory
    for several, checkpointing in product((False, True), repeat=2):
        rows = np.flatnonzero(((vms > 1) == several) & (memory.checkpointing == checkpointing))
        if len(rows):
            effects = effects_of(setup, checkpointing=checkpointing, several_vms=several)
            by_batch = batch_effects(setup, memory.micro_batch[rows])
            yield rows, evidence.loading(effects, by_batch)


class _Corrections(NamedTuple):
    """How many times as long as nominal; ``slower``: log of a part of ``grad``; (sizes,)."""

    slower: FloatArray
    grad: FloatArray
    sync: FloatArray
    links: float


@lru_cache(maxsize=256)
def _corrections(setup: TrainingSetup, vms: tuple[float, ...], evidence: Evidence) -> _Corrections:
    """Corrections of nominal steps: equal for machines that published runs do not distinguish."""
    sizes = np.array(vms)
    slower, grad, sync = (np.zeros(len(sizes)) for _ in range(3))
    for rows, loading in _loadings(setup, sizes, evidence):
        mean = loading.mean.T
        # More GPUs never make gradients faster: where rows say so, it is noise.
        within, across = (np.maximum(mean[part], -STRAGGLING) for part in (LOCAL, ACROSS))
        slower[rows] = within * math.log(setup.machine.gpus) + across * np.log(sizes[rows])
        grad[rows] = np.exp(slower[rows] - mean[COMPUTE])
        sync[rows] = np.exp(-mean[NETWORK])
    one = effects_of(setup, checkpointing=False, several_vms=False)
    links = math.exp(-float(evidence.loading(one, {}).mean[0, NETWORK]))
    return _Corrections(slower, grad, sync, links)


def predict(
    setup: TrainingSetup, vms: FloatArray, evidence: Evidence, *, published: bool
) -> TrainingSpeed:
    """Nominal steps, corrected by published ones; ``published``: of this model, GPU, precision."""
    parts = parts_of(setup, vms, evidence)
    steps = parts.steps
    sd = _PUBLISHED_SD if published else _DERIVED_SD
    computed_s = joined(parts.grad_s, parts.sync_s, OVERLAP)
    timing = timing_of(setup.workload, setup.machine, steps, computed_s, parts.doubt, sd=sd)
    return TrainingSpeed(
        **timing._asdict(),
        machine=setup.machine,
        workload=setup.workload,
        precision=setup.precision,
        vms=vms,
        fits=steps.memory.fits,
        checkpointing=steps.memory.checkpointing,
        micro_batch=steps.memory.micro_batch,
        batch=steps.batch,
        source=Source.PUBLISHED if published else Source.DERIVED,
        fitted_vms=setup.machine.interconnect.fitted_vms,
        parts=parts,
        software=setup.software,
    )
