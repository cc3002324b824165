"""GPUs and the links between them, as data sheets and measurements describe them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from deepvm.core.training.workload import Precision
from deepvm.core.units import GIB

USUAL_MATMUL = 0.75
"""Share of peak that large matrix products reach: mostly 0.65 to 0.97 (L4, 72 W: 0.43 to 0.47)."""

WITHOUT_WHEELS: Mapping[str, str] = {"T4g": "PyTorch's wheels for Arm have no kernels for the T4g"}
"""GPUs that the PyTorch which most people install cannot use.

Torch 2.9.1 for aarch64 has kernels for sm_80, 90, 100 and 120 (``torch.cuda.get_arch_list()``); a
T4g is sm_75.
"""


@dataclass(frozen=True)
class Accelerator:
    """A GPU model.

    Attributes:
        chip: the die; an H100 and an H200 are both a GH100.
        generation: GPUs of one use their peaks alike, such as ``ampere``; small ones apart, as
            their power and memory limit them differently.
        peak_tflops: dense peak by precision, without sparsity. matmul_tflops: what large matrix
            products reach on tensor cores, where that is published: boards with little power are
            far from their peak.
        memory_gib: of each GPU. memory_gb_per_s: of its own memory. ecc_share: of it that holds
            error correction.
        link: ``nvlink`` or ``pcie``. link_gb_per_s: what an all-reduce sees between GPUs of one VM.
        cache_mb: its last cache, which spares part of the traffic.
    """

    name: str
    chip: str
    generation: str
    memory_gib: float
    memory_gb_per_s: float
    link_gb_per_s: float
    link: str
    cache_mb: float
    peak_tflops: Mapping[str, float] = field(hash=False)
    source: str = ""
    ecc_share: float = 0.0
    matmul_tflops: Mapping[str, float] = field(default_factory=dict, hash=False)

    def precision(self, wanted: Precision) -> Precision | None:
        """The precision that is used; None if the GPU does not have it."""
        order = (
            (Precision.BF16, Precision.FP16, Precision.FP32)
            if wanted is Precision.AUTO
            else (wanted,)
        )
        return next((p for p in order if p.value in self.peak_tflops), None)

    @property
    def traffic_gb_per_s(self) -> float:
        """Effective bandwidth with caches: 5 % more for each doubling of the last one from 4 MB."""
        return self.memory_gb_per_s * (1.0 + 0.05 * math.log2(self.cache_mb / 4.0))

    def peak_flops(self, precision: Precision) -> float:
        """FLOP/s at most."""
        return self.peak_tflops[precision.value] * 1e12

    def matmul_flops(self, precision: Precision) -> float:
        """FLOP/s of large matrix products; if unpublished, the usual share of the peak."""
        shares = [reached / self.peak_tflops[p] for p, reached in self.matmul_tflops.items()]
        usual = self.peak_tflops[precision.value] * min([USUAL_MATMUL, *shares])
        return self.matmul_tflops.get(precision.value, usual) * 1e12

    @property
    def memory_bytes(self) -> float:
        """Bytes that a program has on one GPU: about 96 %, less the driver and ECC."""
        return self.memory_gib * GIB * (0.96 - self.ecc_share)


@dataclass(frozen=True)
class Interconnect:
    """How the VMs of a cluster reach one another.

    Attributes:
        kind: ``efa``, ``rdma`` or ``ethernet``; errors of one kind go together. machine: errors of
            one type of VM, too.
        gb_per_s: what an all-reduce sees of one VM's network. line_gb_per_s: the nominal figure,
            never exceeded.
        per_gpu: by which share synchronisation grows with every further GPU.
        fitted_vms: the largest cluster that the figure was checked against. basis: where it comes
            from, in words.
    """

    kind: str
    machine: str
    gb_per_s: float
    per_gpu: float = 0.0
    fitted_vms: int = 8
    basis: str = ""
    line_gb_per_s: float = math.inf


@dataclass(frozen=True)
class Machine:
    """A training VM: its GPUs (a mean if VMs differ), network, and vCPUs if they may limit it."""

    accelerator: Accelerator
    gpus: float
    interconnect: Interconnect
    vcpus: int | None = None
