"""Rows of public catalogs in the terms that all of them share, and the signals made of them."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError

from deepvm.catalog.published.hardware import GPUS, accelerators, find_accelerator
from deepvm.catalog.signals.signal import OFFERINGS, ON_DEMAND, SPECS, SPOT, Signal, price_text
from deepvm.errors import DataError
from deepvm.io.user_dirs import read_data

_ARCH = {"x86_64": "x86_64", "i386": "x86_64", "x86": "x86_64", "arm64": "arm64", "arm": "arm64"}

Cells = dict[str, str]
"""A row by column, under the names of an offer's fields; an empty text is an unknown value."""


def total(*prices: str | None) -> str | None:
    """The sum of prices, None if one of them is missing."""
    if None in prices:
        return None
    return f"{sum(map(Decimal, filter(None, prices)), Decimal(0)).normalize():f}"


def csv_rows(
    body: bytes, columns: Mapping[str, str], optional: Mapping[str, str]
) -> Iterator[Cells]:
    """Each row by column, under our names of ``columns``; other columns keep theirs.

    One with other cells than columns has None as a key or as a value.

    Raises:
        DataError: no CSV file with the columns that are not ``optional``, or one that breaks off.
    """
    try:
        text = body.decode("utf-8-sig")
        rows = csv.DictReader(io.StringIO(text, newline=""))
        names = rows.fieldnames or ()
        lacking = [name for name in columns if name not in names]
        if lacking:
            raise DataError(f"the file has no column {', '.join(lacking)}")
        if not text.endswith("\n"):
            raise DataError("the file breaks off in the middle of a row")
        ours = {**columns, **optional}
        rows.fieldnames = [ours.get(name, name) for name in names]
        for row in rows:
            row["region"] = (row["region"] or "").lower()
            yield row
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"the file is no CSV ({error})") from None


# Suffixes for sockets and memory: these are one model, with one speed in the published tables.
_SUFFIX = re.compile(r"[- ]?(SXM[0-9]?|PCI-?E|NVL|MEGA|[0-9]+GB)\b", re.IGNORECASE)
_MEMORY = re.compile(r"[- ]([0-9]+)GB\b", re.IGNORECASE)

_SPREAD = 0.1
"""Sources round: error correction takes a sixteenth, and a GB is 7 % less than a GiB."""


@lru_cache(maxsize=1024)
def gpu_name(name: str) -> str:
    """AWS's name of a model, without how it is connected: ``A100`` of ``A100-80GB-SXM``."""
    aliases: dict[str, str] = read_data(GPUS)["aliases"]
    plain = aliases.get(name.upper()) or _SUFFIX.sub("", name).strip("- ")
    known = find_accelerator(plain)
    return known.name if known else plain


def memory_in_name(name: str) -> str:
    """GiB in a name: 80 of ``A100-80GB``; empty without any."""
    memory = _MEMORY.search(name)
    return memory[1] if memory else ""


@lru_cache(maxsize=1024)
def memory_fits(model: str, memory_gib: float) -> bool:
    """Whether a model exists with so much memory; unknown models may have any."""
    sizes = {a.memory_gib for a in accelerators() if a.name == model}
    sizes.update(read_data(GPUS)["other_memory_gib"].get(model, ()))
    return not sizes or any(abs(memory_gib - s) <= _SPREAD * s for s in sizes)


# Some sources write 8 as 8.0.
_Count = Annotated[int, BeforeValidator(float), Field(gt=0, lt=1e9)]
_Gib = Annotated[float | None, Field(gt=0, lt=1e9)]
_Price = Annotated[str | None, BeforeValidator(price_text)]
# Names from a downloaded file are printed, and become names of folders: allow nothing else.
_Region = Annotated[str, Field(pattern="^[a-z0-9][a-z0-9-]{0,62}$", title="name")]
_Name = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}$", title="name")]


class Offer(BaseModel):
    """A type of VM in one zone, or in a region where the cloud or the source has no zones.

    Attributes:
        zone: empty where zones are not distinguished. memory_gib: main memory, None if unknown.
        gpu: the model as AWS calls it (``A100``, ``L40S``), empty for a CPU type; gpu_memory_gib:
            of each.
        arch: ``x86_64``, ``arm64``, or empty where the source does not say.
        on_demand, spot: $/h as decimal texts, None where it is not sold in this market.
    """

    instance_type: _Name
    region: _Region
    zone: _Name = ""
    vcpus: _Count = Field(title="number of vCPUs")
    memory_gib: _Gib = Field(None, title="memory")
    gpu: Annotated[_Name, AfterValidator(gpu_name)] = ""
    gpu_count: _Count = Field(0, title="number of GPUs")
    gpu_memory_gib: _Gib = Field(None, title="GPU memory")
    arch: Annotated[str, AfterValidator(lambda name: _ARCH.get(name, ""))] = ""
    on_demand: _Price = None
    spot: _Price = None


class BadRowError(ValueError):
    """A row that cannot be trusted; its text is the reason."""


@dataclass
class Rows:
    """The offers of a file, and its rows that cannot be trusted, counted by region and reason."""

    offers: list[Offer] = field(default_factory=list)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)

    def read(self, rows: Iterable[Cells], read: Callable[[Cells], Cells | None]) -> None:
        """Add the offers of rows, as ``read`` changes them; None: it is not about a usable VM."""
        for row in rows:
            region = row["region"]
            try:
                if None in row or None in row.values():
                    raise BadRowError("broken row")
                self._add(read(row))
            except BadRowError as error:
                self.refused[region, str(error)] += 1
            except ValidationError as error:
                name = str(error.errors()[0]["loc"][0])
                field_title = Offer.model_fields[name].title or name
                self.refused[region, f"unreadable {field_title}"] += 1

    def _add(self, cells: Cells | None) -> None:
        if cells is None or not (cells["on_demand"] or cells["spot"]):
            return
        if cells["gpu"]:
            cells["gpu_count"] = cells["gpu_count"] or "0"  # which is refused
        else:
            cells["gpu_count"] = cells["gpu_memory_gib"] = ""
        offer = Offer.model_validate({name: cell for name, cell in cells.items() if cell})
        if offer.on_demand is None and offer.spot is None:
            raise BadRowError("unreadable price")
        self.offers.append(offer)


def signals_of(table: Rows, **about: Any) -> list[Signal]:
    """The signals of each region by kind; kinds without data are absent.

    Refused rows are counted with the specifications of their region. ``about``: what all signals
    have in common.
    """
    by_region: dict[str, list[Offer]] = defaultdict(list)
    for offer in table.offers:
        by_region[offer.region].append(offer)
    signals = []
    for region, offers in sorted(by_region.items()):
        refused = {reason: n for (where, reason), n in table.refused.items() if where == region}
        for kind, data in _of_region(offers).items():
            if data:
                counts = refused if kind == SPECS else {}
                signals.append(Signal(kind, region, data=data, refused=counts, **about))
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
            # Zones of a region have one on-demand price; where a source has several, the highest is
            # the safe one.
            held = on_demand.get(o.instance_type, "0")
            on_demand[o.instance_type] = max(held, o.on_demand, key=Decimal)
        if o.spot is not None:
            spot[o.instance_type][o.zone] = [o.spot, ""]
    return {SPECS: specs, OFFERINGS: zones, ON_DEMAND: on_demand, SPOT: spot}


def _spec(offer: Offer) -> dict[str, Any]:
    spec = offer.model_dump(include={"vcpus", "memory_gib", "arch"}, exclude_defaults=True)
    if offer.gpu:
        gpu = {"name": offer.gpu, "manufacturer": "NVIDIA", "count": offer.gpu_count}
        if offer.gpu_memory_gib is not None:
            gpu["memory_gib"] = offer.gpu_memory_gib
        spec["gpu"] = gpu
    return spec
