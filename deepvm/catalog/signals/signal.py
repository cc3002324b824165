"""Signals: one kind of fact about one region, from one source, with its age; and who can fetch one.

Signals are fetched and cached independently: one that fails never fails the run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

SPECS, OFFERINGS, ZONES = "specs", "offerings", "zones"
ON_DEMAND, SPOT, HISTORY = "on-demand", "spot", "history"
ADVISOR, QUOTAS, PLACEMENT = "advisor", "quotas", "placement"
FAILURES = "failures"
"""Recent failures, see :mod:`deepvm.catalog.signals.negative_cache`; never fetched."""

MOST_HISTORY_DAYS = 90
"""AWS keeps spot prices for so long."""

HOUR, DAY = 3600, 86_400
TTL_S = {
    SPECS: 7 * DAY,
    OFFERINGS: 7 * DAY,
    ZONES: 7 * DAY,
    ON_DEMAND: DAY,
    SPOT: HOUR,
    HISTORY: HOUR,
    ADVISOR: DAY,
    QUOTAS: DAY,
    PLACEMENT: 600,
    FAILURES: 300,
}
"""Seconds for which a signal counts as fresh."""

ACCOUNT_BOUND = frozenset({ZONES, QUOTAS, PLACEMENT, FAILURES})
"""Kinds that differ between accounts: AWS shuffles the names of zones for each, and quotas are an account's."""


def ttl_s(kind: str) -> int:
    """Seconds for which a kind counts as fresh; a kind may carry a parameter behind a colon (``history:30``)."""
    return TTL_S[kind.partition(":")[0]]


@dataclass(frozen=True)
class Signal:
    """One kind of fact about one region.

    Attributes:
        kind: one of this module's constants; ``history:30`` carries its days, ``placement:9-1a2b3c4d`` its question.
        region: the provider's region, such as ``us-east-1``.
        observed_at: when the source said so, in UTC.
        source: who said so, in words.
        data: the facts, plain JSON; the form of each kind is below.
        refused: rows that could not be trusted, counted by reason (``zero price``).
        origin: ``live``, ``cache``, ``expired`` (a cache past its time) or ``snapshot`` (came with deepvm).

    Forms of ``data`` (prices are decimal texts in $/h, exact, at most six decimals, rounded up):

    - specs: ``{type: {"vcpus": 4, "memory_gib": 16.0, "baseline_gbps": 5.0, "peak_gbps": 25.0, "arch": "x86_64",
      "current": true, "burstable": false, "metal": false, "spot": true, "on_demand": true,
      "gpu": {"name": "T4", "manufacturer": "NVIDIA", "count": 1, "memory_gib": 16.0}, "unusable": "why"}}``; ``gpu``
      and ``unusable`` only where there is one, bandwidths absent where unknown (sums over the network cards)
    - offerings: ``{type: [zone id, ...]}``; zones: ``{zone id: zone name of this account}``
    - on-demand: ``{type: "0.526"}``
    - spot: ``{type: {zone id: ["0.1578", "2026-11-21T09:00:00Z"]}}``, the price and since when it holds
    - history: ``{type: {zone id: [[seconds since 1970, "0.1578"], ...]}}``, the change points in the order of time; the
      first may lie before the window, for it says what held at its beginning
    - advisor: ``{type: band}``, 0-4: below 5, 5-10, 10-15, 15-20, above 20 % interrupted a month
    - quotas: ``[{"family": "G and VT", "market": "spot", "code": "L-3819A6DF", "vcpus": 64, "in_use": 8}]``
    - placement: ``[{"zone": zone id, "score": 1-10}]``
    """

    kind: str
    region: str
    observed_at: datetime
    source: str
    data: Any
    refused: Mapping[str, int] = field(default_factory=dict)
    origin: str = "live"


class Provider(ABC):
    """Fetches one kind of signal. Thread-safe.

    Attributes:
        kind: what it fetches, with its parameter if it has one.
    """

    kind: str

    @abstractmethod
    def fetch(self, region: str, now: datetime) -> Signal:
        """Ask the source. Blocks for at most a few minutes, never longer: each request has a time-out.

        Args:
            region: such as ``us-east-1``.
            now: the time of asking, UTC; becomes ``observed_at`` unless the source names its own.

        Raises:
            CloudError: no answer, or none that can be used; partial answers are never returned.
        """
