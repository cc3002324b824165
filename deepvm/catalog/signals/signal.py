"""Signals: facts of one kind about one region, with their age; and their providers."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, NamedTuple

from deepvm.core.units import MICRO, MOST_USD
from deepvm.records import dataclass, field

SPECS = "specs"
OFFERINGS = "offerings"
ZONES = "zones"
ON_DEMAND = "on-demand"
SPOT = "spot"
HISTORY = "history"
PRICES = (ON_DEMAND, SPOT, HISTORY)
ADVISOR = "advisor"
QUOTAS = "quotas"
OF_A_REGION = (SPECS, OFFERINGS, ZONES, ON_DEMAND, SPOT, ADVISOR, QUOTAS)
PLACEMENT = "placement"
# The regions of a public catalog at the last download (deepvm.catalog.public.public_market)
REGIONS = "regions"
FAILURES = "failures"  # ``failures:spot`` is the last slow failure of another kind; never fetched
_HOUR = 3600
_DAY = 86_400


class _Kind(NamedTuple):
    title: str
    ttl_s: int
    of_account: bool = False  # accounts differ: AWS shuffles the names of zones for each


KINDS = {
    SPECS: _Kind("specifications", 7 * _DAY),
    OFFERINGS: _Kind("offerings", 7 * _DAY),
    ZONES: _Kind("zones", 7 * _DAY, of_account=True),
    ON_DEMAND: _Kind("on-demand prices", _DAY),
    SPOT: _Kind("spot prices", _HOUR),
    HISTORY: _Kind("past spot prices", _HOUR),
    ADVISOR: _Kind("interruption rates", _DAY),
    QUOTAS: _Kind("quotas", _DAY, of_account=True),
    PLACEMENT: _Kind("placement scores", 600, of_account=True),
    REGIONS: _Kind("regions", 7 * 3600),
    FAILURES: _Kind("failures", 300, of_account=True),
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

    ``kind``: a key of ``KINDS``; ``history:30`` has its days, ``placement:9-1a2b3c4d`` a hash.
    Times are in UTC; ``dated``: whether the source has a date, else ``observed_at`` is the earliest
    possible one. ``origin``: ``live``, ``cache``, ``expired`` (of the cache) or ``snapshot``.

    Forms of ``data`` (prices are decimal texts in $/h, exact, at most six decimals, rounded up):

    - specs: ``{type: {"vcpus": 4, "memory_gib": 16.0, "baseline_gbps": 5.0, "peak_gbps": 25.0,
      "arch": "x86_64", "current": true, "burstable": false, "metal": false, "spot": true,
      "on_demand": true, "gpu": {"name": "T4", "manufacturer": "NVIDIA", "count": 1, "memory_gib":
      16.0}, "unusable": "why"}}``, without what is unknown
    - offerings: ``{type: [zone id, ...]}``; zones: ``{zone id: zone name of this account}``
    - on-demand: ``{type: "0.526"}``
    - spot: ``{type: {zone id: ["0.1578", "2026-11-21T09:00:00Z"]}}``, since when it holds
    - history: ``{type: {zone id: [[seconds since 1970, "0.1578"], ...]}}``, the change points, the
      first of which holds at the start of the window
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
        return self.origin in ("live", "cache")

    @property
    def rows(self) -> int:
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
    """Fetches one kind of signal from one source; thread-safe, blocks for minutes at most."""

    kind: str
    source: str
    read: Callable[[str, datetime], FetchResult]

    def fetch(self, region: str, now: datetime) -> Signal:
        result = self.read(region, now)
        return Signal(self.kind, region, now, self.source, result.data, result.refused)


def reason(why: str) -> str:
    """The meaning of a :class:`deepvm.errors.CloudError`'s ``why``, in a few words."""
    return _REASONS.get(why, why)


def age(then: datetime, now: datetime, dated: bool = True) -> str:
    """An age, rounded down: ``12 s``, ``5 min``, ``2 h``, ``3 d``; the future counts as now."""
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
    """A price in $/h as signals have it, exact, with six decimals at most (rounded up)."""
    with suppress(InvalidOperation):  # no number, or not a number
        value = Decimal(text.strip())
        if 0 < value <= MOST_USD:
            return f"{value.quantize(MICRO, ROUND_CEILING).normalize():f}"
    return None
