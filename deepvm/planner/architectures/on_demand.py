"""All VMs on demand: what spot VMs are measured against. Not in the registry, for nothing is planned with it."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from deepvm.planner.architectures.single_anchor import SingleAnchor
from deepvm.planner.columns import IntArray


class OnDemand(SingleAnchor):
    """n on_demand(v) <= PW, n >= 1: a Single-Anchor without spot VMs."""

    name: ClassVar[str] = "on-demand"
    summary: ClassVar[str] = "n on-demand GPU VMs of the same type"
    smallest_count: ClassVar[int] = 1
    known_to_baselines: ClassVar[bool] = False

    def split(self, count: IntArray) -> tuple[IntArray, IntArray]:
        """None is spot."""
        return np.zeros_like(count), count
