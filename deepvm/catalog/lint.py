"""Warnings about valid catalogs."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import numpy as np

from deepvm.core.cluster.instances import Catalog, InstanceType
from deepvm.core.cluster.speedup import SpeedupCurve
from deepvm.core.spelling import listed
from deepvm.core.units import counted

LARGEST_COUNT = 32
"""Curves are examined for n = 1 to this many VMs, the largest cluster in the paper."""


def catalog_warnings(catalog: Catalog) -> tuple[str, ...]:
    """Warnings about a valid catalog, one sentence each.

    They are about types that are never recommended, odd prices, and clamped curves.
    """
    gpus = [i for i in catalog if i.gpu is not None]
    cpus = [i for i in catalog if i.gpu is None]
    kind = catalog.default_speedup
    no_nodes = [i for i in cpus if None in (i.memory_gib, i.network_gbps, i.on_demand_usd_per_hour)]
    groups = (
        ("without eflops, recommended for a model only", [i for i in gpus if i.eflops is None]),
        (
            "without a spot price, recommended on demand only",
            [i for i in gpus if i.spot_usd_per_hour is None],
        ),
        (
            f"without a general {kind} curve, the default",
            [i for i in gpus if i.curve(kind) is None],
        ),
        ("without memory, network or on-demand price, no memory nodes", no_nodes),
        (
            "more expensive on the spot market than on demand",
            [i for i in catalog if (i.spot_usd_per_hour or 0) > (i.on_demand_usd_per_hour or inf)],
        ),
    )
    named = [
        f"{counted(len(types), 'type')} {property_}: {listed([i.name for i in types])}"
        for property_, types in groups
        if types
    ]
    return tuple([*named, *(w for i in gpus for c in i.speedups for w in _clamped(i, c))])


def _clamped(instance: InstanceType, curve: SpeedupCurve) -> Iterator[str]:
    n = np.arange(1.0, LARGEST_COUNT + 1)
    try:
        raw = curve.speedup(n) / n
    except ModuleNotFoundError:
        return  # measured curves need scipy, and a file is valid without it
    which = f"{curve.kind} curve" + (f" of {curve.workload}" if curve.workload else "")
    for sizes, meaning in (
        (n[raw < 0], "negative, counted as 0"),
        (n[raw > 1], "above n, counted as n"),
    ):
        if sizes.size:
            yield (
                f"{instance.name}: the {which} is {meaning} from n = {sizes[0]:g} to {sizes[-1]:g}"
            )
