"""Rows of public catalogs in the terms that all of them share, and the signals made of them."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

from deepvm.catalog.published.hardware import accelerators
from deepvm.catalog.signals.signal import OFFERINGS, ON_DEMAND, SPECS, SPOT, Signal
from deepvm.errors import DataError

_MICRO = Decimal("0.000001")

Cells = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Offer:
    """A type of VM in one zone, or in a region where the cloud or the source tells no zones apart.

    Attributes:
        zone: empty where zones are not distinguished. memory_gib: main memory, None if unknown.
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


def csv_rows(body: bytes, needed: Sequence[str]) -> Iterator[Cells]:
    """Each row by column; one with other cells than columns has None as a key or as a value.

    Raises:
        DataError: no CSV file with the ``needed`` columns, or one that breaks off.
    """
    try:
        text = body.decode("utf-8-sig")
        rows = csv.DictReader(io.StringIO(text, newline=""))
        lacking = [name for name in needed if name not in (rows.fieldnames or ())]
        if lacking:
            raise DataError(f"the file has no column {', '.join(lacking)}")
        if not text.endswith("\n"):
            raise DataError("the file breaks off in the middle of a row")
        yield from rows
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"the file is no CSV ({error})") from None


# Names that say more, or something else, than AWS's.
_ALIASES = {
    "RTXPRO6000": "RTX PRO Server 6000",
    "RTX-PRO-6000": "RTX PRO Server 6000",
    "RTXPRO-6000": "RTX PRO Server 6000",
    "RTXPRO6000-WK": "RTX PRO Server 6000",
    "RTX-PRO-6000-SERVER": "RTX PRO Server 6000",
    "RTXPRO6000SE": "RTX PRO Server 6000",
    "A10-24GB": "A10",
}
# How GPUs are connected and built in: one model, so one speed in the published tables.
_SUFFIX = re.compile(r"[- ]?(SXM[0-9]?|PCI-?E|NVL|MEGA|[0-9]+GB)\b", re.IGNORECASE)
_MEMORY = re.compile(r"[- ]([0-9]+)GB\b", re.IGNORECASE)

_ALSO_GIB = {
    "H100": (94.0, 96.0),
    "B200": (180.0, 192.0),
    "B300": (270.0, 288.0),
    "GH200": (96.0, 144.0),
}
"""Memory of variants that have no data sheet of their own in ``data/performance/gpus.json``."""
_GIB = {
    "A6000": (48.0,),
    "P4": (8.0,),
    "L40": (48.0,),
    "A40": (48.0,),
    "RTX4090": (24.0,),
    "RTX3090": (24.0,),
}
_SPREAD = 0.1
"""Sources round: error correction takes a sixteenth, and a GB is 7 % less than a GiB."""


@lru_cache(maxsize=1024)
def gpu_name(name: str) -> str:
    """AWS's name of a model, without how it is connected: ``A100`` of ``A100-80GB-SXM``."""
    plain = _ALIASES.get(name.upper(), "") or _SUFFIX.sub("", name).strip("- ")
    return next((a.name for a in accelerators() if a.name.casefold() == plain.casefold()), plain)


def memory_in_name(name: str) -> float | None:
    """GiB that a name says: 80 of ``A100-80GB``, None if it says nothing."""
    found = _MEMORY.search(name)
    if found:
        return float(found[1])
    return None


@lru_cache(maxsize=1024)
def memory_fits(model: str, memory_gib: float) -> bool:
    """Whether a model is made with so much memory; models that are not known have any."""
    sizes = {a.memory_gib for a in accelerators() if a.name == model}
    sizes |= {*_ALSO_GIB.get(model, ()), *_GIB.get(model, ())}
    return not sizes or any(abs(memory_gib - s) <= _SPREAD * s for s in sizes)


def signals_of(table: Rows, **about: Any) -> list[Signal]:
    """What a source says of each region, by kind; a kind of which it says nothing is absent.

    Refused rows are counted with the specifications of their region. ``about``: what all signals
    have in common.
    """
    by_region: dict[str, list[Offer]] = defaultdict(list)
    for offer in table.offers:
        by_region[offer.region].append(offer)
    signals = []
    for region, offers in sorted(by_region.items()):
        counts = {reason: n for (where, reason), n in table.refused.items() if where == region}
        refused = {SPECS: counts}
        for kind, data in _of_region(offers).items():
            if data:
                here = Signal(kind, region, data=data, refused=refused.get(kind, {}), **about)
                signals.append(here)
    return signals


def _of_region(offers: Sequence[Offer]) -> dict[str, Any]:
    specs: dict[str, Any] = {}
    zones: dict[str, list[str]] = defaultdict(list)
    on_demand: dict[str, str] = {}
    spot: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for o in sorted(offers, key=lambda o: (o.instance_type, o.zone)):
        specs.setdefault(o.instance_type, _spec(o))
        if o.zone:
            zones[o.instance_type].append(o.zone)
        if o.on_demand is not None:
            # Zones of a region have one price; where a source says otherwise, the higher one
            # promises too little.
            held = on_demand.get(o.instance_type, "0")
            on_demand[o.instance_type] = max(held, o.on_demand, key=Decimal)
        if o.spot is not None:
            spot[o.instance_type][o.zone] = [o.spot, ""]
    return {SPECS: specs, OFFERINGS: zones, ON_DEMAND: on_demand, SPOT: spot}


def _spec(offer: Offer) -> dict[str, Any]:
    spec: dict[str, Any] = {"vcpus": offer.vcpus, "memory_gib": offer.memory_gib}
    spec["arch"] = offer.arch
    if offer.gpu:
        gpu = {"name": offer.gpu, "manufacturer": "NVIDIA", "count": offer.gpu_count}
        if offer.gpu_memory_gib is not None:
            gpu["memory_gib"] = offer.gpu_memory_gib
        spec["gpu"] = gpu
    return {name: value for name, value in spec.items() if value not in (None, "")}
