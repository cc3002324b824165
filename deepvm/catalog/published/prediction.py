"""Predict how fast a number of GPUs trains a workload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from deepvm.catalog.published.hardware import accelerators, find_accelerator
from deepvm.catalog.published.performance import PublishedPerformance
from deepvm.catalog.published.workloads import read_workload
from deepvm.core.meanings import meant_gpu, none_of
from deepvm.core.options import whole
from deepvm.core.training.speed import Training, TrainingSpeed
from deepvm.core.units import GIB, parse_bytes
from deepvm.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deepvm.core.cluster.instances import Catalog, InstanceType

_MOST_GPUS = 100_000


class OwnSteps(Protocol):
    """What was measured on the user's own machines."""

    def speeds(
        self, published: PublishedPerformance, types: Mapping[str, InstanceType]
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
        **workload: what is trained, see
            :class:`deepvm.core.options.AmountOptions`.

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
    vms = None if nodes is None else whole(_MOST_GPUS)(nodes, "nodes")
    source = PublishedPerformance(software, placement_group)
    if tables is not None:
        source = tables.speeds(source, {})
    return source.cluster(accelerator, trained, count, vms)


def workload(
    *,
    software: str = "eager",
    placement_group: bool = False,
    tables: OwnSteps | None = None,
    catalog: Catalog | None = None,
    **options: Any,
) -> Training:
    """Say what is trained.

    This is for ``training=`` of :func:`deepvm.recommend`, ``explain`` and ``sweep``.

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
