"""Published steps (``data/performance/published.csv``), compared with the nominal ones."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from deepvm.catalog.published.hardware import find_accelerator, interconnect
from deepvm.catalog.published.workloads import presets
from deepvm.core.training.evidence import NOISE as NOISE_OF_A_RUN
from deepvm.core.training.evidence import Row
from deepvm.core.training.prediction import TrainingSetup, batch_effects, effects_of
from deepvm.core.training.roofline import Machine, MemoryFit, Steps, nominal_steps
from deepvm.core.training.workload import Method, Precision, Workload
from deepvm.io.user_dirs import data_folder

NOISE = {"gavel": 0.12, "pollux": 0.13}
"""Between two runs of the same, by source.

Else that of :data:`deepvm.core.training.evidence.NOISE`.
"""
SPLIT_LAYERS = "megatron-bridge"
"""Its runs split layers as well, so what they exchange does not follow from the method."""


@dataclass(frozen=True)
class PublishedRun:
    """A published run.

    ``batch``: samples of a step on each GPU; ``throughput``: units a second of all GPUs.
    """

    source: str
    workload: Workload
    machine: Machine
    precision: Precision
    vms: int
    passes: int
    software: str
    throughput: float

    def nominal(self) -> Steps:
        """What data sheets promise for it."""
        memory = MemoryFit.known(
            micro_batch=self.workload.batch / self.passes,
            passes=self.passes,
            checkpointing=bool(self.workload.checkpointing),
            sharded=self.workload.method is Method.FSDP,
        )
        steps = nominal_steps(
            self.workload, self.machine, self.precision, np.array([float(self.vms)]), memory
        )
        if self.source == SPLIT_LAYERS:
            return replace(steps, sync_s=np.zeros(1))
        return steps

    def row(self) -> Row:
        """The run as a comparison."""
        steps = self.nominal()
        several = self.vms > 1
        units = float(steps.gpus[0]) * self.workload.batch * self.workload.model.units_per_sample
        setup = TrainingSetup(self.workload, self.machine, self.precision, self.software)
        effects = effects_of(
            setup,
            checkpointing=bool(self.workload.checkpointing),
            several_vms=several,
            site=self.source,
        )
        micro_batch = np.array([self.workload.batch / self.passes])
        of_batch = batch_effects(setup, micro_batch)
        return Row(
            {**effects, **{name: float(values[0]) for name, values in of_batch.items()}},
            sync_share=float(steps.sync_share[0]),
            log_local=math.log(self.machine.gpus),
            log_vms=math.log(self.vms),
            error=math.log(self.throughput * float(steps.step_s[0]) / units),
            noise=NOISE.get(self.source, NOISE_OF_A_RUN),
        )


def published() -> Iterator[PublishedRun]:
    """All published runs."""
    with (data_folder() / "performance" / "published.csv").open(
        encoding="utf-8", newline=""
    ) as file:
        for raw in csv.DictReader(file):
            model = presets()[raw["model"]]
            sequence = int(raw["sequence"])
            gpu = find_accelerator(raw["gpu"], float(raw["gpu_memory_gib"]))
            assert gpu is not None
            precision = Precision(raw["precision"])
            vms = int(raw["vms"])
            workload = Workload(
                model if sequence == model.sequence else model.with_sequence(sequence),
                Method(raw["method"]),
                precision,
                float(raw["batch"]),
                checkpointing=raw["checkpointing"] == "1",
            )
            yield PublishedRun(
                source=raw["source"],
                workload=workload,
                # VMs of one run may have different numbers of GPUs.
                machine=Machine(gpu, int(raw["gpus"]) / vms, interconnect(raw["machine"], None)),
                precision=precision,
                vms=vms,
                passes=max(1, int(raw["passes"])),
                software=raw["software"],
                throughput=float(raw["throughput"]),
            )
