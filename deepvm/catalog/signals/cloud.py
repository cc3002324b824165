"""The interface of a cloud."""

import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from deepvm.catalog.signals.signal import OF_A_REGION, OFFERINGS, SPOT, Provider, Signal
from deepvm.core.cluster.instances import InstanceType, Market
from deepvm.core.json_types import JsonObject
from deepvm.core.spelling import did_you_mean
from deepvm.core.units import parse_time
from deepvm.errors import CloudError, RequestError
from deepvm.io.user_dirs import data_folder, read_data
from deepvm.records import dataclass, field

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
    """How a cloud sells and preempts VMs. ``grace_s``: from a warning to the end."""

    grace_s: float
    has_cpu_vms: bool
    sources: Mapping[str, str]
    regions_alike: bool = False


def _family(type_name: str) -> str:
    return re.sub("(?<=.)[-_][^-_]*$", "", type_name)


@dataclass(eq=False)
class Cloud:
    """One cloud; these methods are for one that only public catalogs know, and ask it nothing."""

    # ``region_variables``: the first that is set names the user's own region. ``quota_words``: the
    # quota that VMs need, where ``quota_names`` has none. ``burstable`` and ``not_on_demand``:
    # patterns of types that run at full speed for a while only, and that are not sold on demand.

    name: str
    title: str
    rules: CloudRules
    region_form: str
    default_region: str
    has_api: bool = False
    kinds: tuple[str, ...] = OF_A_REGION
    quota_names: Mapping[tuple[str, Market], QuotaName] = field(default_factory=dict)
    quota_family: Callable[[str], str] = _family
    quota_words: Callable[[InstanceType, int, Market], str] = lambda vm, count, market: ""
    region_variables: tuple[str, ...] = ()
    burstable: str = "(?!)"  # none
    not_on_demand: str = "(?!)"

    @property
    def has_spot(self) -> bool:
        return SPOT in self.kinds

    def facts_of(self, type_name: str) -> JsonObject:
        facts = {}
        if re.fullmatch(self.burstable, type_name):
            facts["burstable"] = True
        if re.fullmatch(self.not_on_demand, type_name):
            facts["on_demand"] = False
        return facts

    def check_region(self, name: str, option: str = "region") -> str:
        """The name, if it has the form of a region's; only a catalog tells whether there is one."""
        if re.fullmatch(self.region_form, name):
            return name
        allowed = f"a region of {self.title} in small letters, such as {self.default_region}"
        meant = did_you_mean(name.lower().replace("_", "-"), sorted(self.known_regions()))
        raise RequestError(option, name, f"{allowed}; {meant}" if meant else allowed)

    def may_be_zone(self, zone: str, region: str) -> bool:
        return OFFERINGS in self.kinds and zone.startswith(region) and zone != region

    def own_region(self, profile: str) -> Region:
        """The user's own region, else the cloud's default."""
        for variable in filter(os.environ.get, self.region_variables):
            return Region(
                self.check_region(os.environ[variable], variable),
                f"environment variable {variable}",
            )
        named = " and no ".join(("--region", *self.region_variables))
        return Region(self.default_region, f"the default: no {named}")

    def known_regions(self) -> Collection[str]:
        regions: list[str] = read_data("clouds/regions.json")[self.name]
        return regions

    def account_regions(self, profile: str) -> tuple[str, ...]:
        raise self._not_asked("the regions of an account")

    def credentials_may_exist(self, profile: str) -> bool:
        return False

    def account_tag(self, profile: str) -> str:
        """A file name for what only one account may see, free of secrets."""
        return "no-account"

    def providers(self, kinds: Sequence[str], profile: str) -> Mapping[str, Provider]:
        return {}

    def public_providers(self) -> Mapping[str, Provider]:
        return {}

    def placement_provider(self, profile: str, types: Sequence[str], count: int) -> Provider:
        raise self._not_asked("spot placement scores")

    def _not_asked(self, subject: str) -> CloudError:
        return CloudError(
            subject,
            "reply",
            f"deepvm only reads public catalogs of {self.title}'s prices, and has no API client",
            "leave the option out",
        )

    def cache(self, profile: str) -> "Cache":
        from deepvm.catalog.signals.cache import Cache, default_folder

        return Cache(default_folder(self.name), self.account_tag(profile))

    @property
    def data(self) -> Path:
        return data_folder() / self.name

    def snapshot_regions(self) -> tuple[str, ...]:
        return tuple(sorted(p.stem for p in (self.data / "regions").glob("*.json")))

    def snapshot(self, region: str) -> Mapping[str, Signal]:
        """The embedded signals of a region by kind, origin ``snapshot``."""
        if region not in self.snapshot_regions():
            return {}
        return _read_snapshot(self.data / "regions" / f"{region}.json")


@lru_cache(maxsize=16)
def _read_snapshot(file: Path) -> Mapping[str, Signal]:
    document = json.loads(file.read_text(encoding="utf-8"))
    signals = {}
    for row in document["signals"]:
        row["observed_at"] = parse_time(row["observed_at"])
        signals[row["kind"]] = Signal(**row, region=file.stem, origin="snapshot")
    return signals
