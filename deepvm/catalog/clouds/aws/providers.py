"""Providers of AWS's signals, one per kind."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from deepvm.catalog.clouds.aws.client import Aws
from deepvm.catalog.clouds.aws.errors import Question, unusable
from deepvm.catalog.clouds.aws.price_responses import (
    LINUX,
    lack_zone_ids,
    read_history,
    read_on_demand,
    read_placement,
    read_spot,
)
from deepvm.catalog.clouds.aws.quota_codes import FAMILIES
from deepvm.catalog.clouds.aws.responses import (
    Reading,
    count_in_use,
    read_offerings,
    read_running,
    read_specs,
    read_vcpus,
    read_zones,
    spot_gpu_types,
)
from deepvm.catalog.signals import signal as kinds
from deepvm.catalog.signals.cloud import QuotaFamily
from deepvm.catalog.signals.signal import MOST_HISTORY_DAYS, Provider, Signal
from deepvm.core.cluster.instances import Market
from deepvm.errors import RequestError

PRICING_REGION = "us-east-1"
"""The price list of all regions is served in few of them."""

_TYPES_IN_A_CHUNK = 8
_TYPES_IN_A_CALL = 100
_NO_QUOTA = "NoSuchResourceException"
_LINUX_ON_DEMAND = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "capacitystatus": "Used",
    "preInstalledSw": "NA",
    "marketoption": "OnDemand",
}


class AwsProvider(Provider):
    """A provider that asks one account."""

    def __init__(self, aws: Aws) -> None:
        """Remember whom to ask."""
        self._aws = aws

    def _signal(self, region: str, now: datetime, source: str, reading: Reading) -> Signal:
        return Signal(self.kind, region, now, source, reading.data, reading.refused)


class SpecsProvider(AwsProvider):
    """What every type is: vCPUs, memory, network, GPUs."""

    kind = kinds.SPECS

    def fetch(self, region: str, now: datetime) -> Signal:
        """See :meth:`Provider.fetch`."""
        question = Question("ec2", "DescribeInstanceTypes", region)
        reading = read_specs(self._aws.pages(question, "InstanceTypes", MaxResults=100))
        _refuse_empty(reading, question, "no instance type")
        return self._signal(region, now, "AWS EC2 instance types", reading)


class OfferingsProvider(AwsProvider):
    """Which zones offer which types, by zone ids, which are the same for every account."""

    kind = kinds.OFFERINGS

    def fetch(self, region: str, now: datetime) -> Signal:
        """See :meth:`Provider.fetch`."""
        question = Question("ec2", "DescribeInstanceTypeOfferings", region)
        by_id = "availability-zone-id"
        reading = read_offerings(
            self._aws.pages(question, "InstanceTypeOfferings", LocationType=by_id, MaxResults=1000)
        )
        _refuse_empty(reading, question, "no type that any zone offers")
        return self._signal(region, now, "AWS EC2 instance type offerings", reading)


class ZonesProvider(AwsProvider):
    """The names that this account has for the zones."""

    kind = kinds.ZONES

    def fetch(self, region: str, now: datetime) -> Signal:
        """See :meth:`Provider.fetch`."""
        return self._signal(region, now, "AWS EC2 availability zones", _zones(self._aws, region))


class OnDemandProvider(AwsProvider):
    """On-demand prices of Linux VMs, from AWS's price list."""

    kind = kinds.ON_DEMAND

    def fetch(self, region: str, now: datetime) -> Signal:
        """See :meth:`Provider.fetch`."""
        fields = {**_LINUX_ON_DEMAND, "regionCode": region}
        filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in fields.items()]
        question = Question("pricing", "GetProducts", PRICING_REGION)
        rows = self._aws.pages(
            question, "PriceList", ServiceCode="AmazonEC2", Filters=filters, FormatVersion="aws_v1", MaxResults=100
        )
        reading = read_on_demand(rows)
        _refuse_empty(reading, question, f"no price for {region}")
        return self._signal(region, now, "AWS price list", reading)


class SpotProvider(AwsProvider):
    """The current spot price of every type in every zone where it has one."""

    kind = kinds.SPOT

    def fetch(self, region: str, now: datetime) -> Signal:
        """See :meth:`Provider.fetch`."""
        question = Question("ec2", "DescribeSpotPriceHistory", region)
        rows = self._aws.pages(
            question, "SpotPriceHistory", StartTime=now, ProductDescriptions=[LINUX], MaxResults=1000
        )
        reading = read_spot(rows, _zone_ids(self._aws, region, rows))
        _refuse_empty(reading, question, "no spot price")
        return self._signal(region, now, "AWS EC2 spot prices", reading)


class HistoryProvider(AwsProvider):
    """How spot prices changed in the last days.

    The kind names the days alone, so who names types must not keep the answer where others look for all of them.
    """

    def __init__(self, aws: Aws, days: int = 30, types: Sequence[str] = ()) -> None:
        """Remember what to ask for.

        Args:
            aws: whom to ask.
            days: how far back, 1 to 90.
            types: instance types; none: all that have whole NVIDIA GPUs and a spot market.

        Raises:
            RequestError: AWS keeps no prices for as long.
        """
        super().__init__(aws)
        if isinstance(days, bool) or days not in range(1, MOST_HISTORY_DAYS + 1):
            raise RequestError("days", days, f"whole days from 1 to {MOST_HISTORY_DAYS}, for which AWS keeps prices")
        self._days, self._types = int(days), tuple(sorted(set(types)))
        self.kind = f"{kinds.HISTORY}:{int(days)}"

    def fetch(self, region: str, now: datetime) -> Signal:
        """See :meth:`Provider.fetch`."""
        types = self._types or spot_gpu_types(SpecsProvider(self._aws).fetch(region, now).data)
        chunks = [types[i : i + _TYPES_IN_A_CHUNK] for i in range(0, len(types), _TYPES_IN_A_CHUNK)]

        def ask(chunk: Sequence[str]) -> list[Any]:
            return self._aws.pages(
                Question("ec2", "DescribeSpotPriceHistory", region),
                "SpotPriceHistory",
                StartTime=now - timedelta(days=self._days),
                EndTime=now,
                InstanceTypes=list(chunk),
                ProductDescriptions=[LINUX],
                MaxResults=1000,
            )

        rows = [row for found in self._aws.each(ask, chunks) for row in found]
        reading = read_history(rows, _zone_ids(self._aws, region, rows))
        return self._signal(region, now, f"AWS EC2 spot prices of {self._days} days", reading)


class QuotasProvider(AwsProvider):
    """How many vCPUs the account may run in each family and market, and how many it runs."""

    kind = kinds.QUOTAS

    def fetch(self, region: str, now: datetime) -> Signal:
        """See :meth:`Provider.fetch`."""
        wanted = [(f, m) for f in FAMILIES.values() for m in (Market.SPOT, Market.ON_DEMAND) if f.code(m)]
        limits = self._aws.each(lambda w: self._limit(region, w[0].code(w[1])), wanted)
        if not any(limit is not None for limit in limits):
            question = Question("service-quotas", "GetServiceQuota", region)
            raise unusable(question, "AWS knows none of EC2's quotas of vCPUs here")
        running = read_running(self._reservations(region))
        vcpus_of = self._vcpus(region, sorted({vm.type_name for vm in running if vm.vcpus is None}))

        def row(family: QuotaFamily, market: Market, limit: float) -> dict[str, Any]:
            in_use = count_in_use(running, vcpus_of, family.name, market)
            code = family.code(market)
            return {"family": family.name, "market": market.value, "code": code, "vcpus": int(limit), "in_use": in_use}

        rows = [row(f, m, limit) for (f, m), limit in zip(wanted, limits, strict=True) if limit is not None]
        return self._signal(region, now, "AWS Service Quotas", Reading(rows))

    def _limit(self, region: str, code: str) -> float | None:
        """The account's limit, else AWS's default; None where this region has no such quota."""
        for operation in ("GetServiceQuota", "GetAWSDefaultServiceQuota"):
            # A quota that was never raised may exist as a default alone.
            question = Question("service-quotas", operation, region)
            reply = self._aws.call_or_code(question, (_NO_QUOTA,), ServiceCode="ec2", QuotaCode=code)
            if isinstance(reply, str):
                continue
            quota = reply.get("Quota")
            value = quota.get("Value") if isinstance(quota, Mapping) else None
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                # The page of a proxy, or a value that AWS could not find out: the default may be far off.
                raise unusable(question, f"the answer holds no value of quota {code}")
            if value >= 0:
                return float(value)
        return None

    def _reservations(self, region: str) -> list[Any]:
        live = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
        question = Question("ec2", "DescribeInstances", region)
        return self._aws.pages(question, "Reservations", Filters=live, MaxResults=1000)

    def _vcpus(self, region: str, types: Sequence[str]) -> dict[str, int]:
        chunks = [types[i : i + _TYPES_IN_A_CALL] for i in range(0, len(types), _TYPES_IN_A_CALL)]
        question = Question("ec2", "DescribeInstanceTypes", region)
        found = self._aws.each(
            lambda chunk: self._aws.pages(question, "InstanceTypes", InstanceTypes=list(chunk)), chunks
        )
        return read_vcpus(row for rows in found for row in rows)


class PlacementProvider(AwsProvider):
    """How likely each zone is to give so many spot VMs of any of some types; asked last, because AWS limits it.

    With fewer than three types AWS always scores low.
    """

    def __init__(self, aws: Aws, types: Sequence[str], count: int) -> None:
        """Remember what to ask for.

        Args:
            aws: whom to ask.
            types: instance types that would do, at least one.
            count: how many VMs, at least 1.

        Raises:
            RequestError: no types or no VMs.
        """
        super().__init__(aws)
        if not types:
            raise RequestError("types", list(types), "at least one instance type; AWS scores fewer than three low")
        if isinstance(count, bool) or count != int(count) or count < 1:
            raise RequestError("count", count, "a whole number of VMs >= 1")
        self._types, self._count = tuple(sorted(set(types))), int(count)
        # Another question has another answer, so it must not be found under the same name.
        digest = hashlib.sha256(" ".join(self._types).encode()).hexdigest()[:8]
        self.kind = f"{kinds.PLACEMENT}:{self._count}-{digest}"

    def fetch(self, region: str, now: datetime) -> Signal:
        """See :meth:`Provider.fetch`."""
        rows = self._aws.pages(
            Question("ec2", "GetSpotPlacementScores", region),
            "SpotPlacementScores",
            InstanceTypes=list(self._types),
            TargetCapacity=self._count,
            SingleAvailabilityZone=True,
            RegionNames=[region],
            MaxResults=1000,
        )
        return self._signal(region, now, "AWS EC2 spot placement scores", read_placement(rows, region))


def aws_providers(aws: Aws) -> Mapping[str, Provider]:
    """The providers that need no parameters, by the kind of signal.

    Args:
        aws: whom to ask.
    """
    made = (SpecsProvider, OfferingsProvider, ZonesProvider, OnDemandProvider, SpotProvider, QuotasProvider)
    return {one.kind: one(aws) for one in made}


def _zones(aws: Aws, region: str) -> Reading:
    question = Question("ec2", "DescribeAvailabilityZones", region)
    reading = read_zones(aws.call(question).get("AvailabilityZones") or ())
    _refuse_empty(reading, question, "no zone")
    return reading


def _zone_ids(aws: Aws, region: str, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, str]:
    """Zone ids by name, asked for only where a row lacks the id."""
    if not lack_zone_ids(rows):
        return {}
    return {name: zone for zone, name in _zones(aws, region).data.items()}


def _refuse_empty(reading: Reading, question: Question, missing: str) -> None:
    """An empty answer would replace what an older one said, so it counts as none.

    Raises:
        CloudError: the answer is empty.
    """
    if not reading.data:
        reasons = "".join(f"; {count} rows refused: {reason}" for reason, count in sorted(reading.refused.items()))
        raise unusable(question, f"the answer holds {missing}{reasons}")
