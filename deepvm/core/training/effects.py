"""Which effects apply to a step: the names by which :mod:`deepvm.core.training.evidence` shares what was measured."""

from __future__ import annotations

import math

from deepvm.core.training.evidence import Effects
from deepvm.core.training.hardware import Machine
from deepvm.core.training.workload import Precision, Workload

REFERENCE_PARAMETERS, SMALL_PARAMETERS = 7e9, 1e9
REFERENCE_TOKENS, REFERENCE_SEQUENCE = 16_384, 2_048
_EIGHT = 8.0
WIDTHS = {
    Precision.FP32: "full",
    Precision.TF32: "full",
    Precision.FP16: "half",
    Precision.BF16: "half",
    Precision.FP8: "quarter",
    Precision.FP4: "quarter",
}
"""How a GPU's units are used: what it achieves in fp32 says little about its tensor cores."""


def effects_of(
    workload: Workload,
    machine: Machine,
    precision: Precision,
    *,
    software: str,
    micro_batch: float,
    checkpointing: bool,
    several_vms: bool,
    site: str = "",
) -> Effects:
    """The effects on a step of a workload on one or several VMs.

    ``software``: ``eager``, ``compiled`` or ``tuned``. ``micro_batch``: samples that a GPU computes at once. ``site``:
    where it was measured, empty for a prediction.
    """
    gpu, model, net = machine.accelerator, workload.model, machine.interconnect
    width = WIDTHS[precision]
    one = f"{model.name}/{gpu.chip}/{width}"
    found = {
        "all": 1.0,
        f"generation={gpu.generation}/{width}": 1.0,
        f"gpu={gpu.chip}": 1.0,
        f"precision={precision.value}": 1.0,
        f"gpu+precision={gpu.chip}/{precision.value}": 1.0,
        f"family={model.family}": 1.0,
        f"family+generation={model.family}/{gpu.generation}/{width}": 1.0,
        f"model={model.name}": 1.0,
        f"model+gpu={one}": 1.0,
        f"software={software}": 1.0,
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
    if checkpointing:
        found["checkpointing"] = 1.0
    if model.transformer is not None:
        found["log parameters"] = math.log(model.parameters / REFERENCE_PARAMETERS)
        found["log parameters below 1e9"] = min(0.0, math.log(model.parameters / SMALL_PARAMETERS))
        found["log tokens"] = math.log(max(micro_batch * model.sequence, 1.0) / REFERENCE_TOKENS)
        found["log sequence"] = math.log(model.sequence / REFERENCE_SEQUENCE)
        found[f"model: log sequence={model.name}"] = math.log(model.sequence / REFERENCE_SEQUENCE)
    else:
        found[f"model+gpu: log batch={one}"] = math.log(micro_batch / model.batch)
        found[f"model+gpu: inverse batch={one}"] = model.batch / micro_batch / _EIGHT
    if several_vms:
        found |= {f"network={net.kind}": 1.0, f"machine={net.machine}": 1.0}
    else:
        found[f"link={gpu.link}"] = 1.0
    if site:
        found |= {f"site: local={site}": 1.0, f"site: across={site}": 1.0}
    return found
