"""Reading AWS's replies about types, zones and running VMs; pure, so that recorded replies test it.

Rows are what boto3 gives; the results have the forms of :class:`deepvm.catalog.signals.signal.Signal`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from deepvm.core.cluster.instances import Market

_MIB_PER_GIB = 1024

# "100 Gigabit", "Up to 12.5 Gigabit", "4x 100 Gigabit"; the words "Low" to "High" have no figure.
_NETWORK_WORDS = re.compile(r"(up to )?(?:(\d+)x )?(\d+(?:\.\d+)?) (gigabit|megabit)", re.IGNORECASE)

_ACCELERATORS = (
    # where AWS lists what is no GPU; older types with Inferentia stand in two of them, the first says it best
    ("NeuronInfo", "NeuronDevices"),
    ("InferenceAcceleratorInfo", "Accelerators"),
    ("FpgaInfo", "Fpgas"),
    ("MediaAcceleratorInfo", "Accelerators"),
)


@dataclass(frozen=True)
class Reading:
    """What a reply says: data in the form that its kind has in a Signal, and how many rows were refused, by reason."""

    data: Any
    refused: Mapping[str, int] = field(default_factory=dict)


def read_specs(rows: Iterable[Mapping[str, Any]]) -> Reading:
    """The ``specs`` of rows of DescribeInstanceTypes."""
    data: dict[str, Any] = {}
    refused: Counter[str] = Counter()
    for row in rows:
        try:
            data[str(row["InstanceType"])] = _spec(row)
        except (KeyError, TypeError, ValueError, AttributeError):
            refused["incomplete row"] += 1
    return Reading(dict(sorted(data.items())), dict(refused))


def read_offerings(rows: Iterable[Mapping[str, Any]]) -> Reading:
    """The ``offerings`` of rows of DescribeInstanceTypeOfferings, asked for by zone id."""
    zones: dict[str, set[str]] = {}
    refused: Counter[str] = Counter()
    for row in rows:
        name, place = row.get("InstanceType"), row.get("Location")
        if row.get("LocationType", "availability-zone-id") != "availability-zone-id" or not name or not place:
            refused["not a zone id"] += 1
        else:
            zones.setdefault(name, set()).add(place)
    return Reading({name: sorted(ids) for name, ids in sorted(zones.items())}, dict(refused))


def read_zones(rows: Iterable[Mapping[str, Any]]) -> Reading:
    """The ``zones`` of rows of DescribeAvailabilityZones."""
    data: dict[str, str] = {}
    refused: Counter[str] = Counter()
    for row in rows:
        if row.get("ZoneId") and row.get("ZoneName"):
            data[row["ZoneId"]] = row["ZoneName"]
        else:
            refused["incomplete row"] += 1
    return Reading(dict(sorted(data.items())), dict(refused))


def read_running(reservations: Iterable[Mapping[str, Any]]) -> list[tuple[str, Market, int | None]]:
    """Type, market and vCPUs (None: those of the type) of VMs in DescribeInstances that count against vCPU quotas.

    VMs on Dedicated Hosts and in Capacity Blocks do not: these have limits of their own.
    """
    running = []
    for row in (r for reservation in reservations for r in reservation.get("Instances") or ()):
        lifecycle = row.get("InstanceLifecycle")
        state = (row.get("State") or {}).get("Name", "running")
        on_host = (row.get("Placement") or {}).get("Tenancy") == "host"
        if on_host or lifecycle == "capacity-block" or state not in ("pending", "running"):
            continue
        options = row.get("CpuOptions") or {}
        cores, threads = options.get("CoreCount"), options.get("ThreadsPerCore")
        market = Market.SPOT if lifecycle == "spot" else Market.ON_DEMAND
        running.append((row["InstanceType"], market, cores * threads if cores and threads else None))
    return running


def read_vcpus(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """VCPUs by type, of rows of DescribeInstanceTypes."""
    return {row["InstanceType"]: int(row["VCpuInfo"]["DefaultVCpus"]) for row in rows}


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
    unusable = _why_unusable(row, gpus) or ("it runs macOS alone" if spec["arch"].endswith("_mac") else "")
    if unusable:
        spec["unusable"] = unusable
    elif gpus:
        first, count = gpus[0], sum(int(gpu["Count"]) for gpu in gpus)
        spec["gpu"] = {"name": first["Name"], "manufacturer": first.get("Manufacturer", ""), "count": count}
        mib = (first.get("MemoryInfo") or {}).get("SizeInMiB")
        spec["gpu"] |= {"memory_gib": _gib(mib)} if mib else {}
    return spec


def _gib(mib: float) -> float:
    return round(mib / _MIB_PER_GIB, 3)


def _bandwidths(network: Mapping[str, Any]) -> dict[str, float]:
    """``baseline_gbps`` and ``peak_gbps`` over all network cards, else as the words say; absent where unknown."""
    words = _NETWORK_WORDS.fullmatch(str(network.get("NetworkPerformance") or "").strip())
    worded = {}
    if words is not None:
        gbps = int(words[2] or 1) * float(words[3]) / (1 if words[4].lower() == "gigabit" else 1000)
        worded = {"Peak": gbps} if words[1] else {"Baseline": gbps, "Peak": gbps}
    found = {}
    for which in ("Baseline", "Peak"):
        figures = [card.get(f"{which}BandwidthInGbps") for card in network.get("NetworkCards") or ()]
        total = sum(figures) if figures and all(figures) else worded.get(which)
        if total:
            found[f"{which.lower()}_gbps"] = round(float(total), 6)
    return found


def _why_unusable(row: Mapping[str, Any], gpus: Sequence[Mapping[str, Any]]) -> str:
    """Why no cluster can have this type, empty when one can."""
    for gpu in gpus:
        share = gpu.get("GpuPartitionSize")
        if not gpu.get("Count") or (share is not None and share < 1):
            part = f"{Fraction(share).limit_denominator(64)} of" if share and share < 1 else "a part of"
            return f"a share of a GPU ({row['InstanceType'].partition('.')[0]}: {part} one {gpu['Name']})"
    if len({(gpu.get("Manufacturer"), gpu["Name"]) for gpu in gpus}) > 1:
        return f"different GPUs in one VM: {_counted(gpus)}, which deepvm cannot plan for"
    if gpus:
        return ""
    found = ((row.get(place) or {}).get(where) or () for place, where in _ACCELERATORS)
    return next((f"{_counted(devices)}, which deepvm cannot plan for" for devices in found if devices), "")


def _counted(devices: Sequence[Mapping[str, Any]]) -> str:
    return " and ".join(f"{device.get('Count', 1)} x {device.get('Name', 'an unnamed device')}" for device in devices)
