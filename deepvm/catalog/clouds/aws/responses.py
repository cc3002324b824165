"""Reading AWS's replies; pure, so that recorded replies test it.

Rows are what boto3 gives; results have the forms of :class:`deepvm.catalog.signals.signal.Signal`.
A wrong price breaks a budget, so no price is guessed: rows that cannot be trusted are refused and
counted, and of two prices for the same thing the higher one is kept.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from decimal import ROUND_CEILING, Decimal
from fractions import Fraction
from typing import Any

from deepvm.catalog.signals.signal import FetchResult
from deepvm.core.cluster.instances import Market
from deepvm.core.units import MICRO, to_decimal
from deepvm.errors import RequestError
from deepvm.io.times import format_time

_MIB_PER_GIB = 1024

# "100 Gigabit", "Up to 12.5 Gigabit", "4x 100 Gigabit"; "Low" to "High" have no figure.
_NETWORK_WORDS = re.compile(
    r"(up to )?(?:(\d+)x )?(\d+(?:\.\d+)?) (gigabit|megabit)", re.IGNORECASE
)

_ACCELERATORS = (
    # where AWS lists other accelerators; older types with Inferentia are in two places, the first
    # is the better one
    ("NeuronInfo", "NeuronDevices"),
    ("InferenceAcceleratorInfo", "Accelerators"),
    ("FpgaInfo", "Fpgas"),
    ("MediaAcceleratorInfo", "Accelerators"),
)


ZERO, UNPARSABLE, CONFLICT = "zero price", "unparsable row", "second price for the same type"
NO_DOLLARS = "no price per hour in US dollars"
OTHER_OPERATION = "other operation than RunInstances"
OTHER_PRODUCT, UNKNOWN_ZONE = "other product than Linux/UNIX", "unknown zone"

LINUX = "Linux/UNIX"
"""The product whose spot prices count.

Accounts from before 2013 also see ``Linux/UNIX (Amazon VPC)``.
"""


def read_specs(rows: Iterable[Mapping[str, Any]]) -> FetchResult:
    """The ``specs`` of rows of DescribeInstanceTypes."""
    data: dict[str, Any] = {}
    refused: Counter[str] = Counter()
    for row in rows:
        try:
            data[str(row["InstanceType"])] = _spec(row)
        except (KeyError, TypeError, ValueError, AttributeError):
            refused["incomplete row"] += 1
    return FetchResult(dict(sorted(data.items())), dict(refused))


def read_offerings(rows: Iterable[Mapping[str, Any]]) -> FetchResult:
    """The ``offerings`` of rows of DescribeInstanceTypeOfferings, asked for by zone id."""
    zones: dict[str, set[str]] = {}
    refused: Counter[str] = Counter()
    for row in rows:
        name, place = row.get("InstanceType"), row.get("Location")
        if (
            row.get("LocationType", "availability-zone-id") != "availability-zone-id"
            or not name
            or not place
        ):
            refused["not a zone id"] += 1
        else:
            zones.setdefault(name, set()).add(place)
    return FetchResult({name: sorted(ids) for name, ids in sorted(zones.items())}, dict(refused))


def read_zones(rows: Iterable[Mapping[str, Any]]) -> FetchResult:
    """The ``zones`` of rows of DescribeAvailabilityZones."""
    data: dict[str, str] = {}
    refused: Counter[str] = Counter()
    for row in rows:
        if row.get("ZoneId") and row.get("ZoneName"):
            data[row["ZoneId"]] = row["ZoneName"]
        else:
            refused["incomplete row"] += 1
    return FetchResult(dict(sorted(data.items())), dict(refused))


def read_running(reservations: Iterable[Mapping[str, Any]]) -> list[tuple[str, Market, int | None]]:
    """Type, market and vCPUs (None: those of the type) of VMs in DescribeInstances that count against vCPU quotas."""
    running = []
    for row in (r for reservation in reservations for r in reservation.get("Instances") or ()):
        lifecycle = row.get("InstanceLifecycle")
        state = (row.get("State") or {}).get("Name", "running")
        on_host = (row.get("Placement") or {}).get("Tenancy") == "host"
        # Dedicated Hosts and Capacity Blocks have limits of their own.
        if on_host or lifecycle == "capacity-block" or state not in ("pending", "running"):
            continue
        options = row.get("CpuOptions") or {}
        cores, threads = options.get("CoreCount"), options.get("ThreadsPerCore")
        market = Market.SPOT if lifecycle == "spot" else Market.ON_DEMAND
        running.append(
            (row["InstanceType"], market, cores * threads if cores and threads else None)
        )
    return running


def read_vcpus(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """VCPUs by type, of rows of DescribeInstanceTypes."""
    return {row["InstanceType"]: int(row["VCpuInfo"]["DefaultVCpus"]) for row in rows}


class _RowRefusedError(Exception):
    """A row that cannot be trusted; its text is the reason."""


def price_text(price: Decimal) -> str:
    """A positive price as Signals carry it: at most six decimals, rounded up, without trailing zeros."""
    return f"{price.quantize(MICRO, rounding=ROUND_CEILING):f}".rstrip("0").rstrip(".")


def read_on_demand(rows: Iterable[Any]) -> FetchResult:
    """The ``on-demand`` prices of GetProducts' PriceList, whose rows are JSON texts."""
    prices: dict[str, Decimal] = {}
    refused: Counter[str] = Counter()
    for row in rows:
        try:
            name, offers = _product(row)
        except _RowRefusedError as reason:
            refused[str(reason)] += 1
            continue
        for offer in offers:
            refused[CONFLICT] += name in prices and prices[name] != offer
            prices[name] = max(offer, prices.get(name, offer))
    return FetchResult(
        {name: price_text(price) for name, price in sorted(prices.items())}, dict(+refused)
    )


def read_spot(rows: Iterable[Mapping[str, Any]], zone_ids: Mapping[str, str]) -> FetchResult:
    """The ``spot`` prices: the newest of each type and zone; see :func:`read_history`."""
    history = read_history(rows, zone_ids)
    for zones in history.data.values():
        for zone, changes in zones.items():
            at, price = changes[-1]
            zones[zone] = [price, format_time(datetime.fromtimestamp(at, timezone.utc))]
    return history


def read_history(rows: Iterable[Mapping[str, Any]], zone_ids: Mapping[str, str]) -> FetchResult:
    """The ``history`` of rows of DescribeSpotPriceHistory in any order; ``zone_ids`` (by name) are for rows without."""
    refused: Counter[str] = Counter()
    points: dict[tuple[str, str], dict[int, Decimal]] = {}
    for row in rows:
        try:
            place, at, price = _change(row, zone_ids)
        except _RowRefusedError as reason:
            refused[str(reason)] += 1
            continue
        known = points.setdefault(place, {})
        refused[CONFLICT] += at in known and known[at] != price
        known[at] = max(price, known.get(at, price))
    data: dict[str, dict[str, list[list[Any]]]] = {}
    for (name, zone), known in sorted(points.items()):
        data.setdefault(name, {})[zone] = [
            [at, price_text(price)] for at, price in sorted(known.items())
        ]
    return FetchResult(data, dict(+refused))


def read_placement(rows: Iterable[Mapping[str, Any]], region: str) -> FetchResult:
    """The ``placement`` scores of a region in rows of GetSpotPlacementScores, best first."""
    scores, refused = [], Counter[str]()
    for row in rows:
        zone, score = row.get("AvailabilityZoneId"), row.get("Score")
        if (
            row.get("Region", region) != region
            or not zone
            or not isinstance(score, int)
            or not 1 <= score <= 10
        ):
            refused[UNPARSABLE] += 1
        else:
            scores.append({"zone": zone, "score": score})
    return FetchResult(sorted(scores, key=lambda s: (-s["score"], s["zone"])), dict(refused))


def _spec(row: Mapping[str, Any]) -> dict[str, Any]:
    usage = row.get("SupportedUsageClasses") or ()
    architectures = (row.get("ProcessorInfo") or {}).get("SupportedArchitectures") or [""]
    spec: dict[str, Any] = {
        "vcpus": int(row["VCpuInfo"]["DefaultVCpus"]),
        "memory_gib": _gib(row["MemoryInfo"]["SizeInMiB"]),
        **_bandwidths(row.get("NetworkInfo") or {}),
        # Old types also run 32-bit systems, which nobody trains on.
        "arch": next((a for a in architectures if a != "i386"), architectures[0]),
        "current": bool(row.get("CurrentGeneration", True)),
        "burstable": bool(row.get("BurstablePerformanceSupported", False)),
        "metal": bool(row.get("BareMetal", False)),
        "spot": "spot" in usage,
        "on_demand": "on-demand" in usage,
    }
    if spec["vcpus"] < 1 or spec["memory_gib"] <= 0:
        raise ValueError(row["InstanceType"])
    gpus = (row.get("GpuInfo") or {}).get("Gpus") or ()
    unusable = _why_unusable(row, gpus) or (
        "it runs macOS alone" if spec["arch"].endswith("_mac") else ""
    )
    if unusable:
        spec["unusable"] = unusable
    elif gpus:
        first, count = gpus[0], sum(int(gpu["Count"]) for gpu in gpus)
        spec["gpu"] = {
            "name": first["Name"],
            "manufacturer": first.get("Manufacturer", ""),
            "count": count,
        }
        mib = (first.get("MemoryInfo") or {}).get("SizeInMiB")
        spec["gpu"] |= {"memory_gib": _gib(mib)} if mib else {}
    return spec


def _gib(mib: float) -> float:
    return round(mib / _MIB_PER_GIB, 3)


def _bandwidths(network: Mapping[str, Any]) -> dict[str, float]:
    """``baseline_gbps`` and ``peak_gbps`` summed over network cards, else as worded.

    Absent where unknown.

    Several cards have no more than the words say: on a g6e.48xlarge each of four may use all of its
    400 Gbit/s.
    """
    words = _NETWORK_WORDS.fullmatch(str(network.get("NetworkPerformance") or "").strip())
    worded = {}
    if words is not None:
        gbps = int(words[2] or 1) * float(words[3]) / (1 if words[4].lower() == "gigabit" else 1000)
        worded = {"Peak": gbps} if words[1] else {"Baseline": gbps, "Peak": gbps}
    found = {}
    for which in ("Baseline", "Peak"):
        figures = [
            card.get(f"{which}BandwidthInGbps") for card in network.get("NetworkCards") or ()
        ]
        total = sum(figures) if figures and all(figures) else worded.get(which)
        if total and len(figures) > 1:
            total = min(total, worded.get(which, total))
        if total:
            found[f"{which.lower()}_gbps"] = round(float(total), 6)
    return found


def _why_unusable(row: Mapping[str, Any], gpus: Sequence[Mapping[str, Any]]) -> str:
    """Why no cluster can use this type; empty if one can."""
    for gpu in gpus:
        share = gpu.get("GpuPartitionSize")
        if not gpu.get("Count") or (share is not None and share < 1):
            part = (
                f"{Fraction(share).limit_denominator(64)} of"
                if share and share < 1
                else "a part of"
            )
            return (
                f"a share of a GPU ({row['InstanceType'].partition('.')[0]}: {part} one"
                f" {gpu['Name']})"
            )
    if len({(gpu.get("Manufacturer"), gpu["Name"]) for gpu in gpus}) > 1:
        return f"different GPUs in one VM: {_counted(gpus)}, which deepvm cannot plan for"
    if gpus:
        return ""
    found = ((row.get(place) or {}).get(where) or () for place, where in _ACCELERATORS)
    return next(
        (f"{_counted(devices)}, which deepvm cannot plan for" for devices in found if devices), ""
    )


def _counted(devices: Sequence[Mapping[str, Any]]) -> str:
    return " and ".join(
        f"{device.get('Count', 1)} x {device.get('Name', 'an unnamed device')}"
        for device in devices
    )


def _product(row: Any) -> tuple[str, list[Decimal]]:
    """The type and hourly prices of one row of the price list."""
    try:
        document = json.loads(row)
        attributes = document["product"]["attributes"]
        name, operation = attributes["instanceType"], attributes.get("operation", "")
        terms = document["terms"].get("OnDemand") or {}
        dimensions = [d for term in terms.values() for d in term["priceDimensions"].values()]
        hourly = [d["pricePerUnit"] for d in dimensions if d.get("unit") == "Hrs"]
        texts = [prices["USD"] for prices in hourly if "USD" in prices]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _RowRefusedError(UNPARSABLE) from None
    if not isinstance(name, str) or not name:
        raise _RowRefusedError(UNPARSABLE)
    # RunInstances:0002 and the like are Windows, SQL Server or BYOL under the same name.
    if operation != "RunInstances":
        raise _RowRefusedError(OTHER_OPERATION)
    if not texts:
        raise _RowRefusedError(NO_DOLLARS)
    return name, [_amount(text) for text in texts]


def _change(
    row: Mapping[str, Any], zone_ids: Mapping[str, str]
) -> tuple[tuple[str, str], int, Decimal]:
    """Type and zone, time of the change (s since 1970) and price of a row of DescribeSpotPriceHistory."""
    name, since = row.get("InstanceType"), row.get("Timestamp")
    if not name or not isinstance(since, datetime) or since.tzinfo is None:
        raise _RowRefusedError(UNPARSABLE)
    if not str(row.get("ProductDescription", LINUX)).startswith(LINUX):
        raise _RowRefusedError(OTHER_PRODUCT)
    zone = row.get("AvailabilityZoneId") or zone_ids.get(row.get("AvailabilityZone") or "")
    if not zone:
        raise _RowRefusedError(UNKNOWN_ZONE)
    return (name, zone), int(since.timestamp()), _amount(row.get("SpotPrice"))


def _amount(text: Any) -> Decimal:
    try:
        price = to_decimal(text, "price", zero=True)
    except RequestError:
        raise _RowRefusedError(UNPARSABLE) from None
    if not price:
        raise _RowRefusedError(ZERO)
    return price
