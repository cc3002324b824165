"""Reading AWS's replies about types, zones, running VMs and quotas; pure, so that recorded replies test it.

Rows are what boto3 gives; the results have the forms of :class:`deepvm.catalog.signals.signal.Signal`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from deepvm.catalog.clouds.aws.quota_codes import quota_family
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
    """What a reply says.

    Attributes:
        data: in the form that its kind has in a Signal.
        refused: rows that cannot be trusted, counted by reason.
    """

    data: Any
    refused: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RunningVm:
    """A VM that counts against a quota.

    Attributes:
        type_name: its instance type.
        market: how it was bought.
        vcpus: None where the reply does not say, and its type's count is meant.
    """

    type_name: str
    market: Market
    vcpus: int | None


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


def spot_gpu_types(specs: Mapping[str, Any]) -> tuple[str, ...]:
    """The types with whole NVIDIA GPUs and a spot market, sorted.

    Args:
        specs: as in a Signal.
    """
    return tuple(
        sorted(
            name for name, spec in specs.items() if spec["spot"] and spec.get("gpu", {}).get("manufacturer") == "NVIDIA"
        )
    )


def read_running(reservations: Iterable[Mapping[str, Any]]) -> tuple[RunningVm, ...]:
    """The VMs of DescribeInstances that count against the quotas of vCPUs.

    VMs on Dedicated Hosts and in Capacity Blocks do not: these have limits of their own.
    """
    running = []
    for reservation in reservations:
        for row in reservation.get("Instances") or ():
            lifecycle = row.get("InstanceLifecycle")
            state = (row.get("State") or {}).get("Name", "running")
            on_host = (row.get("Placement") or {}).get("Tenancy") == "host"
            if on_host or lifecycle == "capacity-block" or state not in ("pending", "running"):
                continue
            options = row.get("CpuOptions") or {}
            cores, threads = options.get("CoreCount"), options.get("ThreadsPerCore")
            vcpus = cores * threads if cores and threads else None
            market = Market.SPOT if lifecycle == "spot" else Market.ON_DEMAND
            running.append(RunningVm(row["InstanceType"], market, vcpus))
    return tuple(running)


def count_in_use(running: Sequence[RunningVm], vcpus_of: Mapping[str, int], family: str, market: Market) -> int:
    """VCPUs of running VMs that count against one quota.

    Args:
        running: the account's VMs.
        vcpus_of: vCPUs by type, for VMs that do not say.
        family: of the quota.
        market: of the quota.
    """
    return sum(
        vm.vcpus if vm.vcpus is not None else vcpus_of.get(vm.type_name, 0)
        for vm in running
        if vm.market is market and quota_family(vm.type_name) == family
    )


def read_vcpus(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """VCPUs by type, of rows of DescribeInstanceTypes."""
    return {row["InstanceType"]: int(row["VCpuInfo"]["DefaultVCpus"]) for row in rows}


def _spec(row: Mapping[str, Any]) -> dict[str, Any]:
    usage = row.get("SupportedUsageClasses") or ()
    spec: dict[str, Any] = {
        "vcpus": int(row["VCpuInfo"]["DefaultVCpus"]),
        "memory_gib": _gib(row["MemoryInfo"]["SizeInMiB"]),
        **_bandwidths(row.get("NetworkInfo") or {}),
        "arch": _architecture((row.get("ProcessorInfo") or {}).get("SupportedArchitectures") or ()),
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
        spec["gpu"] = _gpu(gpus)
    return spec


def _gib(mib: float) -> float:
    return round(mib / _MIB_PER_GIB, 3)


def _architecture(supported: Sequence[str]) -> str:
    # Old types also run 32-bit systems, which nobody trains on.
    return next((a for a in supported if a != "i386"), supported[0] if supported else "")


def _bandwidths(network: Mapping[str, Any]) -> dict[str, float]:
    """``baseline_gbps`` and ``peak_gbps`` over all network cards, absent where unknown."""
    cards = network.get("NetworkCards") or ()
    baselines = [card.get("BaselineBandwidthInGbps") for card in cards]
    peaks = [card.get("PeakBandwidthInGbps") for card in cards]
    worded = _worded_bandwidths(str(network.get("NetworkPerformance") or ""))
    baseline = sum(baselines) if baselines and all(baselines) else worded.get("baseline_gbps")
    peak = sum(peaks) if peaks and all(peaks) else worded.get("peak_gbps")
    found = {"baseline_gbps": baseline, "peak_gbps": peak}
    return {name: round(float(value), 6) for name, value in found.items() if value}


def _worded_bandwidths(words: str) -> dict[str, float]:
    match = _NETWORK_WORDS.fullmatch(words.strip())
    if match is None:
        return {}
    gbps = int(match[2] or 1) * float(match[3]) / (1 if match[4].lower() == "gigabit" else 1000)
    return {"peak_gbps": gbps} if match[1] else {"baseline_gbps": gbps, "peak_gbps": gbps}


def _why_unusable(row: Mapping[str, Any], gpus: Sequence[Mapping[str, Any]]) -> str:
    """Why no cluster can have this type, empty when one can."""
    for gpu in gpus:
        share = gpu.get("GpuPartitionSize")
        if not gpu.get("Count") or (share is not None and share < 1):
            part = f"{Fraction(share).limit_denominator(64)} of" if share and share < 1 else "a part of"
            return f"a share of a GPU ({row['InstanceType'].partition('.')[0]}: {part} one {gpu['Name']})"
    if len({(gpu.get("Manufacturer"), gpu["Name"]) for gpu in gpus}) > 1:
        return f"different GPUs in one VM: {' and '.join(_counted(gpus))}, which deepvm cannot plan for"
    if gpus:
        return ""
    for place, where in _ACCELERATORS:
        devices = (row.get(place) or {}).get(where) or ()
        if devices:
            return f"{' and '.join(_counted(devices))}, which deepvm cannot plan for"
    return ""


def _counted(devices: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"{device.get('Count', 1)} x {device.get('Name', 'an unnamed device')}" for device in devices]


def _gpu(gpus: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = gpus[0]
    gpu = {
        "name": first["Name"],
        "manufacturer": first.get("Manufacturer", ""),
        "count": sum(int(gpu["Count"]) for gpu in gpus),
    }
    mib = (first.get("MemoryInfo") or {}).get("SizeInMiB")
    return {**gpu, "memory_gib": _gib(mib)} if mib else gpu
