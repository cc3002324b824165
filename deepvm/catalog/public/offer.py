"""One row of a public catalog, in the terms that all of them share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from functools import lru_cache

_MICRO = Decimal("0.000001")

Cells = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Offer:
    """A type of VM in one zone, or in a region where the cloud or the source tells no zones apart.

    Attributes:
        zone: empty where zones are not told apart. memory_gib: main memory, None if unknown.
        gpu: the model as AWS calls it (``A100``, ``L40S``), empty for a CPU type; gpu_memory_gib:
            of each.
        arch: ``x86_64``, ``arm64``, or empty where the source does not say.
        on_demand, spot: $/h as decimal texts, None where it is not sold in this market.
    """

    instance_type: str
    region: str
    zone: str
    vcpus: int
    memory_gib: float | None
    gpu: str
    gpu_count: int
    gpu_memory_gib: float | None
    arch: str
    on_demand: str | None
    spot: str | None


class BadRowError(ValueError):
    """A row that cannot be trusted; its text is the reason."""


@dataclass
class Rows:
    """The offers of a file, and its rows that cannot be trusted, counted by region and reason."""

    offers: list[Offer] = field(default_factory=list)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)

    def read(self, rows: Iterable[Cells], read: Callable[[Cells, str], Offer | None]) -> None:
        """Add what ``read`` makes of each row and its region; None: it is not about a usable VM."""
        for row in rows:
            region = (row.get("Region") or row.get("location") or "").lower()
            try:
                if None in row or None in row.values():
                    raise BadRowError("broken row")
                offer = read(row, region)
            except BadRowError as error:
                self.refused[region, str(error)] += 1
                continue
            if offer is not None:
                self.offers.append(offer)


@lru_cache(maxsize=4096)
def price(text: str) -> str | None:
    """A price in $/h, exact, with six decimals at most (rounded up); None if not above zero."""
    try:
        value = Decimal(text.strip())
        if not value.is_finite() or value <= 0:
            return None
        return f"{value.quantize(_MICRO, ROUND_CEILING).normalize():f}"
    except InvalidOperation:
        return None


def total(*prices: str | None) -> str | None:
    """The sum of prices, None if one of them is missing."""
    if None in prices:
        return None
    return f"{sum(map(Decimal, filter(None, prices)), Decimal(0)).normalize():f}"


@lru_cache(maxsize=4096)
def count(text: str, what: str) -> int:
    """A whole number above zero, which some sources write ``8.0``. Raises BadRowError."""
    value = number(text, what)
    if value is None or value != int(value):
        raise BadRowError(f"unreadable {what}")
    return int(value)


@lru_cache(maxsize=4096)
def number(text: str, what: str) -> float | None:
    """A number above zero, None for an empty text. Raises BadRowError."""
    if not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < 1e9:
        raise BadRowError(f"unreadable {what}")
    return value
