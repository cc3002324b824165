"""Prices that are true, but not on demand: some sources mix in what reserved GPUs cost."""

from __future__ import annotations

from collections import defaultdict
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


def other_rates(per_gpu: Mapping[Key, tuple[object, float]]) -> set[Key]:
    """Which prices of a model, $/h for one GPU, are no on-demand prices next to those elsewhere."""
    by_model: dict[object, dict[Key, float]] = defaultdict(dict)
    for key, (model, price) in per_gpu.items():
        by_model[model][key] = price
    wrong: set[Key] = set()
    for prices in by_model.values():
        usual = median_high(prices.values())
        dearest = max(p for p in prices.values() if p <= _FAR * usual)
        wrong |= {key for key, price in prices.items() if price < LEAST_SHARE * dearest}
    return wrong
