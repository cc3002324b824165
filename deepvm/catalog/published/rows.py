"""Published steps (``data/performance/published.csv``), and each predicted from the others."""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from deepvm.catalog.published.hardware import find_accelerator, interconnect
from deepvm.catalog.published.workloads import presets
from deepvm.core.arrays import FloatArray
from deepvm.core.training.evidence import NOISE as NOISE_OF_A_RUN
from deepvm.core.training.evidence import Row, leave_out
from deepvm.core.training.prediction import TrainingSetup, batch_effects, effects_of
from deepvm.core.training.roofline import Machine, MemoryFit, Steps, nominal_steps
from deepvm.core.training.workload import Method, Precision, Workload
from deepvm.core.units import Z80
from deepvm.io.user_dirs import data_folder
from deepvm.records import dataclass, replace

# Between two runs of the same, by source. Else that of :data:`deepvm.core.training.evidence.NOISE`
NOISE = {"gavel": 0.12, "pollux": 0.13}
# Its runs split layers as well, so what they exchange does not follow from the method
SPLIT_LAYERS = "megatron-bridge"


@dataclass(frozen=True)
class PublishedRun:
    """A published run. ``batch``: of a step on each GPU; ``throughput``: units/s of all GPUs."""

    source: str
    workload: Workload
    machine: Machine
    precision: Precision
    vms: int
    passes: int
    software: str
    throughput: float

    def nominal(self) -> Steps:
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
        steps = self.nominal()
        units = float(steps.gpus[0]) * self.workload.batch * self.workload.model.units_per_sample
        setup = TrainingSetup(self.workload, self.machine, self.precision, self.software)
        checkpointing = bool(self.workload.checkpointing)
        effects = effects_of(
            setup, checkpointing=checkpointing, several_vms=self.vms > 1, site=self.source
        )
        of_batch = batch_effects(setup, np.array([self.workload.batch / self.passes]))
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
    path = data_folder() / "performance" / "published.csv"
    with path.open(encoding="utf-8", newline="") as file:
        for raw in csv.DictReader(file):
            model = presets()[raw["model"]]
            sequence = int(raw["sequence"])
            gpu = find_accelerator(raw["gpu"], float(raw["gpu_memory_gib"]))
            assert gpu is not None
            if sequence != model.sequence:
                model = model.with_sequence(sequence)
            precision = Precision(raw["precision"])
            vms = int(raw["vms"])
            method = Method(raw["method"])
            batch = float(raw["batch"])
            checkpointing = raw["checkpointing"] == "1"
            yield PublishedRun(
                source=raw["source"],
                workload=Workload(model, method, precision, batch, checkpointing=checkpointing),
                # VMs of one run may have different numbers of GPUs.
                machine=Machine(gpu, int(raw["gpus"]) / vms, interconnect(raw["machine"], None)),
                precision=precision,
                vms=vms,
                passes=max(1, int(raw["passes"])),
                software=raw["software"],
                throughput=float(raw["throughput"]),
            )


@dataclass(frozen=True)
class Group:
    """Runs that belong together: their number, prediction errors, and coverage of the interval."""

    name: str
    runs: int
    median: float
    p90: float
    coverage: float
    width: float


@dataclass(frozen=True)
class PublishedCheck:
    """The check, over all runs, by GPU, by model and by source."""

    total: Group
    gpus: tuple[Group, ...]
    models: tuple[Group, ...]
    sources: tuple[Group, ...]
    unseen: tuple[Group, ...]

    promised: ClassVar[Mapping[str, Any]] = {
        "median_error": 0.12,
        "coverage": {"min": 0.75, "max": 0.90},
    }

    @property
    def kept(self) -> bool:
        held = self.promised["coverage"]
        near = all(group.median <= self.promised["median_error"] for group in self.gpus)
        return near and bool(held["min"] <= self.total.coverage <= held["max"])


def check_published() -> PublishedCheck:
    """Leave each published run out, and each model."""
    runs = list(published())
    rows = [run.row() for run in runs]
    measured = np.array([row.error for row in rows])
    models = [run.workload.model.name for run in runs]

    def groups(keys: Sequence[str], left_out: tuple[FloatArray, FloatArray]) -> tuple[Group, ...]:
        mean, sd = left_out
        off = np.abs(mean - measured)
        names = np.array(keys)
        return tuple(_group(key, off[names == key], sd[names == key]) for key in sorted(set(keys)))

    one = leave_out(rows)
    return PublishedCheck(
        groups(["all"] * len(runs), one)[0],
        groups([run.machine.accelerator.name for run in runs], one),
        groups(models, one),
        groups([run.source for run in runs], one),
        groups(models, leave_out(rows, models)),
    )


def _group(name: str, off: FloatArray, sd: FloatArray) -> Group:
    median, p90 = np.quantile(np.expm1(off), [0.5, 0.9])
    width = np.median(np.expm1(Z80 * sd))
    held = (off <= Z80 * sd).mean()
    return Group(name, len(off), float(median), float(p90), float(held), float(width))
