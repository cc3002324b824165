"""Documents of ``catalog``, ``doctor`` and ``config``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from deepvm.documents.document import Document, at

InstanceType = Annotated[str, "the provider's name of a VM type, such as g4dn.xlarge"]
Price = Annotated[float | None, "US dollars an hour, null if not sold"]
Figure = Annotated[
    str | float | bool | None, "a figure, in words if it is no single one, null when unknown"
]


def rounded_percent(change: Any) -> float | None:
    """The change of a price in per cent, to four digits."""
    return None if change.percent is None else float(round(change.percent, 4))


class EmbeddedCatalog(Document):
    """A catalog that comes with deepvm."""

    catalog: str = at("name")
    """its name"""
    gpu_type_count: int = at(lambda types: sum(i.gpu is not None for i in types))
    """VM types with GPUs"""
    cpu_type_count: int = at(lambda types: sum(i.gpu is None for i in types))
    """VM types without"""
    region: str | None
    """the provider's region, null when there is none"""
    prices_as_of: str | None = at("provenance.prices_as_of")
    """the day the prices were true, YYYY-MM-DD, null when there is none"""
    description: str
    """what it is"""


class Catalogs(Document, schema_version="deepvm.catalogs/1"):
    """The catalogs that come with deepvm."""

    catalogs: list[EmbeddedCatalog]


class DiffSide(Document):
    """One of the catalogs that were compared."""

    catalog: str = at("name")
    """its name"""
    region: str
    """the provider's region, empty when there is none"""
    prices_as_of: str | None = at("provenance.prices_as_of")
    """the day the prices were true, YYYY-MM-DD, null when there is none"""
    kind: str = at("provenance.kind")
    """embedded, file, live, cache or mixed"""
    type_count: int = at(len)
    """VM types"""


class PricedType(Document):
    """A VM type that was added or removed."""

    instance_type: InstanceType = at("name")
    on_demand_usd_per_hour: Price
    """on-demand price"""
    spot_usd_per_hour: Price
    """spot price"""


class PriceChange(Document):
    """A price that changed."""

    instance_type: InstanceType
    market: Literal["spot", "on-demand"]
    """how the VM is bought"""
    zone: str | None
    """id of the zone, null for the region"""
    old_usd_per_hour: Price = at("old")
    new_usd_per_hour: Price = at("new")
    change_usd_per_hour: float | None = at("difference")
    """new - old, US dollars an hour, null where one is missing"""
    change_percent: float | None = at(rounded_percent)
    """the same in per cent of the old price"""


class FigureChange(Document):
    """A figure that changed."""

    instance_type: str | None
    """the VM type, null for a figure of the catalog itself"""
    figure: str
    """its name in the catalog file"""
    old: Figure = at(exact=True)
    new: Figure = at(exact=True)


class CatalogDiff(Document, schema_version="deepvm.diff/1"):
    """What changed between two catalogs."""

    old: DiffSide
    new: DiffSide
    changed: bool = at(lambda diff: not diff.empty)
    """whether anything did"""
    added: list[PricedType]
    removed: list[PricedType]
    prices: list[PriceChange]
    """the largest change in per cent first"""
    figures: list[FigureChange]


class Cache(Document):
    """Where answers of the cloud are kept."""

    folder: str | None
    """its path, null when there is no place for it"""
    account: str
    """whose prices these are, a fingerprint of the credentials"""


class CachedSignal(Document):
    """One kind of figure of a region, and how fresh it is."""

    region: str
    """the provider's region"""
    signal: str
    """such as specs, spot or on-demand"""
    state: str
    """fresh, expired, damaged, absent, snapshot ..."""
    row_count: int | None
    """rows in it, null when it cannot be read"""
    refused: dict[str, int]
    """implausible rows that were left out, by reason"""
    observed_at: str | None
    """when the figures were true, ISO 8601, UTC"""
    fetched_at: str | None
    """when they were fetched, ISO 8601, UTC"""
    expires_at: str | None
    """when they are fetched again, ISO 8601, UTC"""
    age_s: int | None
    """age, seconds"""
    source: str | None
    """who published them"""
    path: str | None
    """its file, null for a snapshot"""
    problem: str | None
    """why it cannot be used, null if it can"""
    next_step: str | None
    """the command that renews it, null when there is nothing to do"""


class PublicFile(Document):
    """What is kept of a public catalog's file of a cloud."""

    cloud: str
    """such as gcp"""
    source: str
    """who publishes it, as in --source"""
    state: Literal["fresh", "expired", "absent"]
    """whether it is past its time"""
    regions: list[str]
    """regions that it held"""
    observed_at: str | None
    """when it was written, ISO 8601, UTC; the earliest that can be unless dated"""
    dated: bool | None
    """whether the file bears a date; else age_s is the most that its age can be"""
    fetched_at: str | None
    """when it was fetched, ISO 8601, UTC"""
    expires_at: str | None
    """when it is fetched again, ISO 8601, UTC"""
    age_s: int | None
    """age, seconds"""
    next_step: str | None
    """the command that renews it, null when there is nothing to do"""


class CatalogStatus(Document, schema_version="deepvm.catalog-status/1"):
    """The cache of the cloud's prices and types."""

    now: str
    """when ages were computed, ISO 8601, UTC"""
    cache: Cache
    signals: list[CachedSignal]
    public_catalogs: list[PublicFile]
    """files of public catalogs that are kept"""


class Check(Document):
    """One thing that live prices need."""

    name: str
    """what was checked"""
    status: Literal["ok", "warning", "failed"]
    detail: str
    """what was found, in words"""
    advice: str
    """what to do, empty when there is nothing to do"""


class Doctor(Document, schema_version="deepvm.doctor/1"):
    """Whether live prices can be had."""

    ok: bool
    """whether nothing failed"""
    regions: list[str]
    """regions that were asked about"""
    checks: list[Check]


class Setting(Document):
    """An option, its value, and who set it."""

    key: str
    """its name in settings files"""
    value: str | bool | float | list[str] | None
    """*** where it holds a secret"""
    kind: str
    """default, file or environment"""
    source: str
    """the file or the variable"""


class SettingsFile(Document):
    """A file that settings are read from."""

    path: str
    found: bool
    """whether it is there"""


class Config(Document, schema_version="deepvm.config/1"):
    """What is set outside the command line."""

    settings: list[Setting]
    files: list[SettingsFile]
