"""Providers of AWS's signals, one per kind."""

import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import Any

from deepvm.catalog.clouds.aws import responses
from deepvm.catalog.clouds.aws.client import ApiCall, Aws
from deepvm.catalog.clouds.aws.quota_codes import QUOTA_NAMES, quota_family
from deepvm.catalog.public.download import PublicFile, download, shown
from deepvm.catalog.signals import signal as kinds
from deepvm.catalog.signals.signal import FetchResult, Provider
from deepvm.core.cluster.instances import INTERRUPTION_BANDS, Market
from deepvm.core.json_types import JsonObject
from deepvm.errors import CloudError

PRICING_REGION = "us-east-1"  # Few regions serve the price list, each of them for all

_PRICED_TYPES_IN_A_CALL = 8
_TYPES_IN_A_CALL = 100
_LINUX_SPOT = {"ProductDescriptions": [responses.LINUX], "MaxResults": 1000}
_NO_QUOTA = "NoSuchResourceException"
_LINUX_ON_DEMAND = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "capacitystatus": "Used",
    "preInstalledSw": "NA",
    "marketoption": "OnDemand",
}


def aws_providers(aws: Aws) -> Mapping[str, Provider]:
    """The providers of an account that need no parameters, by kind."""
    sources = {
        kinds.SPECS: ("AWS EC2 instance types", _specs),
        kinds.OFFERINGS: ("AWS EC2 instance type offerings", _offerings),
        kinds.ZONES: ("AWS EC2 availability zones", _zones),
        kinds.ON_DEMAND: ("AWS price list", _on_demand),
        kinds.SPOT: ("AWS EC2 spot prices", _spot),
        kinds.QUOTAS: ("AWS Service Quotas", _quotas),
    }
    return {k: Provider(k, source, partial(read, aws)) for k, (source, read) in sources.items()}


def history_provider(aws: Aws, days: int) -> Provider:
    """The spot price history of types with whole NVIDIA GPUs, over 1 to 90 days."""
    source = f"AWS EC2 spot prices of {days} days"
    return Provider(f"{kinds.HISTORY}:{days}", source, partial(_history, aws, timedelta(days=days)))


def placement_provider(aws: Aws, types: Sequence[str], count: int) -> Provider:
    """Placement scores of ``count`` spot VMs of any types; AWS scores fewer than three low."""
    wanted = sorted(set(types))
    # In the name of the cache file: scores of other types must not be mixed up.
    digest = hashlib.sha256(" ".join(wanted).encode()).hexdigest()[:8]
    kind = f"{kinds.PLACEMENT}:{count}-{digest}"
    return Provider(kind, "AWS EC2 spot placement scores", partial(_placement, aws, wanted, count))


def _specs(aws: Aws, region: str, _: datetime) -> FetchResult:
    call = ApiCall("ec2", "DescribeInstanceTypes", region)
    return _whole(responses.read_specs(aws.pages(call, MaxResults=100)), call, "no instance type")


def _offerings(aws: Aws, region: str, _: datetime) -> FetchResult:
    # Ids of zones are the same for every account
    call = ApiCall("ec2", "DescribeInstanceTypeOfferings", region)
    rows = aws.pages(call, LocationType="availability-zone-id", MaxResults=1000)
    return _whole(responses.read_offerings(rows), call, "no type that any zone offers")


def _zones(aws: Aws, region: str, _: datetime | None = None) -> FetchResult:
    call = ApiCall("ec2", "DescribeAvailabilityZones", region)
    rows = aws.call(call).get("AvailabilityZones") or ()
    return _whole(responses.read_zones(rows), call, "no zone")


def _on_demand(aws: Aws, region: str, _: datetime) -> FetchResult:
    wanted = {**_LINUX_ON_DEMAND, "regionCode": region}
    filters = [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in wanted.items()]
    call = ApiCall("pricing", "GetProducts", PRICING_REGION)
    which = {"ServiceCode": "AmazonEC2", "Filters": filters, "FormatVersion": "aws_v1"}
    rows = aws.pages(call, MaxResults=100, **which)
    return _whole(responses.read_on_demand(rows), call, f"no price for {region}")


def _spot(aws: Aws, region: str, now: datetime) -> FetchResult:
    call = ApiCall("ec2", "DescribeSpotPriceHistory", region)
    rows = aws.pages(call, StartTime=now, **_LINUX_SPOT)
    return _whole(responses.read_spot(rows, _zone_ids(aws, region, rows)), call, "no spot price")


def _history(aws: Aws, period: timedelta, region: str, now: datetime) -> FetchResult:
    specs = _specs(aws, region, now).data
    gpus = {name: spec.get("gpu", {}) for name, spec in sorted(specs.items()) if spec["spot"]}
    types = [name for name, gpu in gpus.items() if gpu.get("manufacturer") == "NVIDIA"]
    call = ApiCall("ec2", "DescribeSpotPriceHistory", region)
    window = {"StartTime": now - period, "EndTime": now, **_LINUX_SPOT}
    rows = _rows_of_types(aws, call, types, _PRICED_TYPES_IN_A_CALL, **window)
    return responses.read_history(rows, _zone_ids(aws, region, rows))


def _rows_of_types(
    aws: Aws, call: ApiCall, types: Sequence[str], at_once: int, **which: Any
) -> list[Any]:
    chunks = [types[first : first + at_once] for first in range(0, len(types), at_once)]
    answers = aws.each(lambda c: aws.pages(call, InstanceTypes=c, **which), chunks)
    return [row for rows in answers for row in rows]


def _quotas(aws: Aws, region: str, _: datetime) -> FetchResult:
    limits = aws.each(lambda quota: _limit(aws, region, quota.code), QUOTA_NAMES.values())
    if all(limit is None for limit in limits):
        call = ApiCall("service-quotas", "GetServiceQuota", region)
        raise call.error("reply", "AWS knows none of EC2's quotas of vCPUs here")
    in_use = _in_use(aws, region)
    rows = []
    for ((family, market), quota), limit in zip(QUOTA_NAMES.items(), limits, strict=True):
        if limit is not None:
            row = {"family": family, "market": market.value, "code": quota.code}
            rows.append(row | {"vcpus": int(limit), "in_use": in_use[family, market]})
    return FetchResult(rows)


def _limit(aws: Aws, region: str, code: str) -> float | None:
    """The account's limit, else AWS's default; None where this region has no such quota."""
    for operation in ("GetServiceQuota", "GetAWSDefaultServiceQuota"):
        # A quota that was never raised may exist only as a default.
        call = ApiCall("service-quotas", operation, region)
        reply = aws.call(call, (_NO_QUOTA,), ServiceCode="ec2", QuotaCode=code)
        if reply == _NO_QUOTA:
            continue
        value = (reply.get("Quota") or {}).get("Value")
        if not isinstance(value, int | float):
            # A proxy's page, or an error inside AWS: do not fall back to the default, which may be
            # far from the account's limit.
            raise call.error("reply", f"the answer holds no value of quota {code}")
        if value >= 0:
            return float(value)
    return None


def _in_use(aws: Aws, region: str) -> Counter[tuple[str, Market]]:
    live = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    call = ApiCall("ec2", "DescribeInstances", region)
    running = responses.read_running(aws.pages(call, Filters=live, MaxResults=1000))
    types = sorted({name for name, _, vcpus in running if vcpus is None})
    call = ApiCall("ec2", "DescribeInstanceTypes", region)
    rows = _rows_of_types(aws, call, types, _TYPES_IN_A_CALL)
    vcpus_of = {row["InstanceType"]: int(row["VCpuInfo"]["DefaultVCpus"]) for row in rows}
    used: Counter[tuple[str, Market]] = Counter()
    for name, market, vcpus in running:
        used[quota_family(name), market] += vcpus or vcpus_of.get(name, 0)
    return used


def _placement(aws: Aws, types: Sequence[str], count: int, region: str, _: datetime) -> FetchResult:
    call = ApiCall("ec2", "GetSpotPlacementScores", region)
    wanted = {"InstanceTypes": list(types), "TargetCapacity": count, "SingleAvailabilityZone": True}
    rows = aws.pages(call, RegionNames=[region], MaxResults=1000, **wanted)
    return responses.read_placement(rows, region)


def _zone_ids(aws: Aws, region: str, rows: Sequence[JsonObject]) -> Mapping[str, str]:
    if all(row.get("AvailabilityZoneId") for row in rows):  # so names need not be asked for
        return {}
    return {name: zone for zone, name in _zones(aws, region).data.items()}


def _whole(result: FetchResult, call: ApiCall, missing: str) -> FetchResult:
    if not result.data:  # it would replace an older answer in the cache
        raise call.error("reply", f"the answer holds {missing}")
    return result


ADVISOR_URL = "https://spot-bid-advisor.s3.amazonaws.com/spot-advisor-data.json"
URL_VARIABLE = "DEEPVM_ADVISOR_URL"

_ADVICE = "try again later; without it, types are not marked by how often they are interrupted"


class AdvisorProvider(Provider):
    """How often spot VMs of each type are interrupted, in AWS's five bands. Needs no account."""

    # The file's savings are not read: prices derived from them are off by 15 % in the median and by
    # a factor of two in one of ten.

    def __init__(self) -> None:
        super().__init__(kinds.ADVISOR, "AWS Spot Advisor", self._read_bands)
        url = os.environ.get(URL_VARIABLE) or ADVISOR_URL
        # The real file has about 10 MiB.
        self.file = PublicFile(url, f"Spot Advisor at {shown(url)}", URL_VARIABLE, _ADVICE)
        self._lock = threading.Lock()
        # The file holds all regions: it is downloaded, or fails, once for each time ``now``
        self._regions = lru_cache(maxsize=1)(self._download)

    def _read_bands(self, region: str, now: datetime) -> FetchResult:
        with self._lock:
            regions = self._regions(now)
        if isinstance(regions, CloudError):
            raise regions
        types = regions.get(region)
        if isinstance(types, dict):
            types = types.get("Linux")
        if not isinstance(types, dict):
            raise self.file.unreadable(f"the file has no table for Linux in {region}")
        # type() and not isinstance(), which would accept True as band 1.
        bands = {
            name: row["r"]
            for name, row in sorted(types.items())
            if isinstance(row, dict)
            and type(row.get("r")) is int
            and 0 <= row["r"] < len(INTERRUPTION_BANDS)
        }
        if not bands:
            raise self.file.unreadable(f"none of {len(types)} types in {region} has a band")
        lost = len(types) - len(bands)
        return FetchResult(bands, {"unknown band": lost} if lost else {})

    def _download(self, _: datetime) -> JsonObject | CloudError:
        try:
            regions = json.loads(download(self.file).body)["spot_advisor"]
        except CloudError as error:
            return error
        except (ValueError, RecursionError, LookupError, TypeError):
            regions = None
        if not isinstance(regions, dict) or not regions:
            return self.file.unreadable("the file has no table spot_advisor")
        return regions
