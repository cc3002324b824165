"""What deepvm asks of a cloud. A cloud is a folder of ``catalog/clouds`` and a line of its registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import ClassVar, NamedTuple

from deepvm.catalog.signals.cache import Cache, default_folder
from deepvm.catalog.signals.signal import Provider, Signal
from deepvm.catalog.signals.snapshot import snapshot, snapshot_regions
from deepvm.core.cluster.instances import Market
from deepvm.io.user_dirs import data_folder


class Region(NamedTuple):
    """A region and where its name was found.

    Attributes:
        name: such as ``us-east-1``. where: in words, for the user.
    """

    name: str
    where: str


@dataclass(frozen=True)
class QuotaFamily:
    """The vCPU quotas of one family of types.

    Attributes:
        name: as in ``InstanceType.quota_family``.
        on_demand_code, spot_code: the cloud's quota codes, empty where there is none.
        on_demand_name, spot_name: the cloud's names of the quotas.
    """

    name: str
    on_demand_code: str
    spot_code: str
    on_demand_name: str
    spot_name: str

    def code(self, market: Market) -> str:
        """The code of the quota in a market, empty where there is none."""
        return self.spot_code if market is Market.SPOT else self.on_demand_code

    def title(self, market: Market) -> str:
        """The cloud's name of the quota in a market."""
        return self.spot_name if market is Market.SPOT else self.on_demand_name


@dataclass(frozen=True)
class Check:
    """One result of ``deepvm doctor``.

    Attributes:
        name: what was checked, such as ``permission ec2:DescribeInstances``.
        ok: True; False: something that deepvm needs is missing; None: a warning, or it could not be checked.
        detail: what was found.
        advice: what to do, empty when nothing.
    """

    name: str
    ok: bool | None
    detail: str
    advice: str = ""


class Cloud(ABC):
    """One cloud. Nothing is loaded, read or sent before a method that needs it is called.

    Attributes:
        name: of its catalogs and of its folder in ``data/``: ``aws`` gives ``aws-us-east-1``.
        title: in messages.
        quota_families: its vCPU quotas by family; empty where nothing limits.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    quota_families: Mapping[str, QuotaFamily] = {}

    @abstractmethod
    def quota_family(self, type_name: str) -> str:
        """The family whose quota a type's vCPUs count against."""

    @abstractmethod
    def check_region(self, name: str, option: str = "region") -> str:
        """Return the name if it has the form of a region's.

        Raises:
            RequestError: it has not; ``option`` says where it was written.
        """

    @abstractmethod
    def own_region(self, named: str, profile: str, environ: Mapping[str, str]) -> Region:
        """The region to use: the named one, else the user's own, else the cloud's default.

        Raises:
            RequestError: what was found cannot be the name of a region.
        """

    @abstractmethod
    def known_regions(self) -> Collection[str]:
        """The regions that exist, without asking the cloud; may be slow to load."""

    @abstractmethod
    def account_regions(self, profile: str) -> tuple[str, ...]:
        """The regions that the account may use, sorted.

        Raises:
            CloudError: no answer.
        """

    @abstractmethod
    def credentials_may_exist(self, profile: str, environ: Mapping[str, str]) -> bool:
        """Whether asking is worth a try; opens no socket."""

    @abstractmethod
    def account_tag(self, profile: str, environ: Mapping[str, str]) -> str:
        """A file name for what only one account may see, free of secrets."""

    @abstractmethod
    def providers(self, kinds: Sequence[str], profile: str) -> Mapping[str, Provider]:
        """Who fetches which kind of signal; the public ones too."""

    def public_providers(self) -> Mapping[str, Provider]:
        """Providers that need no credentials."""
        return {}

    @abstractmethod
    def placement_provider(self, profile: str, types: Sequence[str], count: int) -> Provider:
        """Who scores how likely each zone is to give ``count`` spot VMs of any of some types."""

    def secrets_of(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """The values in the environment that must never be shown."""
        return ()

    def policy(self) -> str:
        """The permissions that deepvm needs, in the cloud's own form; empty where there is none."""
        return ""

    def check(self, profile: str, region: str, now: datetime, total_s: float) -> tuple[Check, ...]:
        """What ``deepvm doctor`` reports; failures are results, and no answer is awaited for more than ``total_s``."""
        return ()

    def cache(self, profile: str, environ: Mapping[str, str]) -> Cache:
        """Where this cloud's signals are kept."""
        return Cache(default_folder(environ, self.name), self.account_tag(profile, environ))

    @property
    def data(self) -> Path:
        """The files that come with deepvm for this cloud."""
        return data_folder() / self.name

    def snapshot_regions(self) -> tuple[str, ...]:
        """The regions of which a snapshot comes with deepvm, sorted."""
        return snapshot_regions(self.data)

    def snapshot(self, region: str) -> Mapping[str, Signal]:
        """The embedded signals of a region by kind, empty where there are none."""
        return snapshot(region, self.data)
