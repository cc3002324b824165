"""Training speeds of VM types from published data: the planner's source of speeds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache

import numpy as np

from deepvm.catalog.published.hardware import find_accelerator, interconnect, usual_machine
from deepvm.core.arrays import FloatArray
from deepvm.core.cluster.instances import InstanceType
from deepvm.core.spelling import one_of
from deepvm.core.training.evidence import Evidence
from deepvm.core.training.prediction import TrainingSetup, parts_of, predict
from deepvm.core.training.roofline import Accelerator, Machine
from deepvm.core.training.speed import Parts, TrainingSpeed
from deepvm.core.training.workload import Precision, Workload
from deepvm.errors import RequestError
from deepvm.io.user_dirs import read_data

MOST_IN_A_VM = 16
"""GPUs of the largest VMs (p2.16xlarge); others have 8."""
SOFTWARE = ("eager", "transformers", "compiled", "tuned")
"""Plain PyTorch, Hugging Face Transformers, ``torch.compile``, what vendors tune.

Hugging Face Transformers train adapters with PEFT.
"""


CALIBRATION = "performance/calibration.json"
"""Effects learned from the published steps; a test learns them again and compares."""


@dataclass(frozen=True)
class Calibration:
    """Evidence, and which runs it is from.

    ``seen``: (model, GPU, precision, method) of the published runs. ``rows``: how many there are.
    """

    evidence: Evidence
    seen: frozenset[tuple[str, str, str, str]]
    rows: int


def key_of(workload: Workload, gpu: Accelerator, precision: Precision) -> tuple[str, str, str, str]:
    """What makes a run of the same: model, GPU, precision and method."""
    return workload.model.name, gpu.name, precision.value, workload.method.value


@cache
def calibration() -> Calibration:
    """The learned effects. Learning takes a fifth of a second, reading a hundredth."""
    raw = read_data(CALIBRATION)
    names = {name: number for number, name in enumerate(raw["names"])}
    root = np.zeros((len(names), len(names)))
    for number, row in enumerate(raw["root"]):
        root[number, : len(row)] = row
    evidence = Evidence(names, np.array(raw["mean"]), root)
    return Calibration(evidence, frozenset(map(tuple, raw["seen"])), raw["rows"])


@dataclass(frozen=True)
class PublishedPerformance:
    """Speeds from data sheets and published runs.

    ``software``: one of :data:`SOFTWARE`. ``placement_group``: whether VMs are in a cluster
    placement group.
    """

    software: str = "eager"
    placement_group: bool = False

    def __post_init__(self) -> None:
        """Raise a RequestError for software of which nothing is known."""
        if self.software not in SOFTWARE:
            raise RequestError("software", self.software, one_of(self.software, SOFTWARE))

    def machine(self, instance: InstanceType) -> Machine | str:
        """A type as a machine, or why it is none."""
        if instance.gpu is None:
            return "it has no GPU"
        if instance.gpu.manufacturer != "NVIDIA":
            return f"nothing is published of {instance.gpu.name} here"
        gpu = find_accelerator(instance.gpu.name, instance.gpu.memory_gib)
        if gpu is None:
            return f"the data sheet of {instance.gpu.name} is not known here"
        sustained = instance.network_baseline_gbps or instance.network_gbps
        network = interconnect(instance.type_name, sustained, placement_group=self.placement_group)
        return Machine(gpu, instance.gpu.count, network, instance.vcpus)

    def speed(
        self, instance: InstanceType, workload: Workload, vms: FloatArray
    ) -> TrainingSpeed | str:
        """The speed of clusters of these sizes of a type, or why there is none."""
        machine = self.machine(instance)
        if isinstance(machine, str):
            return machine
        return self.of_machine(machine, workload, vms, instance.type_name)

    def of_machine(
        self, machine: Machine, workload: Workload, vms: FloatArray, name: str = ""
    ) -> TrainingSpeed | str:
        """The speed of clusters of a machine, or why there is none; ``name``: of its type."""
        setup = self._setup(machine, workload)
        if setup is None:
            return f"{machine.accelerator.name} does not compute in {workload.precision.value}"
        return _predicted(setup, tuple(vms.tolist()))

    def parts(self, machine: Machine, workload: Workload, vms: FloatArray) -> Parts:
        """What steps on clusters of a machine consist of.

        The machine must compute in the workload's precision.
        """
        setup = self._setup(machine, workload)
        assert setup is not None
        return parts_of(setup, vms, calibration().evidence)

    def _setup(self, machine: Machine, workload: Workload) -> TrainingSetup | None:
        """None where the machine does not compute in the workload's precision."""
        precision = machine.accelerator.precision(workload.precision)
        if precision is None:
            return None
        software = self.software
        # Casts that are not fused cost more than they save: training in fp8 needs a compiler.
        if precision is Precision.FP8 and software not in ("compiled", "tuned"):
            software = "compiled"
        return TrainingSetup(workload, machine, precision, software)

    def cluster(
        self, gpu: Accelerator, workload: Workload, gpus: int, nodes: int | None
    ) -> TrainingSpeed:
        """The speed of so many GPUs, in ``nodes`` VMs or as they are mostly rented.

        Raises a RequestError if nodes do not divide GPUs, or the GPU lacks the precision.
        """
        _, usual = usual_machine(gpu, placement_group=self.placement_group)
        each = int(usual.gpus)
        if nodes is None:
            nodes = next(n for n in range(max(1, -(-gpus // each)), gpus + 1) if gpus % n == 0)
        if gpus % nodes or gpus // nodes > MOST_IN_A_VM:
            allowed = (
                f"a number that divides {gpus} GPUs evenly, with at most {MOST_IN_A_VM} in a VM"
            )
            raise RequestError("nodes", nodes, allowed)
        # Part of a machine gets the same part of its network.
        share = min(1.0, gpus / nodes / each)
        network = usual.interconnect
        network = replace(
            network, gb_per_s=network.gb_per_s * share, line_gb_per_s=network.line_gb_per_s * share
        )
        machine = replace(usual, gpus=gpus // nodes, interconnect=network)
        speed = self.of_machine(machine, workload, np.array([float(nodes)]))
        if isinstance(speed, str):
            allowed = f"one that {gpu.name} has: {', '.join(gpu.peak_tflops)}"
            raise RequestError("precision", workload.precision.value, allowed)
        return speed


@lru_cache(maxsize=1000)
def _predicted(setup: TrainingSetup, vms: tuple[float, ...]) -> TrainingSpeed:
    """The prediction, cached because regions and commands ask for the same ones."""
    known = calibration()
    key = key_of(setup.workload, setup.machine.accelerator, setup.precision)
    sizes = np.array(vms, dtype=np.float64)
    return predict(setup, sizes, known.evidence, published=key in known.seen)
