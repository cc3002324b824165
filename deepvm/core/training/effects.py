"""Effects on a step, by which :mod:`deepvm.core.training.evidence` shares measurements."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from deepvm.core.training.evidence import Effects
from deepvm.core.training.hardware import Machine
from deepvm.core.training.roofline import computing_share
from deepvm.core.training.workload import Precision, Workload

FloatArray = npt.NDArray[np.float64]

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
