"""Parse AWS's replies, rows as boto3 returns them, to signals."""
# A wrong price breaks a budget, so no price is guessed: rows that cannot be trusted are refused and
# counted, and of two prices for the same thing the higher one is kept.

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any, TypeVar

import jmespath

from deepvm.catalog.signals.signal import FetchResult, price_text
from deepvm.core.cluster.instances import Market
from deepvm.core.grouping import grouped
from deepvm.core.json_types import JsonDict
from deepvm.core.json_types import JsonObject as Row
from deepvm.core.units import format_time

_MIB_PER_GIB = 1024

# "100 Gigabit", "Up to 12.5 Gigabit", "4x 100 Gigabit"; "Low" to "High" have no figure.
_NETWORK_WORDS = re.compile(
    r"(up to )?(?:(\d+)x )?(\d+(?:\.\d+)?) (gigabit|megabit)", re.IGNORECASE
)
_PER_GBPS = {"gigabit": 1, "megabit": 1000}

# Older types with Inferentia are in two places, the first is the better one.
_SPEC = jmespath.compile(
    """{
    vcpus: VCpuInfo.DefaultVCpus, mib: MemoryInfo.SizeInMiB, network: NetworkInfo || `{}`,
    arch: ProcessorInfo.SupportedArchitectures[?@ != 'i386'] | [0] || '',
    usage: SupportedUsageClasses || `[]`, gpus: GpuInfo.Gpus || `[]`,
    accelerators: [
        NeuronInfo.NeuronDevices, InferenceAcceleratorInfo.Accelerators, FpgaInfo.Fpgas,
        MediaAcceleratorInfo.Accelerators
    ] | [?@] | [0] || `[]`
    }"""
)
# Dedicated Hosts and Capacity Blocks have separate limits.
_RUNNING = jmespath.compile(
    """[].Instances[] | [?Placement.Tenancy != 'host' && InstanceLifecycle != 'capacity-block'
        && (State.Name == 'pending' || State.Name == 'running')]
    .[InstanceType, InstanceLifecycle, CpuOptions.CoreCount, CpuOptions.ThreadsPerCore]"""
)
_PRODUCT = jmespath.compile(
    """[product.attributes.instanceType, product.attributes.operation,
        terms.OnDemand.*.priceDimensions | [].*[] | [?unit == 'Hrs'].pricePerUnit.USD]"""
)

UNUSABLE = "unusable row"  # The reason under which refused rows are counted

# The product whose spot prices count. Accounts from before 2013 also see ``Linux/UNIX (Amazon
# VPC)``.
LINUX = "Linux/UNIX"

_Result = TypeVar("_Result")


def _each(
    rows: Iterable[Any], read: Callable[[Any], _Result | None]
) -> tuple[list[_Result], dict[str, int]]:
    results = []
    refused = 0
    for row in rows:
        try:
            result = read(row)
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
            refused += 1
            continue
        if result is not None:
            results.append(result)
    return results, {UNUSABLE: refused} if refused else {}


def read_specs(rows: Iterable[Row]) -> FetchResult:
    """The ``specs`` of rows of DescribeInstanceTypes."""
    specs, refused = _each(rows, _spec)
    return FetchResult(dict(sorted(specs, key=lambda spec: spec[0])), refused)


def read_offerings(rows: Iterable[Row]) -> FetchResult:
    """The ``offerings`` of rows of DescribeInstanceTypeOfferings, asked for by zone id."""

    def read(row: Row) -> tuple[str, str]:
        if row["LocationType"] != "availability-zone-id":
            raise ValueError("not a zone id")
        return row["InstanceType"], row["Location"]

    offers, refused = _each(rows, read)
    return FetchResult(grouped(sorted(set(offers))), refused)


def read_zones(rows: Iterable[Row]) -> FetchResult:
    """The ``zones`` of rows of DescribeAvailabilityZones."""
    zones, refused = _each(rows, lambda row: (row["ZoneId"], row["ZoneName"]))
    return FetchResult(dict(sorted(zones)), refused)


def read_running(reservations: Iterable[Row]) -> list[tuple[str, Market, int | None]]:
    """Type, market and vCPUs (None: the type's) of VMs that count against vCPU quotas."""
    running = []
    for name, lifecycle, cores, threads in _RUNNING.search(list(reservations)):
        market = Market.ON_DEMAND  # also for others, such as scheduled ones
        if lifecycle == "spot":
            market = Market.SPOT
        running.append((name, market, (cores or 0) * (threads or 0) or None))
    return running


def read_on_demand(rows: Iterable[Any]) -> FetchResult:
    """The ``on-demand`` prices of GetProducts' PriceList, whose rows are JSON texts."""
    products, refused = _each(rows, _product)
    prices: dict[str, str] = {}
    for name, offers in products:
        prices[name] = max(*offers, prices.get(name, "0"), key=Decimal)
    return FetchResult(dict(sorted(prices.items())), refused)


def read_spot(rows: Iterable[Row], zone_ids: Mapping[str, str]) -> FetchResult:
    """The ``spot`` prices: the newest of each type and zone; see :func:`read_history`."""
    history = read_history(rows, zone_ids)
    for zones in history.data.values():
        for zone, changes in zones.items():
            at, price = changes[-1]
            zones[zone] = [price, format_time(datetime.fromtimestamp(at, timezone.utc))]
    return history


def read_history(rows: Iterable[Row], zone_ids: Mapping[str, str]) -> FetchResult:
    """The ``history`` of rows of DescribeSpotPriceHistory; ``zone_ids``: by name, where missing."""
    changes, refused = _each(rows, lambda row: _change(row, zone_ids))
    points: dict[tuple[str, str, int], str] = {}
    for point, price in changes:
        points[point] = max(price, points.get(point, price), key=Decimal)
    data: dict[str, dict[str, list[list[Any]]]] = {}
    for (name, zone, at), price in sorted(points.items()):
        data.setdefault(name, {}).setdefault(zone, []).append([at, price])
    return FetchResult(data, refused)


def read_placement(rows: Iterable[Row], region: str) -> FetchResult:
    """The ``placement`` scores of a region in rows of GetSpotPlacementScores, best first."""

    def read(row: Row) -> JsonDict:
        if row["Region"] != region or row["Score"] not in range(1, 11):
            raise ValueError("no score of a zone of the region")
        return {"zone": row["AvailabilityZoneId"], "score": row["Score"]}

    scores, refused = _each(rows, read)
    return FetchResult(sorted(scores, key=lambda s: (-s["score"], s["zone"])), refused)


def _spec(row: Row) -> tuple[str, JsonDict]:
    about = _SPEC.search(row)
    spec: JsonDict = {
        "vcpus": int(about["vcpus"]),
        "memory_gib": _gib(about["mib"]),
        **_bandwidths(about["network"]),
        "arch": about["arch"],
        "current": bool(row.get("CurrentGeneration", True)),
        "burstable": bool(row.get("BurstablePerformanceSupported", False)),
        "metal": bool(row.get("BareMetal", False)),
        "spot": "spot" in about["usage"],
        "on_demand": "on-demand" in about["usage"],
    }
    if spec["vcpus"] < 1 or spec["memory_gib"] <= 0:
        raise ValueError("a type without a size")
    gpus = about["gpus"]
    unusable = _reason_unusable(gpus, about["accelerators"])
    if spec["arch"].endswith("_mac"):
        unusable = "it runs only macOS"
    if unusable:
        spec["unusable"] = unusable
    elif gpus:
        spec["gpu"] = _gpu(gpus)
    return row["InstanceType"], spec


def _gpu(gpus: Sequence[Row]) -> JsonDict:
    first = gpus[0]
    count = sum(int(gpu["Count"]) for gpu in gpus)
    gpu = {"name": first["Name"], "manufacturer": first.get("Manufacturer", ""), "count": count}
    mib = (first.get("MemoryInfo") or {}).get("SizeInMiB")
    if mib:
        gpu["memory_gib"] = _gib(mib)
    return gpu


def _gib(mib: float) -> float:
    return round(mib / _MIB_PER_GIB, 3)


def _bandwidths(network: Row) -> dict[str, float]:
    """``baseline_gbps`` and ``peak_gbps`` summed over network cards, else as worded, if known."""
    # The words limit the sum: on a g6e.48xlarge each of four cards may use all of its 400 Gbit/s
    words = _NETWORK_WORDS.fullmatch(str(network.get("NetworkPerformance") or "").strip())
    worded = {}
    if words is not None:
        worded["Peak"] = int(words[2] or 1) * float(words[3]) / _PER_GBPS[words[4].lower()]
        if not words[1]:
            worded["Baseline"] = worded["Peak"]
    bandwidths = {}
    cards = network.get("NetworkCards") or ()
    for which in ("Baseline", "Peak"):
        figures = [card.get(f"{which}BandwidthInGbps") for card in cards]
        totals = []
        if which in worded:
            totals = [worded[which]]
        if figures and all(figures):
            # The figure of a single card is more exact than the words.
            totals = [sum(figures), *(totals if len(figures) > 1 else [])]
        if totals:
            bandwidths[f"{which.lower()}_gbps"] = round(float(min(totals)), 6)
    return bandwidths


def _reason_unusable(gpus: Sequence[Row], accelerators: Sequence[Row]) -> str:
    """Why no cluster can use this type; empty if one can."""
    for gpu in gpus:
        share = gpu.get("GpuPartitionSize", 1)
        if not gpu.get("Count") or share < 1:
            return f"a share of a GPU ({share:g} of one {gpu['Name']})"
    if len({(gpu.get("Manufacturer"), gpu["Name"]) for gpu in gpus}) > 1:
        return f"different GPUs in one VM: {_counted(gpus)}, which deepvm cannot plan for"
    if accelerators and not gpus:
        return f"{_counted(accelerators)}, which deepvm cannot plan for"
    return ""


def _counted(devices: Sequence[Row]) -> str:
    names = (f"{d.get('Count', 1)} x {d.get('Name', 'an unnamed device')}" for d in devices)
    return " and ".join(names)


def _product(row: Any) -> tuple[str, list[str]] | None:
    name, operation, prices = _PRODUCT.search(json.loads(row))
    if not isinstance(name, str) or not name or not prices:
        raise ValueError("no type, or no price per hour in US dollars")
    # RunInstances:0002 and the like are Windows, SQL Server or BYOL under the same name.
    if operation == "RunInstances":
        return (name, [_amount(text) for text in prices])
    return None


def _change(row: Row, zone_ids: Mapping[str, str]) -> tuple[tuple[str, str, int], str] | None:
    if not str(row.get("ProductDescription", LINUX)).startswith(LINUX):
        return None
    name = row["InstanceType"]
    since = row["Timestamp"]
    zone = row.get("AvailabilityZoneId") or zone_ids[row["AvailabilityZone"]]
    if not name or not zone or since.tzinfo is None:
        raise ValueError("no type, no zone or no time zone")
    return (name, zone, int(since.timestamp())), _amount(row["SpotPrice"])


def _amount(text: Any) -> str:
    price = price_text(text)
    if price is None:
        raise ValueError("no price")
    return price
