"""Speed of a type: measured on itself, on one with the same GPU, or estimated.

Each answer says which.

Three types of the embedded catalog ``paper`` are measured. The rest follows from them:

- the same GPU: its eFLOPS and its curves, and both say so;
- the same GPU several times: as many times its eFLOPS. In data-parallel training each GPU keeps its
  batch, so a step takes as long and the curve remains;
- another NVIDIA GPU: eFLOPS in proportion to its memory bandwidth, and a ring with scaled costs:
  both are counted in step times, so they grow with the GPU's eFLOPS, and c shrinks with the network
  that the VM sustains.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from deepvm.catalog.serialization import build_instance
from deepvm.core.cluster.instances import Gpu, InstanceType
from deepvm.core.cluster.speedup import RingSpeedup, SpeedupCurve
from deepvm.documents.formats.json import load_exact
from deepvm.io.user_dirs import data_folder

_FAR = 4
"""How many times as fast as any measured GPU another may be; beyond, the scaling is a guess."""


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

    ``measured`` has profiled types by name, ``absent`` says by glob why well-known types are gone.
    """

    def __init__(self) -> None:
        """Derive the scale.

        It comes from the references of AWS's ``performance.json``, as measured in the catalog
        ``paper``.
        """
        paper = load_exact((data_folder() / "paper.json").read_text(encoding="utf-8"))
        table = json.loads((data_folder() / "aws" / "performance.json").read_text(encoding="utf-8"))
        profiled = (build_instance(i) for i in paper["instances"] if i.get("eflops") is not None)
        self.measured: Mapping[str, InstanceType] = {i.name: i for i in profiled}
        self.eflops_unit: str = paper["eflops_unit"]
        self.absent: Mapping[str, str] = table["absent"]
        self._gb_per_s: Sequence[Mapping[str, Any]] = table["memory_gb_per_s"]
        self._references = [r["instance_type"] for r in table["references"]]
        # For each reference: eFLOPS per GB/s of memory bandwidth; the ring's c per eFLOPS of a GPU,
        # times the sustained Gbit/s; its l per eFLOPS; eFLOPS.
        rows = []
        for reference in table["references"]:
            instance = self.measured[reference["instance_type"]]
            ring = instance.curve("ring")
            eflops = instance.eflops
            assert instance.gpu is not None and eflops is not None and isinstance(ring, RingSpeedup)
            gb_per_s = self._bandwidth(instance.gpu)
            assert gb_per_s is not None
            c = ring.c * float(reference["baseline_gbps"]) / eflops
            rows.append((eflops / gb_per_s, c, ring.l / eflops, eflops))
        self._eflops, self._c, self._l, _ = (
            sum(column) / len(rows) for column in zip(*rows, strict=True)
        )
        self._fastest = max(row[-1] for row in rows)

    def _bandwidth(self, gpu: Gpu) -> float | None:
        """Of the memory of a model, GB/s; None where no data sheet is known."""
        for row in self._gb_per_s:
            if row["gpu"] == gpu.name and row.get("memory_gib") in (None, gpu.memory_gib):
                return float(row["gb_per_s"])
        return None

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
        gb_per_s = self._bandwidth(gpu) if gpu.manufacturer == "NVIDIA" else None
        if gb_per_s is None:
            return Performance()
        return self._estimated(gpu, gb_per_s, baseline_gbps)

    def _estimated(self, gpu: Gpu, gb_per_s: float, baseline_gbps: float | None) -> Performance:
        one = _rounded(gb_per_s * self._eflops)
        measured = " and ".join(self._references)
        each = f"{gpu.count} x " if gpu.count > 1 else ""
        basis = f"{each}{gb_per_s:g} GB/s of memory bandwidth, in proportion to {measured}"
        if baseline_gbps is None:
            return Performance(gpu.count * one, basis)
        ring = RingSpeedup(
            _rounded(self._c * one / baseline_gbps), _rounded(self._l * one), fitted_to=32.0
        )
        curve_basis = f"the rings of {measured}, scaled by eFLOPS of a GPU and sustained network"
        times = one / self._fastest
        if times > _FAR:
            basis += (
                f"; it is {times:.0f} times as fast as any GPU that was measured, so take this for"
                " a guess"
            )
            curve_basis += ", which EFA and larger models would soften"
        return Performance(gpu.count * one, basis, (ring,), curve_basis)


performance_table = lru_cache(maxsize=1)(PerformanceTable)
"""The table that comes with deepvm."""


def _rounded(value: float) -> float:
    """Four digits: estimates are no better."""
    return float(f"{value:.4g}")
