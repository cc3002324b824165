"""Measured steps in the planner's terms, and the speeds that follow from them."""
# Only steps of the very workload that is asked for count: model, method, sequence or resolution,
# precision and software. The batch may differ, as the law knows batches.

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from importlib.util import find_spec

import numpy as np

from deepvm.catalog.measured.entries import Entry
from deepvm.catalog.published.hardware import find_accelerator
from deepvm.catalog.published.performance import PublishedPerformance
from deepvm.catalog.published.workloads import presets
from deepvm.core.arrays import FloatArray
from deepvm.core.cluster.instances import InstanceType
from deepvm.core.json_types import JsonObject
from deepvm.core.training.measured_speed import OwnSteps, of_alike, of_measured
from deepvm.core.training.roofline import Accelerator, Machine, usual_checkpointing
from deepvm.core.training.speed import TrainingSpeed
from deepvm.core.training.steptime import ENOUGH, FEWEST, Steps, StepTimeFit, fit_steps
from deepvm.core.training.workload import Precision, Workload
from deepvm.core.units import counted
from deepvm.errors import MissingExtraError
from deepvm.records import dataclass, field, replace

DTYPES = {"float32": Precision.FP32, "bfloat16": Precision.BF16, "float16": Precision.FP16}


@dataclass(frozen=True)
class TrainedWorkload:
    """What was trained, in the terms of ``recommend``; ``checkpointing``: None if unknown."""

    model: str
    method: str
    sequence: int
    precision: Precision
    software: str
    checkpointing: bool | None = None
    by_cudnn: bool = False

    def differs(self, workload: Workload, gpu: Accelerator, software: str) -> str:
        """Why steps do not apply to a workload, in words; empty if they do."""
        own_precision = gpu.precision(self.precision)
        if self.by_cudnn and self.precision is Precision.FP32:
            own_precision = gpu.precision(Precision.TF32) or Precision.FP32
        wanted_precision = gpu.precision(workload.precision)
        model = workload.model
        pairs = {
            self.model: model.name,
            self.method: workload.method.value,
            f"sequences of {self.sequence}": f"sequences of {model.sequence}",
            own_precision and own_precision.value: wanted_precision and wanted_precision.value,
            f"software {self.software}": f"software {software}",
        }
        for own, wanted in pairs.items():
            if own != wanted:
                return f"measured with {own}, and {wanted} is trained"
        usual = usual_checkpointing(workload)
        if self.checkpointing is None or usual in (None, self.checkpointing):
            return ""
        if self.checkpointing:
            return "measured with activation checkpointing"
        return "measured without activation checkpointing"


def trained_as(entry: Entry) -> TrainedWorkload | str:
    """What an entry's steps are of, or why the planner cannot know."""
    raw = entry.document["workload"]
    name = str(raw.get("trains") or raw["model"])
    model = presets().get(name.casefold().replace("_", "-"))
    if ":" in name:
        return f"{name} is unknown: measure with --trains and the name that recommend --model has"
    pixels = raw.get("resolution")
    length = raw.get("sequence")
    for samples, size in (("images", pixels), ("sequences", length)):
        if isinstance(size, str):
            return f"the size of {samples} is {size!r}, a number is expected"
    if model is not None and model.pixels and pixels is not None and pixels != model.pixels:
        return (
            f"it was measured with images of {pixels} pixels, and recommend trains {model.name}"
            f" with {model.pixels}: measure with --resolution {model.pixels}"
        )
    dtype = str(raw.get("dtype") or "float32")
    precision = raw.get("precision") or DTYPES.get(dtype)
    if precision is None:
        return f"the precision of {dtype} is unknown"
    return TrainedWorkload(
        model=model.name if model is not None else name,
        method=raw.get("method") or "ddp",
        sequence=int(length or (model.sequence if model is not None else 1)),
        precision=Precision(precision),
        software=raw.get("software") or "eager",
        checkpointing=raw.get("activation_checkpointing"),
        by_cudnn=raw.get("precision") is None and model is not None and model.transformer is None,
    )


@dataclass(frozen=True)
class StepTimes:
    """All steps of one workload on one type."""

    instance_type: str
    trained: TrainedWorkload
    gpu: Accelerator | None
    entries: tuple[Entry, ...] = field(repr=False)

    @property
    def own(self) -> OwnSteps:
        runs = counted(len(self.steps), "run")
        about = f"{self.instance_type}, {self.entries[-1].measured_at.date()}, {runs}"
        reads = all(e.kind == "steptime" for e in self.entries)
        return OwnSteps(self.instance_type, self.fit, reads=reads, about=about)

    @property
    def saved(self) -> list[JsonObject]:
        keys = {"steptime": "fit", "scaling": "step_time"}
        return [law for e in self.entries if (law := e.document.get(keys[e.kind]))]

    @cached_property
    def fit(self) -> StepTimeFit:
        # Without scipy, the latest that was fitted elsewhere
        if self.saved and (len(self.entries) == 1 or not _can_fit()):
            return StepTimeFit.of_document(self.saved[-1])
        return fit_steps(self.steps)

    @property
    def unfitted(self) -> str:
        count = len(self.steps)
        kinds = self.steps.kinds
        if count < FEWEST or kinds < 2:
            of = counted(kinds, "cluster or batch", "clusters and batches")
            return f"{counted(count, 'step')} of {of}: a law of them needs {ENOUGH}"
        if self.saved or _can_fit():
            return ""
        missing = MissingExtraError("to fit one", "scipy", "fit")
        return f"no law of its steps was saved with it, and {missing}"

    @property
    def steps(self) -> Steps:
        rows = [step for e in self.entries for step in e.steps]
        return Steps(*np.array(rows, dtype=np.float64).T)


def _can_fit() -> bool:
    return find_spec("scipy") is not None


def step_times(
    entries: Iterable[Entry], types: Mapping[str, InstanceType]
) -> tuple[tuple[StepTimes, ...], dict[str, str]]:
    """Measured steps by type and workload, and by name of entry why some are not used."""
    measured: dict[tuple[str, TrainedWorkload], list[Entry]] = {}
    unused = {}
    for entry in sorted((e for e in entries if e.steps), key=lambda e: e.measured_at):
        trained = trained_as(entry)
        reason = entry.misfit(types.get(entry.subject))
        if reason or isinstance(trained, str):
            unused[entry.name] = reason or str(trained)
        else:
            measured.setdefault((entry.subject, trained), []).append(entry)
    groups = []
    for (name, trained), own in measured.items():
        group = StepTimes(name, trained, _gpu_of(own[-1], types.get(name)), tuple(own))
        if reason := group.unfitted:
            unused |= dict.fromkeys((e.name for e in own), reason)
        else:
            groups.append(group)
    return tuple(groups), unused


def _gpu_of(entry: Entry, instance: InstanceType | None) -> Accelerator | None:
    if instance is not None and instance.gpu is not None:
        return find_accelerator(instance.gpu.name, instance.gpu.memory_gib)
    for name in entry.gpus:
        words = re.split(r"[-_\s]+", name.casefold())
        sizes = (float(word[:-2]) for word in words if re.fullmatch("[0-9]+gb", word))
        memory_gib = next(sizes, None)
        for word in words:
            if gpu := find_accelerator(word, memory_gib):
                return gpu
    return None


@dataclass(frozen=True)
class MeasuredPerformance(PublishedPerformance):
    """As :class:`PublishedPerformance`, but types and GPUs with measured steps go by these."""

    own: tuple[StepTimes, ...] = ()

    def of_machine(
        self, machine: Machine, workload: Workload, vms: FloatArray, name: str = ""
    ) -> TrainingSpeed | str:
        """The speed of clusters of a machine, or why there is none."""
        base = super().of_machine(machine, workload, vms)
        if isinstance(base, str):
            return base
        gpu = machine.accelerator
        fitting = [o for o in self.own if not o.trained.differs(workload, gpu, self.software)]
        alike = [o for o in fitting if o.gpu == gpu]
        if name:
            same = [o for o in fitting if o.instance_type == name]
        else:
            same = [o for o in alike if o.own.measured.most_per_vm == machine.gpus]
        if not (same or alike):
            return base
        # VMs of the nearest size; of several the latest
        chosen = min(
            same or alike,
            key=lambda o: (
                abs(np.log(o.own.measured.most_per_vm / machine.gpus)),
                -o.entries[-1].measured_at.timestamp(),
            ),
        )
        count, gpus = chosen.own.smallest
        # With this machine's network: that of the measured type may be unknown
        smallest = replace(machine, gpus=gpus / count)
        reference = self.parts(smallest, workload, np.array([float(count)]))
        return (of_measured if same else of_alike)(chosen.own, base, reference)
