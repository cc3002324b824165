"""Training speeds of VM types from published data: the planner's source of speeds."""

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from deepvm.catalog.published.hardware import (
    accelerators,
    find_accelerator,
    interconnect,
    usual_machine,
)
from deepvm.catalog.published.workloads import read_workload
from deepvm.core.arrays import FloatArray
from deepvm.core.cluster.instances import InstanceType
from deepvm.core.meanings import meant_gpu, none_of
from deepvm.core.options import whole
from deepvm.core.spelling import one_of
from deepvm.core.training.evidence import Evidence
from deepvm.core.training.prediction import TrainingSetup, parts_of
from deepvm.core.training.prediction import predict as predict_setup
from deepvm.core.training.roofline import Accelerator, Machine
from deepvm.core.training.speed import Parts, Training, TrainingSpeed
from deepvm.core.training.workload import Precision, Workload
from deepvm.core.units import GIB, parse_bytes
from deepvm.errors import RequestError
from deepvm.io.user_dirs import read_data
from deepvm.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deepvm.core.cluster.instances import Catalog

_MOST_GPUS = 100_000
MOST_IN_A_VM = 16  # GPUs of the largest VMs (p2.16xlarge); others have 8
# Plain PyTorch, Hugging Face Transformers, ``torch.compile``, what vendors tune. Hugging Face
# Transformers train adapters with PEFT
SOFTWARE = ("eager", "transformers", "compiled", "tuned")

# Effects learned from the published steps; a test learns them again and compares
CALIBRATION = "performance/calibration.json"


@dataclass(frozen=True)
class Calibration:
    """Evidence, and which runs it is from."""

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
    """Speeds from data sheets and published runs."""

    software: str = "eager"
    placement_group: bool = False

    def __post_init__(self) -> None:
        if self.software not in SOFTWARE:
            raise RequestError("software", self.software, one_of(self.software, SOFTWARE))

    def machine(self, instance: InstanceType) -> Machine | str:
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
        machine = self.machine(instance)
        if isinstance(machine, str):
            return machine
        return self.of_machine(machine, workload, vms, instance.type_name)

    def of_machine(
        self, machine: Machine, workload: Workload, vms: FloatArray, name: str = ""
    ) -> TrainingSpeed | str:
        setup = self._setup(machine, workload)
        if setup is None:
            return f"{machine.accelerator.name} does not compute in {workload.precision.value}"
        return _predicted(setup, tuple(vms.tolist()))

    def parts(self, machine: Machine, workload: Workload, vms: FloatArray) -> Parts:
        """What steps on clusters of a machine consist of."""
        setup = self._setup(machine, workload)
        assert setup is not None
        return parts_of(setup, vms, calibration().evidence)

    def _setup(self, machine: Machine, workload: Workload) -> TrainingSetup | None:
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
        """The speed of so many GPUs, in ``nodes`` VMs or as they are mostly rented."""
        _, usual = usual_machine(gpu, placement_group=self.placement_group)
        each = int(usual.gpus)
        if nodes is None:
            nodes = next(n for n in range(max(1, -(-gpus // each)), gpus + 1) if gpus % n == 0)
        if gpus % nodes or gpus // nodes > MOST_IN_A_VM:
            allowed = f"a number that divides {gpus} GPUs evenly"
            raise RequestError("nodes", nodes, f"{allowed}, with at most {MOST_IN_A_VM} in a VM")
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
    known = calibration()
    key = key_of(setup.workload, setup.machine.accelerator, setup.precision)
    sizes = np.array(vms, dtype=np.float64)
    return predict_setup(setup, sizes, known.evidence, published=key in known.seen)


class OwnSteps(Protocol):
    """What was measured on the user's own machines."""

    def speeds(
        self, published: PublishedPerformance, types: "Mapping[str, InstanceType]"
    ) -> PublishedPerformance:
        """Speeds by these steps, else as published."""


def predict(
    gpu: str,
    gpus: int | str = 1,
    nodes: int | str | None = None,
    *,
    gpu_memory: str | int | None = None,
    software: str = "eager",
    placement_group: bool = False,
    tables: OwnSteps | None = None,
    **workload: Any,
) -> TrainingSpeed:
    """Predict throughput, step time and MFU, with 80 % intervals.

    Args:
        gpu: GPU model, such as ``"H100"``.
        gpus: how many of them, in all.
        nodes: in how many VMs, None: as they are mostly rented.
        gpu_memory: which of several with this name, such as ``"40GiB"``, or bytes.
        software: ``"eager"``, ``"transformers"``, ``"compiled"`` or ``"tuned"``.
        placement_group: whether the VMs are in a cluster placement group.
        tables: measured on your own machines, ``deepvm.load_tables()``.
        **workload: what is trained, see :class:`deepvm.core.options.AmountOptions`.

    Raises:
        RequestError: an argument cannot be used. CatalogFormatError: a bad model file.
    """
    trained = read_workload(**workload)
    memory = None
    if gpu_memory is not None:
        memory = parse_bytes(gpu_memory, "gpu_memory") / GIB
    accelerator = find_accelerator(gpu, memory)
    if accelerator is None:
        names = list(dict.fromkeys(known.name for known in accelerators()))
        raise RequestError("gpu", gpu, none_of(gpu, names, meant_gpu(gpu, names, "--gpu-memory")))
    count = whole(_MOST_GPUS)(gpus, "gpus")
    vms = None
    if nodes is not None:
        vms = whole(_MOST_GPUS)(nodes, "nodes")
    source = PublishedPerformance(software, placement_group)
    if tables is not None:
        source = tables.speeds(source, {})
    return source.cluster(accelerator, trained, count, vms)


def workload(
    *,
    software: str = "eager",
    placement_group: bool = False,
    tables: OwnSteps | None = None,
    catalog: "Catalog | None" = None,
    **options: Any,
) -> Training:
    """Say what is trained, for ``training=`` of :func:`deepvm.recommend`, ``explain``, ``sweep``.

    Args:
        software: ``"eager"``, ``"transformers"``, ``"compiled"`` or ``"tuned"``.
        placement_group: whether the VMs are in a cluster placement group.
        tables: measured on your own machines, ``deepvm.load_tables()``.
        catalog: of the types that the tables name.
        **options: such as ``model="llama-8b", method="fsdp", tokens="2B"``; see
            :class:`deepvm.core.options.AmountOptions`.

    Raises:
        RequestError: an argument cannot be used. CatalogFormatError: a bad model file.
    """
    source = PublishedPerformance(software, placement_group)
    if tables is not None:
        source = tables.speeds(source, {} if catalog is None else catalog.by_name)
    return Training(read_workload(**options), source)
