"""One row of a public catalog, in the terms that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from functools import lru_cache

_MICRO = Decimal("0.000001")


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

    cloud: str
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


@dataclass(frozen=True, slots=True)
class Refused:
    """A row, or one price of a row, that is not used, and why.

    ``foreign``: it is nothing wrong, only about something else than VMs that deepvm can use, such
    as TPUs.
    """

    reason: str
    region: str = ""
    foreign: bool = False


class BadRowError(ValueError):
    """A row that cannot be trusted; its text is the reason."""


class ForeignRowError(BadRowError):
    """A row about something else than VMs that deepvm can use; its text says what."""


Row = Offer | Refused
"""What a row of a file says, or why it is not used."""

Cells = Mapping[str, str]


def rows_of(
    rows: Iterable[Cells | None],
    read: Callable[[Cells, str], Iterable[Row]],
    region_of: Callable[[Cells], str],
) -> Iterator[Row]:
    """What ``read`` makes of each row and its region; rows that it refuses become Refused."""
    for row in rows:
        if row is None:
            yield Refused("broken row")
            continue
        region = region_of(row)
        try:
            yield from read(row, region)
        except BadRowError as error:
            yield Refused(str(error), region, isinstance(error, ForeignRowError))


@lru_cache(maxsize=4096)
def price(text: str) -> str | None:
    """A price in $/h, exact, with six decimals at most (rounded up); None for an empty text.

    Raises:
        BadRowError: no number, or none above zero.
    """
    if not text.strip():
        return None
    try:
        value = Decimal(text.strip())
        if not value.is_finite():
            raise BadRowError("unreadable price")
        if value <= 0:
            raise BadRowError("zero price" if value == 0 else "negative price")
        exact = value.quantize(_MICRO, ROUND_CEILING)
    except InvalidOperation:
        raise BadRowError("unreadable price") from None
    return f"{exact.normalize():f}"


def total(*prices: str | None) -> str | None:
    """The sum of prices, None if one of them is missing."""
    if any(p is None for p in prices):
        return None
    return f"{sum((Decimal(p) for p in prices if p is not None), Decimal(0)).normalize():f}"


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
        raise BadRowError(f"unreadable {what}") from None
    if not 0 < value < 1e9:
        raise BadRowError(f"unreadable {what}")
    return value
