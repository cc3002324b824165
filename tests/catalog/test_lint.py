"""Warnings about catalogs that are valid."""

import sys

from deepvm.catalog.catalog_files import catalog_warnings
from deepvm.catalog.store import load_catalog
from deepvm.core.cluster.instances import Catalog, Gpu, InstanceType
from deepvm.core.cluster.speedup import HybridSpeedup, MeasuredSpeedup, RingSpeedup

GOOD_GPU = InstanceType(
    "g",
    4,
    16,
    10,
    "1",
    "0.3",
    Gpu("T4"),
    100,
    (HybridSpeedup(0.1408559584, 14.49263334, 13.53250952),),
)
GOOD_CPU = InstanceType("c", 4, 8, 10, "0.2", "0.1")


def warnings_of(*instances, **changes):
    return catalog_warnings(Catalog("mine", instances, **changes))


def test_nothing_to_say():
    assert warnings_of(GOOD_GPU, GOOD_CPU) == ()


def test_clamped_curves_are_named_with_their_sizes():
    low = InstanceType(
        "low",
        4,
        spot_usd_per_hour=1,
        gpu=Gpu("T4"),
        eflops=1,
        speedups=(HybridSpeedup(0.5, 20, 10),),
    )
    (warning,) = warnings_of(low)
    assert warning == "low: the hybrid curve is negative, counted as 0 from n = 1 to 15"
    high = HybridSpeedup(0.1, 15, 10, workload="vgg")
    named = InstanceType(
        "high", 4, spot_usd_per_hour=1, gpu=Gpu("T4"), eflops=1, speedups=(RingSpeedup(0, 0), high)
    )
    (warning,) = warnings_of(named, default_speedup="ring")
    assert warning == "high: the hybrid curve of vgg is above n, counted as n from n = 1 to 1"


def test_what_the_recommender_will_miss():
    bare = InstanceType("bare", 4, spot_usd_per_hour="2", on_demand_usd_per_hour="1", gpu=Gpu("T4"))
    useless = [InstanceType(f"u{i}", 4, spot_usd_per_hour="2") for i in range(7)]
    assert warnings_of(bare, *useless) == (
        "1 type without eflops, recommended for a model only: bare",
        "1 type without a general hybrid curve, the default: bare",
        (
            "7 types without memory, network or on-demand price, no memory nodes: u0, u1, u2, u3,"
            " u4 and 2 more"
        ),
        "1 type more expensive on the spot market than on demand: bare",
    )


def test_the_embedded_catalogs():
    assert [w.split(",")[0] for w in catalog_warnings(load_catalog("paper"))] == [
        "3 types without eflops",
        "3 types without a general hybrid curve",
    ]
    assert [w.split(":")[0] for w in catalog_warnings(load_catalog("simulated"))] == ["F", "G"]


def test_a_measured_curve_is_valid_without_the_library_that_evaluates_it(monkeypatch):
    curve = MeasuredSpeedup(((1, 1.0), (2, 2.5)))
    steep = InstanceType("s", 4, 16, 10, "1", "0.3", Gpu("T4"), 100, (RingSpeedup(0.1, 0.1), curve))
    assert any("above n" in w for w in warnings_of(steep, default_speedup="ring"))
    monkeypatch.setitem(sys.modules, "scipy.interpolate", None)
    assert warnings_of(steep, default_speedup="ring") == ()
