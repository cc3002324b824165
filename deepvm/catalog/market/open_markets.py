"""Today's market of a region: live, from the cache, or the snapshot."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING

from deepvm.catalog.clouds import DEFAULT_CLOUD, cloud_of
from deepvm.catalog.market.build_catalog import LISTED_ALIKE, MarketRequest, RegionMarket
from deepvm.catalog.public.public_market import (
    ALONE_S,
    AUTO,
    NONE,
    QUICK_S,
    SLOW_S,
    public_catalogs,
    with_facts,
)
from deepvm.catalog.public.public_market import KINDS as PUBLIC_KINDS
from deepvm.catalog.signals.cloud import Cloud
from deepvm.catalog.signals.fetching import (
    CloudApi,
    PriceSource,
    ResolvedSignals,
    SignalRequest,
    Stored,
    resolve,
)
from deepvm.catalog.signals.signal import ON_DEMAND, PRICES, SPECS, SPOT, Signal
from deepvm.core.cluster.instances import Catalog, InstanceType, Market
from deepvm.core.progress import Say
from deepvm.core.spelling import listed
from deepvm.errors import CloudError, MissingDataError, RequestError
from deepvm.records import dataclass, replace

if TYPE_CHECKING:
    from deepvm.catalog.market.stored_prices import StoredPrices

_SCORED_TYPES = 5
_MAX_NAMED = 6


def _no_progress(_: str) -> None: ...


@dataclass(frozen=True)
class Placement:
    """How likely the cloud can give ``count`` spot VMs of any of some types at once."""

    region: str
    instance_types: tuple[str, ...]
    count: int
    scores: Mapping[str, int]
    observed_at: datetime


def placement(
    catalog: Catalog,
    wanted: InstanceType,
    count: int,
    request: MarketRequest,
    *,
    now: datetime | None = None,
    progress: Say = _no_progress,
) -> Placement:
    """How likely ``count`` spot VMs of a type, or of similar ones, are available in each zone."""
    # Others with the same GPUs are named too, because AWS scores fewer than three types low.
    market = _Market(cloud_of(catalog.name), request, now or datetime.now(timezone.utc), progress)
    subject = f"spot placement scores in {catalog.region}"
    if market.not_asked:
        advice = "leave the option out"
        if market.cloud.has_api:
            advice = f"{advice}; 'deepvm doctor' says what it needs"
        raise CloudError(subject, "credentials", market.not_asked, advice)
    others = [i for i in catalog if i.gpu == wanted.gpu and i != wanted]
    sold = [i for i in others if i.spot_usd_per_hour is not None]
    sold.sort(key=lambda i: (i.micro_usd_per_hour(Market.SPOT), i.name))
    names = (wanted.name, *(i.name for i in sold[: _SCORED_TYPES - 1]))
    provider = market.cloud.placement_provider(request.profile, names, count)
    cache = market.cache
    signal = cache.read(catalog.region, provider.kind, market.now)
    if signal is None or signal.origin != "cache":
        progress(f"asking {market.cloud.title} for {subject}")
        signal = provider.fetch(catalog.region, market.now)
        cache.write(signal, market.now)
    scores = {row["zone"]: row["score"] for row in signal.data}
    return Placement(catalog.region, names, count, scores, signal.observed_at)


def open_markets(
    regions: Sequence[str],
    request: MarketRequest,
    *,
    cloud: Cloud = DEFAULT_CLOUD,
    now: datetime | None = None,
    progress: Say = _no_progress,
    others: bool = False,
) -> tuple[Catalog, ...]:
    """The catalogs of regions in order; none: the user's own; ``all``: every available one."""
    market = _Market(cloud, request, now or datetime.now(timezone.utc), progress, others)
    if not regions:
        return market.own_catalog()
    names: list[str] = []
    note = ""
    for name in regions:
        if name == "all":
            every, note = market.all_regions()
            names += every
        else:
            names.append(cloud.check_region(name))
    return market.catalogs(list(dict.fromkeys(names)), note)


@dataclass
class _Market:
    cloud: Cloud
    request: MarketRequest
    now: datetime
    progress: Say
    others: bool = False

    def __post_init__(self) -> None:
        self.cache = self.cloud.cache(self.request.profile)
        source = self.request.source
        if self.request.prices == "snapshot":
            source = NONE
        self.named = source not in (AUTO, NONE)
        self.only_public = self.named or not self.cloud.has_api
        self.not_asked = self._reason_not_asked()
        self.public = public_catalogs(self.cloud, source, self.now, self.progress)
        if self.public and not self.request.offline:
            wait_s = ALONE_S
            if self.named or self.request.prices == "live":
                wait_s = SLOW_S
            elif (
                self.others
                or (self.cloud.has_api and self.cloud.snapshot_regions())
                or any(catalog.regions() for catalog in self.public)
            ):
                wait_s = QUICK_S
            self.public[0].wait_s = wait_s  # only the first one is waited for

    def _reason_not_asked(self) -> str:
        request = self.request
        if request.offline:
            return "offline"
        if request.prices == "snapshot":
            return "only the snapshot is used"
        if not self.cloud.has_api:
            return f"{self.cloud.title} is not asked itself"
        if self.only_public:
            return f"--source {request.source}"
        live = request.prices == "live"
        if live or self.cloud.credentials_may_exist(request.profile):
            return ""
        return f"no {self.cloud.title} credentials were found"

    def own_catalog(self) -> tuple[Catalog, ...]:
        """The user's region; one with known prices if the request does not depend on the region."""
        own = self.cloud.own_region(self.request.profile)
        try:
            return self.catalogs([own.name], usual=f"region {own.name} ({own.where})")
        except MissingDataError:
            known = self._embedded_regions() or self._known_regions()
            particular = self.request.zone or self.request.history or self.request.prices == "live"
            if particular or not known or own.name in known:
                raise
            return self.catalogs(
                known[:1],
                f"{self.cloud.title}: nothing is known of {own.name} ({own.where}); these are"
                f" prices of {known[0]}",
            )

    def all_regions(self) -> tuple[tuple[str, ...], str]:
        """Every region of the account, or all with known prices and why only these."""
        cloud = self.cloud
        reason = self.not_asked
        if not reason:
            try:
                return cloud.account_regions(self.request.profile), ""
            except CloudError as error:
                if self.request.prices == "live":
                    raise
                reason = str(error)
        names = self._known_regions()
        if not names:
            reasons = "; ".join(str(c.error) for c in self.public if c.error) or reason
            raise MissingDataError(f"no prices of any region of {cloud.title} are known: {reasons}")
        if cloud.rules.regions_alike:
            only = cloud.own_region(self.request.profile).name
            if only not in names:
                only = names[0]
            return (
                (only,),
                f"all regions of {cloud.title}: only {only}, as of its {len(names)} regions"
                f" catalogs list {LISTED_ALIKE}",
            )
        if self.only_public:
            return names, ""
        only = listed(names, _MAX_NAMED)
        return names, f"all regions: only {only}, whose prices are known: {reason}"

    def _known_regions(self) -> tuple[str, ...]:
        if self.request.prices != "snapshot":
            entries = self.cache.entries(self.now)
        else:
            entries = ()
        priced = {e.region for e in entries if e.kind in (ON_DEMAND, SPOT)}
        known = {e.region for e in entries if e.kind == SPECS and e.region in priced}
        for catalog in self.public:
            catalog.latest(())
            known.update(catalog.regions())
        return tuple(sorted(known.union(self._embedded_regions())))

    def _embedded_regions(self) -> tuple[str, ...]:
        """Not where prices must come from one public catalog."""
        if self.named:
            return ()
        return self.cloud.snapshot_regions()

    def catalogs(
        self, regions: Sequence[str], note: str = "", usual: str = ""
    ) -> tuple[Catalog, ...]:
        """The catalogs of regions; the first one gets a note, and a routine one (``usual``)."""
        resolved = self._resolve(regions)
        past: dict[str, StoredPrices] = {}
        if self.request.price_history and self.request.history:
            # Few runs start git
            from deepvm.catalog.market.stored_prices import read_stored_prices

            folder = self.request.price_history
            days = int(self.request.days)
            cloud = self.cloud.name
            past = read_stored_prices(folder, cloud, regions, days, self.now, self.progress)
        built = []
        failed = []
        for region in regions:
            try:
                built.append(self._catalog(region, resolved, past.get(region)))
            except (RequestError, MissingDataError, CloudError) as error:
                failed.append(error)
        if not built:
            raise failed[0]
        # All notes go to the first catalog: they may concern several regions, or the cache.
        about = built[0].provenance
        own = (*resolved.notes, *map(str, failed), *self.cache.take_notes(), *about.notes)
        usuals = [usual]
        if resolved.not_asked:
            usuals += resolved.notes
        about = replace(
            about,
            notes=tuple(filter(None, (note, usual, *own))),
            usual=tuple(filter(None, usuals)),
            not_asked=resolved.not_asked,
        )
        return (replace(built[0], provenance=about), *built[1:])

    def _resolve(self, regions: Sequence[str]) -> ResolvedSignals:
        kinds = self.cloud.kinds
        history = self.request.history
        if history and not self.request.price_history:
            kinds = (*kinds, history)
        requests = [SignalRequest(r, k) for r in regions for k in kinds]
        snapshot = Stored(self._embedded)
        if self.request.prices == "snapshot":
            return resolve(requests, [snapshot], self.now)
        live = self.request.prices == "live"
        # Prices that must come from one source are not read from the stored ones of another.
        without: tuple[str, ...] = ()
        if self.named:
            without = PUBLIC_KINDS
        elif live:
            without = PRICES
        sources: list[PriceSource] = [Stored(partial(self.cache.read, now=self.now), without)]
        if not self.not_asked:
            providers = partial(self.cloud.providers, kinds, self.request.profile)
            sources.append(CloudApi(self.cache, providers, self.now, self.progress, patient=live))
        if self.only_public or not live:
            sources += self.public
        sources.append(replace(snapshot, without=without))
        return resolve(requests, sources, self.now, self.not_asked)

    def _embedded(self, region: str, kind: str) -> Signal | None:
        signal = self.cloud.snapshot(region).get(kind)
        if signal is None or kind != SPECS or self.cloud.has_api:
            return signal  # AWS says itself what its types can do
        return with_facts(self.cloud, signal)

    def _catalog(
        self, region: str, resolved: ResolvedSignals, past: "StoredPrices | None"
    ) -> Catalog:
        if self.request.prices == "live":
            resolved.check_live(region)
        signals = resolved.of_region(region)
        notes: Sequence[str] = ()
        if past is not None:
            signals[self.request.history] = past.history
            notes = past.notes
        errors = resolved.errors_of(region)
        market = RegionMarket(region, signals, self.request, self.now, self.cloud, notes, errors)
        catalog = market.catalog()
        if self.request.network == "baseline":
            return catalog.sustained()
        return catalog
