"""Prices that are true, but not on demand: some sources mix in what reserved GPUs cost."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_high
from typing import TypeVar

Key = TypeVar("Key")

LEAST_SHARE = 0.6
"""Of what one GPU costs on demand in the dearest region.

GCP's own prices of one model differ by 0.62 at most (L4);
its calendar mode of the Dynamic Workload Scheduler costs 0.33 (H100) to 0.58 (A100) of the price in
us-central1 (skypilot-catalog v8/gcp, 2026).
"""

_FAR = 5


def other_rates(per_gpu: Mapping[Key, float]) -> set[Key]:
    """Which prices of one model, $/h for one GPU, are no on-demand prices beside those of other regions."""
    if not per_gpu:
        return set()
    usual = median_high(per_gpu.values())
    dearest = max((p for p in per_gpu.values() if p <= _FAR * usual), default=0.0)
    return {key for key, each in per_gpu.items() if each < LEAST_SHARE * dearest}
