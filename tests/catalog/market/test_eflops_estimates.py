"""What is measured, what follows from it, and what is estimated."""

from __future__ import annotations

import numpy as np
import pytest

from deepvm.catalog.market.build_catalog import performance_table
from deepvm.catalog.store import load_catalog
from deepvm.core.cluster.instances import Gpu
from deepvm.core.cluster.speedup import RingSpeedup
from deepvm.io.user_dirs import read_data

TABLE = performance_table()


def test_measured_types_are_the_papers_own() -> None:
    paper = load_catalog("paper")
    for name, eflops in (("g3s.xlarge", 100), ("g4dn.xlarge", 377), ("g5.xlarge", 696)):
        known = TABLE.of(name, paper[name].gpu, None)
        assert (known.eflops, known.eflops_basis, known.speedup_basis) == (eflops, "", "")
        assert known.speedups == paper[name].speedups


def test_another_size_with_the_same_gpu_borrows_its_curves() -> None:
    known = TABLE.of("g4dn.8xlarge", Gpu("T4", 1, 16), 50)
    assert (known.eflops, known.eflops_basis) == (377, "")
    assert known.speedup_basis == "those of g4dn.xlarge, the same GPU"
    assert {c.kind for c in known.speedups} == {"hybrid", "ring", "measured"}
    assert all(c.workload is None for c in known.speedups)


def test_several_gpus_are_as_many_times_one_and_marked() -> None:
    known = TABLE.of("g5.48xlarge", Gpu("A10G", 8, 22.352), 100)
    assert (known.eflops, known.eflops_basis) == (8 * 696, "8 x one A10G's")


def test_others_follow_their_memory_bandwidth() -> None:
    for gpu, gb_per_s in [
        (Gpu("T4g", 1, 16), 320),
        (Gpu("L4", 1, 22.352), 300),
        (Gpu("L40S", 1, 44.703), 864),
        (Gpu("V100", 1, 32), 900),
        (Gpu("A100", 1, 40), 1555),
        (Gpu("A100", 1, 80), 2039),
        (Gpu("RTX PRO Server 6000", 1, 96), 1597),
        (Gpu("H100", 1, 80), 3350),
        (Gpu("H200", 1, 141), 4800),
        (Gpu("B200", 1, 179.062), 8000),
    ]:
        known = TABLE.of("new.xlarge", gpu, 10)
        per_gb = (377 / 320 + 696 / 600) / 2
        assert known.eflops == pytest.approx(gb_per_s * per_gb, rel=1e-3)
        assert known.eflops_basis.startswith(f"{gb_per_s} GB/s of memory bandwidth")


def test_the_two_references_agree_within_the_stated_two_percent() -> None:
    t4, a10g = (TABLE.measured[n].eflops or 0 for n in ("g4dn.xlarge", "g5.xlarge"))
    assert t4 / 320 == pytest.approx(a10g / 600, rel=0.02)


def test_the_scale_is_the_mean_of_the_references() -> None:
    known = read_data("aws/performance.json")
    gb_per_s = {row["gpu"]: row["gb_per_s"] for row in known["memory_gb_per_s"]}
    figures = []
    for name, reference in known["references"].items():
        own = TABLE.measured[name]
        ring = own.curve("ring")
        assert isinstance(ring, RingSpeedup) and own.gpu and own.eflops
        c = ring.c * float(reference["baseline_gbps"]) / own.eflops
        figures.append((own.eflops / gb_per_s[own.gpu.name], c, ring.l / own.eflops, own.eflops))
    eflops, c, latency, _ = (sum(column) / len(figures) for column in zip(*figures, strict=True))
    scale = {key: value for key, value in known["scale"].items() if key != "description"}
    assert scale == {
        "eflops_per_gb_per_s": eflops,
        "ring_c_gbps_per_eflops": c,
        "ring_l_per_eflops": latency,
        "fastest_eflops": max(figure[-1] for figure in figures),
    }


def test_the_scaled_ring_gives_back_the_references_within_ten_percent() -> None:
    """T4g has the bandwidth of a T4, so on g4dn.xlarge's network it must come out like one.

    The same for an A10G.
    """
    for name, gpu, baseline in (
        ("g4dn.xlarge", Gpu("T4g", 1, 16), 5.0),
        ("g5.xlarge", Gpu("L4", 1, 22.352), 2.5),
    ):
        scaled = next(c for c in TABLE.of("x", gpu, baseline).speedups)
        own = TABLE.measured[name].curve("ring")
        assert isinstance(scaled, RingSpeedup) and isinstance(own, RingSpeedup)
        eflops = TABLE.of("x", gpu, baseline).eflops or 0.0
        ratio = eflops / (TABLE.measured[name].eflops or 1.0)
        assert scaled.c == pytest.approx(own.c * ratio, rel=0.1)
        assert scaled.l == pytest.approx(own.l * ratio, rel=0.25)


def test_far_beyond_what_was_measured_it_is_called_a_guess() -> None:
    near, far = (
        TABLE.of("x", Gpu(name, 1, memory), 10) for name, memory in (("L40S", 44.703), ("H100", 80))
    )
    assert "guess" not in near.eflops_basis and "EFA" not in near.speedup_basis
    assert (
        "6 times as fast as any GPU that was measured, so take this for a guess" in far.eflops_basis
    )
    assert "EFA" in far.speedup_basis


def test_a_faster_network_scales_better() -> None:
    n = np.arange(1.0, 33.0)
    slow, fast = (
        TABLE.of("x", Gpu("H100", 8, 80), gbps).speedups[0].speedup(n) for gbps in (100.0, 3200.0)
    )
    assert slow[0] == fast[0] == 1
    assert (fast[1:] > slow[1:]).all()


def test_what_nobody_knows_stays_unknown() -> None:
    assert TABLE.of("c5.large", None, 10).eflops is None
    assert TABLE.of("g4ad.xlarge", Gpu("Radeon Pro V520", 1, 8, "AMD"), 10).eflops is None
    assert TABLE.of("dl1.24xlarge", Gpu("L4", 1, 24, "Habana"), 10).eflops is None
    assert TABLE.of("g7.2xlarge", Gpu("RTX PRO 4500", 1, 32), 40).eflops is None
    assert TABLE.of("p4d.x", Gpu("A100", 8, 60), 40).eflops is None
    assert TABLE.of("x", Gpu("L4", 1, 24), None).speedups == ()
