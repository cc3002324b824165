"""deepvm: which cluster of spot and on-demand VMs trains my model fastest within a budget?

``import deepvm`` loads nothing heavy; every public name below is imported when it is first used.
"""

from __future__ import annotations

# Nothing is imported here, not even typing: this file runs before the command line can hear Ctrl-C.
TYPE_CHECKING = False

__version__ = "0.1.0"

_HOMES = {
    name: f"deepvm.{module}"
    for module, names in {
        "catalog.measured.tables": ("load_tables",),
        "catalog.published.performance": ("predict", "workload"),
        "catalog.store": ("load_catalog",),
        "core.cluster.cluster": ("Cluster", "NodeGroup", "Recommendation", "Rejection"),
        "core.cluster.instances": ("Catalog", "Gpu", "InstanceType", "Market", "Quota"),
        "core.cluster.memory_nodes": ("SaturationTable",),
        "core.cluster.speedup": ("HybridSpeedup", "MeasuredSpeedup", "RingSpeedup"),
        "errors": ("DeepVMError",),
        "planner.recommend": ("Recommendations",),
        "planner.regions": ("Comparison", "compare"),
        "planner.sweep": ("Sweep",),
        "reports.forms": ("to_frame",),
        "services.gpus": ("Gpus", "gpus"),
        "services.keywords": ("recommend",),
        "services.recommend": ("explain", "sweep"),
        "simulator.monte_carlo": ("simulate",),
    }.items()
    for name in names
}

__all__ = [
    "Catalog",
    "Cluster",
    "Comparison",
    "DeepVMError",
    "Gpu",
    "Gpus",
    "HybridSpeedup",
    "InstanceType",
    "Market",
    "MeasuredSpeedup",
    "NodeGroup",
    "Quota",
    "Recommendation",
    "Recommendations",
    "Rejection",
    "RingSpeedup",
    "SaturationTable",
    "Sweep",
    "compare",
    "explain",
    "gpus",
    "load_catalog",
    "load_tables",
    "predict",
    "recommend",
    "simulate",
    "sweep",
    "to_frame",
    "workload",
]

if TYPE_CHECKING:
    from typing import Any

    from deepvm.catalog.measured.tables import load_tables
    from deepvm.catalog.published.performance import predict, workload
    from deepvm.catalog.store import load_catalog
    from deepvm.core.answer import Answer
    from deepvm.core.cluster.cluster import Cluster, NodeGroup, Recommendation, Rejection
    from deepvm.core.cluster.instances import Catalog, Gpu, InstanceType, Market, Quota
    from deepvm.core.cluster.memory_nodes import SaturationTable
    from deepvm.core.cluster.speedup import HybridSpeedup, MeasuredSpeedup, RingSpeedup
    from deepvm.errors import DeepVMError
    from deepvm.planner.recommend import Recommendations
    from deepvm.planner.regions import Comparison, compare
    from deepvm.planner.sweep import Sweep
    from deepvm.reports.forms import Views, to_frame
    from deepvm.services.gpus import Gpus, gpus
    from deepvm.services.keywords import recommend
    from deepvm.services.recommend import explain, sweep
    from deepvm.simulator.monte_carlo import simulate


def forms_of(answer: Answer) -> Views:
    """An answer in other forms, for :mod:`deepvm.core.answer`; loads the floor of reports."""
    from deepvm.reports import forms

    return forms.forms_of(answer)


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'deepvm' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Public names, for completion."""
    return sorted(__all__)
