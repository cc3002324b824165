"""Speed of a type: measured on itself, on one with the same GPU, or estimated.

The result states which.

Three types of the embedded catalog ``paper`` are measured. The rest follows from them:

- the same GPU: its eFLOPS and its curves, with a note in both;
- the same GPU several times: as many times its eFLOPS. In data-parallel training each GPU keeps its
  batch, so a step takes as long and the curve remains;
- another NVIDIA GPU: eFLOPS in proportion to its memory bandwidth, and a ring with scaled costs:
  both are counted in step times, so they grow with the GPU's eFLOPS, and c shrinks with the network
  that the VM sustains.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

from deepvm.catalog.serialization import build_instance
from deepvm.core.cluster.instances import Gpu, InstanceType
from deepvm.core.cluster.speedup import RingSpeedup, SpeedupCurve
from deepvm.io.user_dirs import data_folder, read_data

_MAX_RATIO = 4
"""Speed over that of the fastest measured GPU beyond which the scaling is a guess."""


class Performance(NamedTuple):
    """Speed of a type.

    The fields are those of :class:`~deepvm.core.cluster.instances.InstanceType`.
    """

    eflops: float | None = None
    eflops_basis: str = ""
    speedups: tuple[SpeedupCurve, ...] = ()
    speedup_basis: str = ""


class PerformanceTable:
    """Speeds by type: measured, absent and estimated.

    ``measured``: profiled types by name. ``absent``: by glob, why well-known types are missing.
    """

    def __init__(self) -> None:
        """Read the measured catalog ``paper`` and AWS's ``performance.json``.

        The latter has the scale, which is the mean of its references (a test compares them).
        """
        text = (data_folder() / "paper.json").read_text(encoding="utf-8")
        paper = json.loads(text, parse_float=Decimal)
        profiled = (build_instance(i) for i in paper["instances"] if i.get("eflops") is not None)
        self.measured: Mapping[str, InstanceType] = {i.name: i for i in profiled}
        self.eflops_unit: str = paper["eflops_unit"]
        self._known = read_data("aws/performance.json")
        self.absent: Mapping[str, str] = self._known["absent"]

    def of(self, name: str, gpu: Gpu | None, baseline_gbps: float | None) -> Performance:
        """Speed of a type with these GPUs (None: a CPU type) and this sustained network."""
        if gpu is None:
            return Performance()
        own = self.measured.get(name)
        if own is not None:
            return Performance(own.eflops, "", own.speedups, "")
        for same in self.measured.values():
            if same.gpu and same.gpu.name == gpu.name and same.eflops is not None:
                basis = f"{gpu.count} x one {gpu.name}'s" if gpu.count > 1 else ""
                curves = tuple(c for c in same.speedups if c.workload is None)
                curve_basis = f"those of {same.name}, the same GPU"
                return Performance(gpu.count * same.eflops, basis, curves, curve_basis)
        for row in self._known["memory_gb_per_s"] if gpu.manufacturer == "NVIDIA" else ():
            if row["gpu"] == gpu.name and row.get("memory_gib") in (None, gpu.memory_gib):
                return self._estimated(gpu, float(row["gb_per_s"]), baseline_gbps)
        return Performance()

    def _estimated(self, gpu: Gpu, gb_per_s: float, baseline_gbps: float | None) -> Performance:
        scale = self._known["scale"]
        one = _rounded(gb_per_s * scale["eflops_per_gb_per_s"])
        measured = " and ".join(self._known["references"])
        each = f"{gpu.count} x " if gpu.count > 1 else ""
        basis = f"{each}{gb_per_s:g} GB/s of memory bandwidth, in proportion to {measured}"
        if baseline_gbps is None:
            return Performance(gpu.count * one, basis)
        c = _rounded(scale["ring_c_gbps_per_eflops"] * one / baseline_gbps)
        ring = RingSpeedup(c, _rounded(scale["ring_l_per_eflops"] * one), fitted_to=32.0)
        curve_basis = f"the rings of {measured}, scaled by eFLOPS of a GPU and sustained network"
        times = one / scale["fastest_eflops"]
        if times > _MAX_RATIO:
            basis += f"; it is {times:.0f} times as fast as any GPU that was measured, so take this"
            basis += " for a guess"
            curve_basis += ", which EFA and larger models would soften"
        return Performance(gpu.count * one, basis, (ring,), curve_basis)


performance_table = lru_cache(maxsize=1)(PerformanceTable)
"""The table that comes with deepvm."""


def _rounded(value: float) -> float:
    """Four digits: estimates are no better."""
    return float(f"{value:.4g}")
