"""Speed of a type: measured on itself, on one with the same GPU, or estimated; each answer says which.

Measured are three types of the embedded catalog ``paper``. The rest follows from them:

- the same GPU once: its eFLOPS, and its curves, which are those of another size and say so;
- the same GPU several times: as many times its eFLOPS (an estimate until somebody profiles the VM). In data-parallel
  training each GPU keeps its batch, so a step takes as long and the curve remains;
- another NVIDIA GPU: eFLOPS in proportion to its memory bandwidth, and a ring whose costs are scaled: both are counted
  in step times, so they grow with the GPU's eFLOPS, and c shrinks with the network that the VM sustains.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from deepvm.catalog.documents.json_file import load_exact
from deepvm.catalog.documents.serialization import build_instance
from deepvm.core.cluster.instances import Gpu, InstanceType
from deepvm.core.cluster.speedup import RingSpeedup, SpeedupCurve
from deepvm.io.user_dirs import data_folder

_DIGITS = 4
_FAR = 4
"""GPUs so many times as fast as any measured one are out of what the scaling can be trusted for."""


@dataclass(frozen=True)
class Performance:
    """Speed of a type; the fields are those of :class:`~deepvm.core.cluster.instances.InstanceType`."""

    eflops: float | None = None
    eflops_basis: str = ""
    speedups: tuple[SpeedupCurve, ...] = ()
    speedup_basis: str = ""


@dataclass(frozen=True)
class _Scale:
    """The measured GPUs' figures for one unit of their size.

    Attributes:
        eflops: per GB/s of memory bandwidth. c: per eFLOPS of a GPU, times the sustained Gbit/s. l: per eFLOPS.
        names: the types that were measured. fastest: the most eFLOPS of a GPU among them.
    """

    eflops: float
    c: float
    l: float  # noqa: E741  the letter of the ring
    names: tuple[str, ...]
    fastest: float


@dataclass(frozen=True)
class PerformanceTable:
    """All that is known.

    Attributes:
        measured: the types somebody profiled, by name.
        eflops_unit: what eFLOPS count, in words.
        absent: why types that people know are no longer offered, by glob.
    """

    measured: Mapping[str, InstanceType]
    eflops_unit: str
    absent: Mapping[str, str]
    _gb_per_s: tuple[Mapping[str, Any], ...]
    _scale: _Scale

    def of(self, name: str, gpu: Gpu | None, baseline_gbps: float | None) -> Performance:
        """Speed of a type.

        Args:
            name: its name.
            gpu: its GPUs, None for a CPU type.
            baseline_gbps: what its network sustains, Gbit/s; None when unknown.
        """
        if gpu is None:
            return Performance()
        own = self.measured.get(name)
        if own is not None:
            return Performance(own.eflops, "", own.speedups, "")
        same = next((i for i in self.measured.values() if i.gpu and i.gpu.name == gpu.name), None)
        if same is not None and same.eflops is not None:
            curves = tuple(c for c in same.speedups if c.workload is None)
            basis = "" if gpu.count == 1 else f"{gpu.count} x one {gpu.name}'s"
            return Performance(gpu.count * same.eflops, basis, curves, f"those of {same.name}, the same GPU")
        return self._estimated(gpu, baseline_gbps)

    def _estimated(self, gpu: Gpu, baseline_gbps: float | None) -> Performance:
        bandwidth = self._bandwidth(gpu)
        if bandwidth is None:
            return Performance()
        scale = self._scale
        one = _rounded(bandwidth * scale.eflops)
        measured = " and ".join(scale.names)
        each = f"{gpu.count} x " if gpu.count > 1 else ""
        basis = f"{each}{bandwidth:g} GB/s of memory bandwidth, in proportion to {measured}"
        if baseline_gbps is None:
            return Performance(gpu.count * one, basis)
        ring = RingSpeedup(_rounded(scale.c * one / baseline_gbps), _rounded(scale.l * one), fitted_to=32.0)
        curve_basis = f"the rings of {measured}, scaled by eFLOPS of a GPU and sustained network"
        times = one / scale.fastest
        if times > _FAR:
            far = f"; it is {times:.0f} times as fast as any GPU that was measured, so take this for a guess"
            basis, curve_basis = basis + far, curve_basis + ", which EFA and larger models would soften"
        return Performance(gpu.count * one, basis, (ring,), curve_basis)

    def _bandwidth(self, gpu: Gpu) -> float | None:
        for row in self._gb_per_s:
            memory = row.get("memory_gib")
            if row["gpu"] == gpu.name and gpu.manufacturer == "NVIDIA" and memory in (None, gpu.memory_gib):
                return float(row["gb_per_s"])
        return None


@lru_cache(maxsize=1)
def performance_table() -> PerformanceTable:
    """The table that comes with deepvm."""
    folder = data_folder()
    paper = load_exact((folder / "paper.json").read_text(encoding="utf-8"))
    table = json.loads((folder / "aws" / "performance.json").read_text(encoding="utf-8"))
    profiled = [build_instance(i) for i in paper["instances"] if i.get("eflops") is not None]
    measured = {i.name: i for i in profiled}
    rows = tuple(table["memory_gb_per_s"])
    return PerformanceTable(
        measured, paper["eflops_unit"], table["absent"], rows, _scale_of(table["references"], measured, rows)
    )


def _scale_of(
    references: list[dict[str, Any]], measured: Mapping[str, InstanceType], rows: tuple[Mapping[str, Any], ...]
) -> _Scale:
    """Means over the measured types that are references."""
    eflops, c, l, fastest = [], [], [], []  # noqa: E741
    for reference in references:
        instance = measured[reference["instance_type"]]
        ring = instance.curve("ring")
        assert instance.gpu is not None and instance.eflops is not None and isinstance(ring, RingSpeedup)
        gpu = instance.gpu.name
        eflops.append(instance.eflops / next(float(r["gb_per_s"]) for r in rows if r["gpu"] == gpu))
        c.append(ring.c * float(reference["baseline_gbps"]) / instance.eflops)
        l.append(ring.l / instance.eflops)
        fastest.append(instance.eflops)
    count = len(references)
    names = tuple(r["instance_type"] for r in references)
    return _Scale(sum(eflops) / count, sum(c) / count, sum(l) / count, names, max(fastest))


def _rounded(value: float) -> float:
    """Four digits: more would pretend to a precision that an estimate does not have."""
    return float(f"{value:.{_DIGITS}g}")
