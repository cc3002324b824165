"""The interface of a cloud.

A cloud with an API that deepvm calls is a folder of ``catalog/clouds``; others are an entry of a
table.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from deepvm.catalog.signals.signal import (
    ADVISOR,
    OFFERINGS,
    ON_DEMAND,
    QUOTAS,
    SPECS,
    SPOT,
    ZONES,
    Provider,
    Signal,
)
from deepvm.core.cluster.instances import InstanceType, Market
from deepvm.core.spelling import did_you_mean
from deepvm.core.units import parse_time
from deepvm.errors import CloudError, RequestError
from deepvm.io.user_dirs import data_folder, read_data

if TYPE_CHECKING:
    from deepvm.catalog.signals.cache import Cache


class Region(NamedTuple):
    """A region, and where its name was found, in words."""

    name: str
    where: str


class QuotaName(NamedTuple):
    """What a cloud calls a vCPU quota."""

    code: str
    title: str


@dataclass(frozen=True)
class Check:
    """One result of ``deepvm doctor``; ``ok`` is None for a warning or if it was not checked."""

    name: str
    ok: bool | None
    detail: str
    advice: str = ""

    @property
    def status(self) -> str:
        return {True: "ok", None: "warning", False: "failed"}[self.ok]


@dataclass(frozen=True)
class CloudRules:
    """How a cloud sells and preempts VMs, as far as plans depend on it.

    Attributes:
        grace_s: from the first warning until a spot VM is gone; 0 where no spot VMs are sold.
        has_cpu_vms: whether there are VMs without GPUs, to hold checkpoints.
        regions_alike: its catalogs list every type in every region, so that comparing regions is
            useless.
        sources: source and date of each of these, by attribute.
    """

    grace_s: float
    has_cpu_vms: bool
    sources: Mapping[str, str]
    regions_alike: bool = False


def _family(type_name: str) -> str:
    """The name without the size, which most clouds write last."""
    return re.sub("(?<=.)[-_][^-_]*$", "", type_name)


def _no_words(instance: InstanceType, count: int, market: Market) -> str:
    return ""


@dataclass(eq=False)
class Cloud:
    """One cloud. Nothing is loaded, read or sent until a method needs it.

    The methods here are for a cloud that deepvm knows from public catalogs only: they send the
    cloud no requests, and need no account.

    Attributes:
        name: of its catalogs and of its folder in ``data/``: ``aws`` gives ``aws-us-east-1``.
        title: in messages. rules: how it sells and preempts VMs.
        region_form: of a region's name.
        default_region: where most types are offered.
        has_api: whether deepvm has a client of the cloud's API; else there are only public
        catalogs. kinds: the signals of its catalogs; a history of prices is added on request.
        quota_names: its vCPU quotas by ``InstanceType.quota_family`` and market; empty where
            nothing limits.
        quota_family: the family whose quota a type's vCPUs count against, by its name.
        quota_words: in words, the quota that so many VMs of a type need, where ``quota_names`` has
            none; empty if unknown.
        region_variables: of the environment; the first that is set names the user's own region.
        burstable: types that run at full speed only for a while, by name.
        not_on_demand: types that cannot be rented on demand, though catalogs have such a price.
    """

    name: str
    title: str
    rules: CloudRules
    region_form: str
    default_region: str
    has_api: bool = False
    kinds: tuple[str, ...] = (SPECS, OFFERINGS, ZONES, ON_DEMAND, SPOT, ADVISOR, QUOTAS)
    quota_names: Mapping[tuple[str, Market], QuotaName] = field(default_factory=dict)
    quota_family: Callable[[str], str] = _family
    quota_words: Callable[[InstanceType, int, Market], str] = _no_words
    region_variables: tuple[str, ...] = ()
    burstable: str = "(?!)"  # none
    not_on_demand: str = "(?!)"

    @property
    def has_spot(self) -> bool:
        """Whether it sells spot VMs at prices that are known."""
        return SPOT in self.kinds

    def facts_of(self, type_name: str) -> Mapping[str, Any]:
        """Facts that follow from a type's name, as in the signal of specs: catalogs lack them."""
        facts = {}
        if re.fullmatch(self.burstable, type_name):
            facts["burstable"] = True
        if re.fullmatch(self.not_on_demand, type_name):
            facts["on_demand"] = False
        return facts

    def check_region(self, name: str, option: str = "region") -> str:
        """The name, if it has the form of a region's; only a catalog can tell whether there is one.

        Else a RequestError about ``option``, where it was written.
        """
        if re.fullmatch(self.region_form, name):
            return name
        allowed = f"a region of {self.title} in small letters, such as {self.default_region}"
        meant = did_you_mean(name.lower().replace("_", "-"), sorted(self.known_regions()))
        raise RequestError(option, name, f"{allowed}; {meant}" if meant else allowed)

    def may_be_zone(self, zone: str, region: str) -> bool:
        """Whether it has the form of a zone of the region, where no zones are known."""
        return OFFERINGS in self.kinds and zone.startswith(region) and zone != region

    def own_region(self, profile: str) -> Region:
        """The user's own region, else the cloud's default.

        A RequestError if it cannot be a region's name.
        """
        for variable in filter(os.environ.get, self.region_variables):
            where = f"environment variable {variable}"
            return Region(self.check_region(os.environ[variable], variable), where)
        named = " and no ".join(("--region", *self.region_variables))
        return Region(self.default_region, f"the default: no {named}")

    def known_regions(self) -> Collection[str]:
        """The regions that exist, without asking the cloud; may be slow to load."""
        regions: list[str] = read_data("clouds/regions.json")[self.name]
        return regions

    def account_regions(self, profile: str) -> tuple[str, ...]:
        """The regions that the account may use, sorted; a CloudError without an answer."""
        raise self._not_asked("the regions of an account")

    def credentials_may_exist(self, profile: str) -> bool:
        """Whether there may be credentials; opens no socket."""
        return False

    def account_tag(self, profile: str) -> str:
        """A file name for what only one account may see, free of secrets."""
        return "nobody"

    def providers(self, kinds: Sequence[str], profile: str) -> Mapping[str, Provider]:
        """Providers of these and the usual kinds of signals, public ones included, by kind."""
        return {}

    def public_providers(self) -> Mapping[str, Provider]:
        """Providers that need no credentials."""
        return {}

    def placement_provider(self, profile: str, types: Sequence[str], count: int) -> Provider:
        """Scores how likely each zone can give ``count`` spot VMs of any of some types."""
        raise self._not_asked("spot placement scores")

    def _not_asked(self, subject: str) -> CloudError:
        detail = (
            f"deepvm only reads public catalogs of {self.title}'s prices, and has no API client"
        )
        return CloudError(subject, "reply", detail, "leave the option out")

    def cache(self, profile: str) -> Cache:
        """Where this cloud's signals are kept."""
        from deepvm.catalog.signals.cache import Cache, default_folder

        return Cache(default_folder(self.name), self.account_tag(profile))

    @property
    def data(self) -> Path:
        """The folder with deepvm's data files for this cloud."""
        return data_folder() / self.name

    def snapshot_regions(self) -> tuple[str, ...]:
        """The regions of which a snapshot comes with deepvm, sorted."""
        return tuple(sorted(p.stem for p in (self.data / "regions").glob("*.json")))

    def snapshot(self, region: str) -> Mapping[str, Signal]:
        """The embedded signals of a region by kind, origin ``snapshot``.

        Empty where there are none.
        """
        if region not in self.snapshot_regions():
            return {}
        return _read_snapshot(self.data / "regions" / f"{region}.json")


@lru_cache(maxsize=1)
def _read_snapshot(file: Path) -> Mapping[str, Signal]:
    document = json.loads(file.read_text(encoding="utf-8"))
    signals = {}
    for row in document["signals"]:
        row["observed_at"] = parse_time(row["observed_at"])
        signals[row["kind"]] = Signal(**row, region=file.stem, origin="snapshot")
    return signals
