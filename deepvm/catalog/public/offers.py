"""Rows of public catalogs in shared terms, which of them are plausible, and their signals."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from functools import lru_cache
from statistics import median_high
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError

from deepvm.catalog.price_sources import PublicSource
from deepvm.catalog.published.hardware import GPUS, accelerators, find_accelerator
from deepvm.catalog.signals.signal import OFFERINGS, ON_DEMAND, SPECS, SPOT, Signal, price_text
from deepvm.core.grouping import grouped
from deepvm.core.json_types import JsonDict
from deepvm.core.units import counted
from deepvm.errors import DataError
from deepvm.io.user_dirs import read_data
from deepvm.records import dataclass, field

_ARCH = {"x86_64": "x86_64", "i386": "x86_64", "x86": "x86_64", "arm64": "arm64", "arm": "arm64"}

# A row by column, under the names of an offer's fields; an empty text is an unknown value
Cells = dict[str, str]


def total(*prices: str | None) -> str | None:
    """The sum of prices, None if one of them is missing."""
    if None in prices:
        return None
    return f"{sum(map(Decimal, filter(None, prices)), Decimal(0)).normalize():f}"


def csv_rows(body: bytes, source: PublicSource) -> Iterator[Cells]:
    """Each row by column, under our names; columns of which we have none keep theirs."""
    try:
        text = body.decode("utf-8-sig")
        rows = csv.DictReader(io.StringIO(text, newline=""))
        names = rows.fieldnames or ()
        lacking = [name for name in source.columns if name not in names]
        if lacking:
            raise DataError(f"the file has no column {', '.join(lacking)}")
        if not text.endswith("\n"):
            raise DataError("the file breaks off in the middle of a row")
        ours = {**source.columns, **source.optional}
        rows.fieldnames = [ours.get(name, name) for name in names]
        for row in rows:
            row["region"] = (row["region"] or "").lower()
            yield row
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"the file is no CSV ({error})") from None


# Suffixes for sockets and memory: these are one model, with one speed in the published tables.
_SUFFIX = re.compile(r"[- ]?(SXM[0-9]?|PCI-?E|NVL|MEGA|[0-9]+GB)\b", re.IGNORECASE)
_MEMORY = re.compile(r"[- ]([0-9]+)GB\b", re.IGNORECASE)
_SPREAD = 0.1  # Sources round: error correction takes a sixteenth, and a GB is 7 % less than a GiB


@lru_cache(maxsize=1024)
def gpu_name(name: str) -> str:
    """AWS's name of a model, without how it is connected: ``A100`` of ``A100-80GB-SXM``."""
    aliases: dict[str, str] = read_data(GPUS)["aliases"]
    plain = aliases.get(name.upper()) or _SUFFIX.sub("", name).strip("- ")
    if known := find_accelerator(plain):
        return known.name
    return plain


def memory_in_name(name: str) -> str:
    """GiB in a name: 80 of ``A100-80GB``; empty without any."""
    if memory := _MEMORY.search(name):
        return memory[1]
    return ""


@lru_cache(maxsize=1024)
def _memory_fits(model: str, memory_gib: float) -> bool:
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
    """A type of VM in one zone or region; prices in $/h as decimal texts, None: not sold."""

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
    """The signals of each region by kind; kinds without data are absent."""
    by_region = grouped((offer.region, offer) for offer in table.offers)
    signals = []
    for region, offers in sorted(by_region.items()):
        refused = {reason: n for (where, reason), n in table.refused.items() if where == region}
        for kind, data in _of_region(offers).items():
            counts = {}
            if kind == SPECS:
                counts = refused
            if data:
                signals.append(Signal(kind, region, data=data, refused=counts, **about))
    return signals


def _of_region(offers: Sequence[Offer]) -> JsonDict:
    specs: JsonDict = {}
    zones = defaultdict(list)
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


def _spec(offer: Offer) -> JsonDict:
    spec = offer.model_dump(include={"vcpus", "memory_gib", "arch"}, exclude_defaults=True)
    if offer.gpu:
        gpu = {"name": offer.gpu, "manufacturer": "NVIDIA", "count": offer.gpu_count}
        if offer.gpu_memory_gib is not None:
            gpu["memory_gib"] = offer.gpu_memory_gib
        spec["gpu"] = gpu
    return spec


LEAST_OF_MEDIAN, MOST_OF_MEDIAN = 0.2, 5.0  # A price, as a factor from the median of its family
FEWEST_PEERS = 3  # A median of fewer prices may be the wrong price itself
# A spot price, as a share of the type's on-demand price: a market is often below, rarely above
LEAST_SPOT_SHARE, MOST_SPOT_SHARE = 0.02, 10.0
MOST_BROKEN = 0.1  # Share of a file's rows above which it is refused
# Least share of the highest price of one GPU in any region; lower prices are of reserved GPUs.
# GCP's own prices of one model differ by 0.62 at most (L4); its calendar mode of the Dynamic
# Workload Scheduler costs 0.33 (H100) to 0.58 (A100) of the price in us-central1 (skypilot-catalog
# v8/gcp, 2026)
LEAST_SHARE = 0.6
_FEWEST_ROWS = 10  # Smaller files are not judged by a share: one bad row of three says little
CONFLICT = "two prices for one type and place"
WRONG_MEMORY = "GPU memory that the model does not have"
FAR = "price far from its family's"
FAR_SPOT = "spot price far from the type's others"

_SIZE = re.compile("(?<=.)[._-][^._-]*$")


def check(table: Rows) -> Rows:
    """Apply the rules to every row of a file; each type and place is there once."""
    refused = table.refused.copy()
    offers = []
    for offer in _each_once(table.offers, refused):
        memory = offer.gpu_memory_gib
        if memory is None or _memory_fits(offer.gpu, memory):
            offers.append(offer)
        else:
            refused[offer.region, WRONG_MEMORY] += 1
    offers = _without_far(offers, refused)
    rows = len(table.offers) + table.refused.total()
    broken = refused.total()
    reasons = "; ".join(f"{n} x {reason}" for (_, reason), n in refused.most_common(3))
    if not offers:
        raise DataError(f"the file holds no offer that can be used: {reasons or 'no rows'}")
    if rows >= _FEWEST_ROWS and broken > MOST_BROKEN * rows:
        raise DataError(f"{broken} of {counted(rows, 'row')} cannot be true: {reasons}")
    return Rows(offers, refused)


def _each_once(offers: Sequence[Offer], refused: Counter[tuple[str, str]]) -> list[Offer]:
    by_key = grouped(((o.instance_type, o.region, o.zone), o) for o in offers)
    kept = []
    for same in by_key.values():
        on_demand = {o.on_demand for o in same} - {None}
        spot = {o.spot for o in same} - {None}
        if len(on_demand) > 1 or len(spot) > 1:
            refused[same[0].region, CONFLICT] += len(same)
            continue
        price = next(iter(on_demand), None)
        spot_price = next(iter(spot), None)
        kept.append(same[0].model_copy(update={"on_demand": price, "spot": spot_price}))
    return kept


def _without_far(offers: Sequence[Offer], refused: Counter[tuple[str, str]]) -> list[Offer]:
    # Peers on demand have the same GPU, or are of one family of CPU types. Spot prices are compared
    # with those of one type in all its zones only: between types of one family real spot prices
    # differ by more than the rule allows.
    peers = defaultdict(list)
    for offer in offers:
        if offer.on_demand is not None:
            peers[_family(offer)].append(_unit_price(offer))
        if offer.spot is not None:
            peers[offer.instance_type].append(float(offer.spot))
    usual = {key: median_high(p) for key, p in peers.items() if len(p) >= FEWEST_PEERS}

    def is_far(price: float, key: str) -> bool:
        median = usual.get(key, price)
        return not LEAST_OF_MEDIAN * median <= price <= MOST_OF_MEDIAN * median

    kept = []
    for offer in offers:
        if offer.on_demand is not None and is_far(_unit_price(offer), _family(offer)):
            refused[offer.region, FAR] += 1
            offer = offer.model_copy(update={"on_demand": None})
        if offer.spot is not None:
            spot = float(offer.spot)
            share = spot / float(offer.on_demand or spot)
            usual_share = LEAST_SPOT_SHARE <= share <= MOST_SPOT_SHARE
            if is_far(spot, offer.instance_type) or not usual_share:
                refused[offer.region, FAR_SPOT] += 1
                offer = offer.model_copy(update={"spot": None})
        if offer.on_demand is not None or offer.spot is not None:
            kept.append(offer)
    return kept


def _family(offer: Offer) -> str:
    if offer.gpu:
        return f"GPU {offer.gpu} {offer.gpu_memory_gib}"
    return f"CPU {_SIZE.sub('', offer.instance_type)}"


def _unit_price(offer: Offer) -> float:
    """$/h on demand for each GPU, or GiB of a CPU type."""
    # Sizes of a CPU family are priced in proportion to their memory.
    return float(offer.on_demand or 0) / (offer.gpu_count or offer.memory_gib or offer.vcpus)


def without_reserved(offers: Sequence[Offer], model: Callable[[Offer], object]) -> list[Offer]:
    """The offers, without prices on demand that are those of reserved GPUs."""
    by_model = grouped(
        (model(o), _unit_price(o)) for o in offers if o.gpu and o.on_demand is not None
    )
    least = {}
    for name, prices in by_model.items():
        usual = median_high(prices)
        least[name] = LEAST_SHARE * max(p for p in prices if p <= MOST_OF_MEDIAN * usual)
    return [
        o.model_copy(update={"on_demand": None}) if _unit_price(o) < least.get(model(o), 0) else o
        for o in offers
    ]
