"""deepvm: which cluster of spot and on-demand VMs trains my model fastest for this much money an hour?

``import deepvm`` loads nothing heavy; every public name below is imported when it is first used.
"""

from __future__ import annotations

# Nothing is imported here, not even typing: this file runs before the command line can hear Ctrl-C.
TYPE_CHECKING = False

__version__ = "0.1.0"

_HOMES = {
    "Catalog": "deepvm.core.instances",
    "Cluster": "deepvm.core.cluster",
    "DeepVMError": "deepvm.errors",
    "Gpu": "deepvm.core.instances",
    "HybridSpeedup": "deepvm.core.speedup",
    "InstanceType": "deepvm.core.instances",
    "Market": "deepvm.core.instances",
    "MeasuredSpeedup": "deepvm.core.speedup",
    "NodeGroup": "deepvm.core.cluster",
    "Quota": "deepvm.core.instances",
    "Recommendation": "deepvm.core.cluster",
    "Recommendations": "deepvm.planner.recommend",
    "Rejection": "deepvm.core.cluster",
    "RingSpeedup": "deepvm.core.speedup",
    "SaturationTable": "deepvm.core.saturation",
    "explain": "deepvm.planner.explain",
    "load_catalog": "deepvm.catalog.store",
    "load_tables": "deepvm.catalog.measured",
    "recommend": "deepvm.planner.recommend",
    "sweep": "deepvm.planner.sweep",
}

__all__ = [
    "Catalog",
    "Cluster",
    "DeepVMError",
    "Gpu",
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
    "explain",
    "load_catalog",
    "load_tables",
    "recommend",
    "sweep",
]

if TYPE_CHECKING:
    from typing import Any

    from deepvm.catalog.measured import load_tables
    from deepvm.catalog.store import load_catalog
    from deepvm.core.cluster import Cluster, NodeGroup, Recommendation, Rejection
    from deepvm.core.instances import Catalog, Gpu, InstanceType, Market, Quota
    from deepvm.core.saturation import SaturationTable
    from deepvm.core.speedup import HybridSpeedup, MeasuredSpeedup, RingSpeedup
    from deepvm.errors import DeepVMError
    from deepvm.planner.explain import explain
    from deepvm.planner.recommend import Recommendations, recommend
    from deepvm.planner.sweep import sweep


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'deepvm' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Public names, for completion."""
    return sorted(__all__)
