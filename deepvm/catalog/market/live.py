"""Today's market of a region: live, from the cache, or the snapshot, whichever is the best that can be had.

Catalogs called ``aws`` or ``aws-REGION`` are made here. Nothing slow is loaded before it is needed: with a fresh
cache, or without credentials, boto3 stays out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from deepvm.catalog.clouds.aws.credentials import account_tag, check_region, credentials_may_exist, region_of
from deepvm.catalog.market.build_catalog import SignalMissingError, SpotChoice, assemble
from deepvm.catalog.signals.cache import Cache, default_folder
from deepvm.catalog.signals.resolve import Mode, resolve_regions
from deepvm.catalog.signals.signal import ADVISOR, OFFERINGS, ON_DEMAND, QUOTAS, SPECS, SPOT, ZONES
from deepvm.catalog.signals.signal_words import listed
from deepvm.catalog.signals.snapshot import snapshot, snapshot_regions
from deepvm.core.cluster.instances import Catalog, InstanceType, Market
from deepvm.core.cluster.prices import PriceBasis
from deepvm.core.spelling import did_you_mean
from deepvm.errors import CloudError, DeepVMError, MissingDataError, RequestError

if TYPE_CHECKING:
    from deepvm.catalog.signals.signal import Provider

KINDS = (SPECS, OFFERINGS, ZONES, ON_DEMAND, SPOT, ADVISOR, QUOTAS)
"""The signals of a catalog; a history of prices comes on top where it is asked for."""

MOST_DAYS = 90
"""AWS keeps spot prices for 90 days."""

_NAME = re.compile(r"aws(?:-(.+))?")


@dataclass(frozen=True)
class MarketRequest:
    """How prices are to be had.

    Attributes:
        mode: ``auto`` (fresh cache, AWS, expired cache, snapshot), ``live`` (AWS must answer) or ``snapshot``.
        offline: never open a socket. profile: of AWS's configuration, empty for the default.
        spot: which spot price counts. network: count with ``peak`` or ``baseline`` bandwidths.
    """

    mode: str = "auto"
    offline: bool = False
    profile: str = ""
    spot: SpotChoice = field(default_factory=SpotChoice)
    network: str = "peak"

    @classmethod
    def parse(
        cls,
        *,
        prices: str = "auto",
        offline: bool = False,
        profile: str = "",
        zone: str = "",
        price_basis: str = "current",
        days: int | str = 30,
        network: str | None = None,
    ) -> MarketRequest:
        """Read the values that people write.

        Raises:
            RequestError: naming the argument, the value and what is allowed.
        """
        if prices not in ("auto", "live", "snapshot"):
            raise RequestError("prices", prices, "auto or live or snapshot")
        if offline and prices == "live":
            raise RequestError("prices", prices, "auto or snapshot together with offline")
        if price_basis not in [b.value for b in PriceBasis]:
            raise RequestError("price_basis", price_basis, " or ".join(b.value for b in PriceBasis))
        text = str(days).strip()
        if isinstance(days, bool) or not re.fullmatch(r"[0-9]{1,3}", text) or not 1 <= int(text) <= MOST_DAYS:
            raise RequestError("days", days, f"a whole number from 1 to {MOST_DAYS}")
        if network not in (None, "peak", "baseline"):
            raise RequestError("network", network, "peak or baseline")
        spot = SpotChoice(zone, PriceBasis(price_basis), int(text))
        return cls(prices, offline, profile, spot, network or "peak")


@dataclass(frozen=True)
class Placement:
    """How likely spot VMs can be had at once, by AWS's estimate.

    Attributes:
        region: where. instance_types: any of which would do; AWS scores fewer than three low, so they have the same GPU
            as the one that is wanted. count: how many VMs.
        scores: from 1 to 10, by zone id, best first. observed_at: when AWS said so, UTC.
    """

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
    environ: Mapping[str, str] | None = None,
    now: datetime | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Placement:
    """Ask AWS how likely ``count`` spot VMs of a type, or of others with the same GPUs, can be had in each zone.

    Raises:
        CloudError: no answer, or AWS may not be asked.
    """
    surroundings = os.environ if environ is None else environ
    moment = now or datetime.now(timezone.utc)
    what = f"spot placement scores in {catalog.region}"
    if not _may_ask(request, surroundings):
        raise CloudError(what, "credentials", *_why_not_asked(request))
    from deepvm.catalog.clouds.aws.client import Aws, PlacementProvider

    alike = sorted(
        (i for i in catalog if i.gpu == wanted.gpu and i.spot_usd_per_hour is not None and i != wanted),
        key=lambda i: (i.micro_usd_per_hour(Market.SPOT), i.name),
    )
    names = (wanted.name, *(i.name for i in alike[: _TYPES_ASKED - 1]))
    provider = PlacementProvider(Aws(request.profile), names, count)
    kind, cache = provider.kind, _cache(request, surroundings)
    signal = cache.read(catalog.region, kind, moment)
    if signal is None or signal.origin != "cache":
        progress(f"asking AWS for {what}")
        signal = provider.fetch(catalog.region, moment)
        cache.write(signal, moment)
    rows = sorted(signal.data, key=lambda row: (-row["score"], row["zone"]))
    return Placement(catalog.region, names, count, {r["zone"]: r["score"] for r in rows}, signal.observed_at)


_TYPES_ASKED = 5


def region_in(name: str) -> str | None:
    """The region that a catalog's name means: empty for ``aws``, None when it is no such name.

    Raises:
        RequestError: ``aws-`` and something that is no region.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return check_region(match[1], "catalog") if match[1] else ""


def open_markets(
    regions: Sequence[str],
    request: MarketRequest,
    *,
    environ: Mapping[str, str] | None = None,
    now: datetime | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[Catalog, ...]:
    """The catalogs of regions, in their order; of several, those that cannot be had are left out with a note.

    Args:
        regions: their names; none for the user's own, ``all`` for every region that can be had.
        request: how prices are to be had.
        environ: the environment, ``os.environ`` unless given.
        now: the time, UTC; the clock's unless given.
        progress: told what is being fetched, one line at a time.

    Raises:
        MissingDataError: nothing is known of the only region, or of none of them.
        CloudError: AWS had to answer and did not.
        RequestError: no such region or zone.
    """
    surroundings = os.environ if environ is None else environ
    moment = now or datetime.now(timezone.utc)
    if not regions:
        return (_own_region(request, surroundings, moment, progress),)
    names, note = _expanded(regions, request, surroundings, moment)
    first, *others = _several(names, request, surroundings, moment, progress)
    return (_noted(first, note) if note else first, *others)


def open_market(region: str = "", request: MarketRequest | None = None, **given: object) -> Catalog:
    """The catalog of one region; see :func:`open_markets`."""
    return open_markets([region] if region else [], request or MarketRequest(), **given)[0]  # type: ignore[arg-type]


def _own_region(
    request: MarketRequest, environ: Mapping[str, str], now: datetime, progress: Callable[[str], None]
) -> Catalog:
    """The user's region; the snapshot's where nobody could be asked about it, because nobody named it on purpose."""
    own = region_of("", request.profile, environ)
    try:
        catalog = _open(own.name, request, environ, now, progress)
    except MissingDataError:
        others = [r for r in snapshot_regions() if r != own.name]
        choosy = request.spot.zone or request.spot.history or request.mode == "live"
        if choosy or not others or own.name in snapshot_regions():
            raise
        catalog = _open(others[0], request, environ, now, progress)
        return _noted(catalog, f"nothing is known of {own.name} ({own.where}); these are prices of {others[0]}")
    return _noted(catalog, f"region {own.name} ({own.where})")


def _noted(catalog: Catalog, *notes: str) -> Catalog:
    provenance = replace(catalog.provenance, notes=(*notes, *catalog.provenance.notes))
    return replace(catalog, provenance=provenance)


def _expanded(
    regions: Sequence[str], request: MarketRequest, environ: Mapping[str, str], now: datetime
) -> tuple[tuple[str, ...], str]:
    """The names, each once, and a note where ``all`` could not become every region of the account."""
    names: list[str] = []
    note = ""
    for name in regions:
        if name == "all":
            found, note = _all_regions(request, environ, now)
            names += found
        else:
            names.append(check_region(name))
    return tuple(dict.fromkeys(names)), note


def _all_regions(request: MarketRequest, environ: Mapping[str, str], now: datetime) -> tuple[tuple[str, ...], str]:
    """Every region of the account, or all that are at hand and why only these."""
    if _may_ask(request, environ):
        from deepvm.catalog.clouds.aws.client import Aws

        try:
            return Aws(request.profile).regions(), ""
        except CloudError as error:
            if request.mode == "live":
                raise
            why = str(error)
    elif request.offline or request.mode == "snapshot":
        why = "AWS is not asked"
    else:
        why = "no AWS credentials were found"
    kept: dict[str, set[str]] = {}
    if request.mode != "snapshot":
        for entry in _cache(request, environ).entries(now):
            kept.setdefault(entry.region, set()).add(entry.kind)
    cached = (r for r, kinds in kept.items() if SPECS in kinds and kinds & {ON_DEMAND, SPOT})
    names = tuple(sorted({*cached, *snapshot_regions()}))
    return names, f"all regions: only {listed(names)}, of which prices are at hand, because {why}"


def _may_ask(request: MarketRequest, environ: Mapping[str, str]) -> bool:
    if request.offline or request.mode == "snapshot":
        return False
    return request.mode == "live" or credentials_may_exist(request.profile, environ)


def _why_not_asked(request: MarketRequest) -> tuple[str, str]:
    """What keeps AWS from being asked, and what to do about it."""
    if request.offline:
        return "offline", "leave out --offline"
    if request.mode == "snapshot":
        return "only the snapshot is used", "leave out --prices snapshot"
    return "no AWS credentials were found", "'deepvm doctor' says what is needed"


def _cache(request: MarketRequest, environ: Mapping[str, str]) -> Cache:
    return Cache(default_folder(environ), account_tag(request.profile, environ))


def providers_of(request: MarketRequest) -> Mapping[str, Provider]:
    """Who fetches what; loads boto3."""
    from deepvm.catalog.clouds.aws.client import Aws, HistoryProvider, aws_providers
    from deepvm.catalog.clouds.aws.spot_advisor import AdvisorProvider

    aws = Aws(request.profile)
    found: dict[str, Provider] = {**aws_providers(aws), ADVISOR: AdvisorProvider()}
    if request.spot.history:
        found[request.spot.history] = HistoryProvider(aws, request.spot.days)
    return found


def _open(
    region: str,
    request: MarketRequest,
    environ: Mapping[str, str],
    now: datetime,
    progress: Callable[[str], None],
) -> Catalog:
    return _several((region,), request, environ, now, progress)[0]


def _several(
    regions: Sequence[str],
    request: MarketRequest,
    environ: Mapping[str, str],
    now: datetime,
    progress: Callable[[str], None],
) -> tuple[Catalog, ...]:
    """The catalogs of regions; of several, those that cannot be had become a note of the others.

    Raises:
        MissingDataError, RequestError, CloudError: what the first region lacks, if none of them can be had.
    """
    kinds = (*KINDS, request.spot.history) if request.spot.history else KINDS
    resolved = resolve_regions(
        regions,
        kinds,
        Mode(request.mode),
        cache=_cache(request, environ),
        providers=(lambda: providers_of(request)) if _may_ask(request, environ) else None,
        snapshot=snapshot,
        now=now,
        progress=progress,
        not_asked="offline" if request.offline else "no AWS credentials were found",
    )
    found: list[Catalog] = []
    failed: list[DeepVMError] = []
    lost: list[str] = []
    for region, signals in resolved.items():
        if isinstance(signals, CloudError):
            failed.append(signals)
            continue
        try:
            catalog = assemble(region, signals.signals, request.spot, now, signals.notes)
            found.append(catalog.sustained() if request.network == "baseline" else catalog)
        except SignalMissingError as error:
            failed.append(_explained(error, region, signals.failures))
            lost += signals.notes
        except (RequestError, MissingDataError) as error:
            failed.append(error)
            lost += signals.notes
    if not found:
        raise failed[0]
    # What was said of regions that are left out may concern all of them.
    found[0] = _noted(found[0], *lost, *(str(e) for e in failed))
    return tuple(found)


def _explained(error: SignalMissingError, region: str, failures: Mapping[str, CloudError]) -> DeepVMError:
    """Why something is missing: what AWS said when it was asked for it, or that another region may have been meant."""
    refused = next((failures[k] for k in error.kinds if k in failures), None)
    if refused is not None:
        return CloudError(error.what, refused.why, f"{refused.what}: {refused.detail}", refused.advice)
    from deepvm.catalog.clouds.aws.client import known_regions

    regions = known_regions()
    meant = "" if region in regions else did_you_mean(region, sorted(regions))
    return MissingDataError(f"{error}; {meant}") if meant else error
