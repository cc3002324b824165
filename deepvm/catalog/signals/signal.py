"""Signals: one kind of fact about one region, from one source, with its age; and their providers.

Signals are fetched and cached independently: one that fails never fails the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, NamedTuple

from deepvm.core.units import MICRO, MOST_USD

SPECS = "specs"
OFFERINGS = "offerings"
ZONES = "zones"
ON_DEMAND = "on-demand"
SPOT = "spot"
HISTORY = "history"
PRICES = (ON_DEMAND, SPOT, HISTORY)
ADVISOR = "advisor"
QUOTAS = "quotas"
PLACEMENT = "placement"
REGIONS = "regions"
"""The regions of a public catalog at the last download (deepvm.catalog.public.public_market)."""
FAILURES = "failures"
"""``failures:spot`` is the last slow failure of another kind; never fetched."""

_HOUR = 3600
_DAY = 86_400


class Kind(NamedTuple):
    """What signals of one kind have in common.

    Accounts differ in kinds ``of_account``: AWS shuffles the names of zones for each.
    """

    title: str
    ttl_s: int
    of_account: bool = False


KINDS = {
    SPECS: Kind("specifications", 7 * _DAY),
    OFFERINGS: Kind("offerings", 7 * _DAY),
    ZONES: Kind("zones", 7 * _DAY, of_account=True),
    ON_DEMAND: Kind("on-demand prices", _DAY),
    SPOT: Kind("spot prices", _HOUR),
    HISTORY: Kind("past spot prices", _HOUR),
    ADVISOR: Kind("interruption rates", _DAY),
    QUOTAS: Kind("quotas", _DAY, of_account=True),
    PLACEMENT: Kind("placement scores", 600, of_account=True),
    REGIONS: Kind("regions", 7 * 3600),
    FAILURES: Kind("failures", 300, of_account=True),
}

_REASONS = {
    "credentials": "AWS credentials do not work",
    "expired": "the AWS session has expired",
    "permission": "AWS does not permit it",
    "region": "the account cannot use the region",
    "clock": "the clock of this machine is wrong",
    "throttled": "AWS asks for fewer requests",
    "timeout": "no answer in time",
    "network": "the source cannot be reached",
    "reply": "the answer cannot be used",
}


def base(kind: str) -> str:
    """A kind without the parameter that it may carry: ``history`` of ``history:30``."""
    return kind.partition(":")[0]


def ttl_s(kind: str) -> int:
    """Seconds for which a signal of a kind counts as fresh."""
    return KINDS[base(kind)].ttl_s


def title(kind: str) -> str:
    """A kind of signal in words: ``spot prices``."""
    days = ""
    if base(kind) == HISTORY and ":" in kind:
        days = f" of {kind.partition(':')[2]} days"
    return f"{KINDS[base(kind)].title}{days}"


@dataclass(frozen=True)
class Signal:
    """One kind of fact about one region.

    Attributes:
        kind: a key of ``KINDS``; ``history:30`` carries its days, ``placement:9-1a2b3c4d`` its
            question.
        region: the provider's region, such as ``us-east-1``.
        observed_at: the time of the source's data, in UTC.
        data: plain JSON; the form of each kind is below.
        refused: rows that could not be trusted, counted by reason (``zero price``).
        origin: ``live``, ``cache``, ``expired`` (a cache past its time) or ``snapshot`` (came with
            deepvm).
        fetched_at: when it was written to the cache, UTC; None if it does not come from there.
        dated: whether the source has a date; else ``observed_at`` is the earliest possible time.

    Forms of ``data`` (prices are decimal texts in $/h, exact, at most six decimals, rounded up):

    - specs: ``{type: {"vcpus": 4, "memory_gib": 16.0, "baseline_gbps": 5.0, "peak_gbps": 25.0,
      "arch": "x86_64", "current": true, "burstable": false, "metal": false, "spot": true,
      "on_demand": true, "gpu": {"name": "T4", "manufacturer": "NVIDIA", "count": 1, "memory_gib":
      16.0}, "unusable": "why"}}``; ``gpu`` and ``unusable`` only where there is one, bandwidths
      absent where unknown (sums over the network cards)
    - offerings: ``{type: [zone id, ...]}``; zones: ``{zone id: zone name of this account}``
    - on-demand: ``{type: "0.526"}``
    - spot: ``{type: {zone id: ["0.1578", "2026-11-21T09:00:00Z"]}}``, the price and since when it
      holds
    - history: ``{type: {zone id: [[seconds since 1970, "0.1578"], ...]}}``, the change points in
      the order of time; the first may lie before the window, since it holds at the start of the
      window
    - advisor: ``{type: band}``, 0-4: below 5, 5-10, 10-15, 15-20, above 20 % interrupted a month
    - quotas: ``[{"family": "G and VT", "market": "spot", "code": "L-3819A6DF", "vcpus": 64,
      "in_use": 8}]``
    - placement: ``[{"zone": zone id, "score": 1-10}]``, best first
    """

    kind: str
    region: str
    observed_at: datetime
    source: str
    data: Any
    refused: Mapping[str, int] = field(default_factory=dict)
    origin: str = "live"
    fetched_at: datetime | None = field(default=None, compare=False)
    dated: bool = True

    @property
    def fresh(self) -> bool:
        """Whether it was fetched within its time."""
        return self.origin in ("live", "cache")

    @property
    def rows(self) -> int:
        """How many facts it holds: types or zones; for spot prices and history, prices."""
        if base(self.kind) == SPOT:
            return sum(len(zones) for zones in self.data.values())
        if base(self.kind) == HISTORY:
            return sum(len(points) for zones in self.data.values() for points in zones.values())
        return len(self.data)


class FetchResult(NamedTuple):
    """The ``data`` of a signal from a source, and its refused rows, counted by reason."""

    data: Any
    refused: Mapping[str, int] = {}


@dataclass
class Provider:
    """Fetches one kind of signal from one source. Thread-safe.

    Attributes:
        read: asks about a region at a time (UTC). Blocks for a few minutes at most; raises a
            CloudError unless it has the whole answer.
    """

    kind: str
    source: str
    read: Callable[[str, datetime], FetchResult]

    def fetch(self, region: str, now: datetime) -> Signal:
        """Ask the source. Raises CloudError: no answer, or an unusable one."""
        result = self.read(region, now)
        return Signal(self.kind, region, now, self.source, result.data, result.refused)


def reason(why: str) -> str:
    """The meaning of a :class:`deepvm.errors.CloudError`'s ``why``, in a few words."""
    return _REASONS.get(why, why)


def age(then: datetime, now: datetime, dated: bool = True) -> str:
    """An age, rounded down: ``12 s``, ``5 min``, ``2 h``, ``3 d``; the future counts as now.

    Where ``then`` is not the source's date but the earliest possible one: ``at most 7 h``.
    """
    if not dated:
        return f"at most {age(then, now)}"
    seconds = max(0, int((now - then).total_seconds()))
    for unit, length in (("d", _DAY), ("h", _HOUR), ("min", 60)):
        # At least two of a unit: "1 d" would hide whether 25 or 47 hours have passed.
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


@lru_cache(maxsize=4096)
def price_text(text: str) -> str | None:
    """A price in $/h as signals have it, exact, with six decimals at most (rounded up).

    None unless it is above zero.
    """
    try:
        value = Decimal(text.strip())
        if 0 < value <= MOST_USD:
            return f"{value.quantize(MICRO, ROUND_CEILING).normalize():f}"
    except InvalidOperation:  # no number, or not a number
        pass
    return None
