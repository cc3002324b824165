"""Documents of ``catalog``, ``doctor`` and ``config``."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

InstanceType = Annotated[str, "the provider's name of a VM type, such as g4dn.xlarge"]
Price = Annotated[float | None, "US dollars an hour, null if not sold"]
Figure = Annotated[
    str | float | bool | None, "a figure, in words if it is no single one, null when unknown"
]


class EmbeddedCatalog(TypedDict):
    """A catalog that comes with deepvm."""

    catalog: Annotated[str, "its name"]
    gpu_type_count: Annotated[int, "VM types with GPUs"]
    cpu_type_count: Annotated[int, "VM types without"]
    region: Annotated[str | None, "the provider's region, null when there is none"]
    prices_as_of: Annotated[
        str | None, "the day the prices were true, YYYY-MM-DD, null when there is none"
    ]
    description: Annotated[str, "what it is"]


class Catalogs(TypedDict):
    """The catalogs that come with deepvm."""

    schema_version: Literal["deepvm.catalogs/1"]
    catalogs: list[EmbeddedCatalog]


class DiffSide(TypedDict):
    """One of the catalogs that were compared."""

    catalog: Annotated[str, "its name"]
    region: Annotated[str, "the provider's region, empty when there is none"]
    prices_as_of: Annotated[
        str | None, "the day the prices were true, YYYY-MM-DD, null when there is none"
    ]
    kind: Annotated[str, "embedded, file, live, cache or mixed"]
    type_count: Annotated[int, "VM types"]


class PricedType(TypedDict):
    """A VM type that was added or removed."""

    instance_type: InstanceType
    on_demand_usd_per_hour: Annotated[Price, "on-demand price"]
    spot_usd_per_hour: Annotated[Price, "spot price"]


class PriceChange(TypedDict):
    """A price that changed."""

    instance_type: InstanceType
    market: Annotated[Literal["spot", "on-demand"], "how the VM is bought"]
    zone: Annotated[str | None, "id of the zone, null for the region"]
    old_usd_per_hour: Price
    new_usd_per_hour: Price
    change_usd_per_hour: Annotated[
        float | None, "new - old, US dollars an hour, null where one is missing"
    ]
    change_percent: Annotated[float | None, "the same in per cent of the old price"]


class FigureChange(TypedDict):
    """A figure that changed."""

    instance_type: Annotated[str | None, "the VM type, null for a figure of the catalog itself"]
    figure: Annotated[str, "its name in the catalog file"]
    old: Figure
    new: Figure


class CatalogDiff(TypedDict):
    """What changed between two catalogs."""

    schema_version: Literal["deepvm.diff/1"]
    old: DiffSide
    new: DiffSide
    changed: Annotated[bool, "whether anything did"]
    added: list[PricedType]
    removed: list[PricedType]
    prices: Annotated[list[PriceChange], "the largest change in per cent first"]
    figures: list[FigureChange]


class Cache(TypedDict):
    """Where answers of the cloud are kept."""

    folder: Annotated[str | None, "its path, null when there is no place for it"]
    account: Annotated[str, "whose prices these are, a fingerprint of the credentials"]


class CachedSignal(TypedDict):
    """One kind of figure of a region, and how fresh it is."""

    region: Annotated[str, "the provider's region"]
    signal: Annotated[str, "such as specs, spot or on-demand"]
    state: Annotated[str, "fresh, expired, damaged, absent, snapshot ..."]
    row_count: Annotated[int | None, "rows in it, null when it cannot be read"]
    refused: Annotated[dict[str, int], "implausible rows that were left out, by reason"]
    observed_at: Annotated[str | None, "when the figures were true, ISO 8601, UTC"]
    fetched_at: Annotated[str | None, "when they were fetched, ISO 8601, UTC"]
    expires_at: Annotated[str | None, "when they are fetched anew, ISO 8601, UTC"]
    age_s: Annotated[int | None, "age, seconds"]
    source: Annotated[str | None, "who published them"]
    path: Annotated[str | None, "its file, null for a snapshot"]
    problem: Annotated[str | None, "why it cannot be used, null if it can"]
    next_step: Annotated[str | None, "the command that renews it, null when there is nothing to do"]


class PublicFile(TypedDict):
    """What is kept of a public catalog's file of a cloud."""

    cloud: Annotated[str, "such as gcp"]
    source: Annotated[str, "who publishes it, as in --source"]
    state: Annotated[Literal["fresh", "expired", "absent"], "whether it is past its time"]
    regions: Annotated[list[str], "regions that it held"]
    observed_at: Annotated[
        str | None, "when it was written, ISO 8601, UTC; the earliest that can be unless dated"
    ]
    dated: Annotated[
        bool | None, "whether the file bears a date; else age_s is the most that its age can be"
    ]
    fetched_at: Annotated[str | None, "when it was fetched, ISO 8601, UTC"]
    expires_at: Annotated[str | None, "when it is fetched anew, ISO 8601, UTC"]
    age_s: Annotated[int | None, "age, seconds"]
    next_step: Annotated[str | None, "the command that renews it, null when there is nothing to do"]


class CatalogStatus(TypedDict):
    """The cache of the cloud's prices and types."""

    schema_version: Literal["deepvm.catalog-status/1"]
    now: Annotated[str, "when ages were computed, ISO 8601, UTC"]
    cache: Cache
    signals: list[CachedSignal]
    public_catalogs: Annotated[list[PublicFile], "files of public catalogs that are kept"]


class Check(TypedDict):
    """One thing that live prices need."""

    name: Annotated[str, "what was checked"]
    status: Literal["ok", "warning", "failed"]
    detail: Annotated[str, "what was found, in words"]
    advice: Annotated[str, "what to do, empty when there is nothing to do"]


class Doctor(TypedDict):
    """Whether live prices can be had."""

    schema_version: Literal["deepvm.doctor/1"]
    ok: Annotated[bool, "whether nothing failed"]
    regions: Annotated[list[str], "regions that were asked about"]
    checks: list[Check]


class Setting(TypedDict):
    """An option, its value, and who set it."""

    key: Annotated[str, "its name in settings files"]
    value: Annotated[str | bool | float | list[str] | None, "*** where it holds a secret"]
    kind: Annotated[str, "default, file or environment"]
    source: Annotated[str, "the file or the variable"]


class SettingsFile(TypedDict):
    """A file that settings are read from."""

    path: str
    found: Annotated[bool, "whether it is there"]


class Config(TypedDict):
    """What is set outside the command line."""

    schema_version: Literal["deepvm.config/1"]
    settings: list[Setting]
    files: list[SettingsFile]
