"""``deepvm catalog refresh`` and ``status``: fetch prices, types and quotas, and show the cache."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from deepvm.catalog.price_sources import ADDRESS_VARIABLES, MAX_HISTORY_DAYS, SOURCES
from deepvm.cli.output import Output, note, print_named, say, text, utc_now
from deepvm.cli.parameters import opt, shared
from deepvm.core.options import field_named
from deepvm.core.spelling import joined, refuse_unknown
from deepvm.errors import CloudError, DataError, OptionMismatchError, RequestError
from deepvm.services.plan_options import SourceOptions

if TYPE_CHECKING:
    from deepvm.catalog.signals.cache import Cache
    from deepvm.catalog.signals.cloud import Cloud
    from deepvm.catalog.signals.fetching import Quotes, SignalRequest


ALL = "all"

PROFILE = shared(field_named(SourceOptions, "profile"))
CLOUD_NAMES = opt(
    None, "Cloud, or all; repeatable; default: aws.", "NAME", "--cloud", complete="complete_cloud"
)


def region_option(default: list[str] | None) -> Any:
    """The option ``--region``."""
    help = "Region, or all; repeatable."
    return opt(default, help, "NAME", "--region", "-r", complete="complete_region")


def refresh(
    region: list[str] | None = region_option(None),
    only: list[str] | None = opt(None, "Only this signal, such as spot; repeatable.", "SIGNAL"),
    days: str = opt(
        "", f"Also the spot price history of so many days, 1 to {MAX_HISTORY_DAYS}.", "N"
    ),
    cloud: list[str] | None = CLOUD_NAMES,
    source: str = opt(
        "", f"A public catalog instead of AWS: {joined(SOURCES, 'or')}; none: only AWS.", "NAME"
    ),
    profile: str = PROFILE,
) -> None:
    """Fetch prices, types and quotas into the cache now, however fresh it is.

    They come from AWS, or from public catalogs. Exit code 0 when something came from AWS for every
    region, else 5; 4 when the cache could not be written. Signals fail independently. A public
    catalog needs no account, and is fetched for all regions of a cloud; 5 if one fails.

    Example: deepvm catalog refresh --region us-east-1 --only spot
    """
    from deepvm.catalog.public.public_market import wanted_source

    clouds = clouds_named(cloud or [])
    now = utc_now()
    wanted = wanted_source(source)
    # Clouds alone, without an account: their prices, wherever they come from.
    anywhere = bool(cloud) and not (region or only or days or profile)
    public = [c for c in clouds if _is_public(c, wanted, anywhere)]
    if public:
        given = {"--region": region, "--only": only, "--days": days, "--profile": profile}
        options = [option for option, value in given.items() if value]
        if options and len(public) == len(clouds):
            note(f"no effect on public catalogs, which are fetched whole: {joined(options)}")
        _refresh_files(public, wanted, now)
    if len(public) < len(clouds):
        _refresh_aws(region or [], only or [], days, profile, now)


def clouds_named(names: Sequence[str]) -> list[Cloud]:
    """The clouds of ``--cloud``; the default one without any."""
    from deepvm.catalog.clouds import DEFAULT_CLOUD, REGISTRY, clouds_of

    return [REGISTRY[name] for name in clouds_of(names)] or [DEFAULT_CLOUD]


def _is_public(cloud: Cloud, wanted: str, anywhere: bool) -> bool:
    from deepvm.catalog.public.public_market import AUTO, NONE

    if wanted == NONE and not cloud.has_api:
        allowed = f"{' or '.join(SOURCES)}, the only ones with prices of {cloud.title}"
        raise RequestError("source", wanted, allowed)
    if wanted != AUTO or not cloud.has_api:
        return wanted != NONE
    if not anywhere or cloud.credentials_may_exist(""):
        return False
    note(f"no {cloud.title} credentials were found: a public catalog has its prices")
    return True


def _refresh_files(clouds: Sequence[Cloud], wanted: str, now: datetime) -> None:
    from deepvm.catalog.public.public_market import public_catalogs
    from deepvm.reports.prices.types import print_files

    catalogs = []
    for cloud in clouds:
        public = public_catalogs(cloud, wanted, now)
        if not public:
            variables = joined(ADDRESS_VARIABLES, "or")
            allowed = f"one that has {cloud.title}, not switched off by {variables}"
            raise RequestError("source", wanted, allowed)
        catalogs.append(public[0])
    results = []
    for catalog in catalogs:
        say(f"{catalog.cloud.name}: fetching {catalog.source.title}")
        results.append((catalog, list(catalog.refresh().values())))
    print_files(results, now)
    failed = [(c, c.error) for c in catalogs if c.error is not None]
    for _, error in failed[1:]:
        note(str(error))
    if failed:
        catalog, error = failed[0]
        names = joined(c.cloud.name for c, _ in failed)
        subject = f"nothing came from {catalog.source.title} for {names}"
        raise CloudError(subject, error.why, f"{error.what}: {error.detail}", error.advice)
    for catalog in catalogs:
        _check_written(catalog.cache)


def _refresh_aws(
    named: Sequence[str], only: Sequence[str], days: str, profile: str, now: datetime
) -> None:
    from deepvm.catalog.clouds import DEFAULT_CLOUD
    from deepvm.catalog.signals.fetching import CloudApi, SignalRequest
    from deepvm.reports.prices.types import print_quotes

    kinds = _kinds(only, days)
    may_ask = DEFAULT_CLOUD.credentials_may_exist(profile)
    regions = _regions(DEFAULT_CLOUD, named, profile, may_ask)
    cache = DEFAULT_CLOUD.cache(profile)
    requests = [SignalRequest(r, k) for r in regions for k in kinds]
    providers = DEFAULT_CLOUD.public_providers
    if may_ask:
        providers = partial(DEFAULT_CLOUD.providers, kinds, profile)
    quotes = CloudApi(cache, providers, now, say, patient=True).fetch(requests)
    print_quotes(requests, quotes, now)
    _conclude(requests, quotes)
    _check_written(cache)


def _kinds(only: Sequence[str], days: str) -> tuple[str, ...]:
    from deepvm.catalog.clouds import DEFAULT_CLOUD
    from deepvm.catalog.market.build_catalog import MarketRequest
    from deepvm.catalog.signals.signal import HISTORY

    known = (*DEFAULT_CLOUD.kinds, HISTORY)
    history = ""
    if days:
        history = f"{HISTORY}:{MarketRequest(days=days).days}"
    for name in only:
        refuse_unknown("only", name, known)
    if HISTORY in only and not history:
        raise OptionMismatchError("only", HISTORY, f"{HISTORY} needs --days N")
    if days and only and HISTORY not in only:
        note(f"--days {days} has no effect without --only {HISTORY}")
    names = only or known
    kinds = (history if name == HISTORY else name for name in names)
    return tuple(dict.fromkeys(filter(None, kinds)))


def _regions(cloud: Cloud, named: Sequence[str], profile: str, may_ask: bool) -> list[str]:
    if not named:
        own = cloud.own_region(profile)
        say(f"region {own.name} ({own.where})")
        return [own.name]
    regions = [cloud.check_region(name) for name in named if name != ALL]
    if ALL in named and not may_ask:
        raise _no_credentials("the list of regions")
    if ALL in named:
        regions += cloud.account_regions(profile)
    return list(dict.fromkeys(regions))


def _no_credentials(subject: str) -> CloudError:
    keys = "run 'aws configure', or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    advice = f"{keys}; --source skypilot needs no account"
    return CloudError(subject, "credentials", "no AWS credentials were found", advice)


def _conclude(requests: Sequence[SignalRequest], quotes: Quotes) -> None:
    # An error and not a note: a timer that refreshes must notice expired credentials.
    from deepvm.catalog.signals.fetching import PUBLIC, grouped

    asked = [r for r in requests if r.kind not in PUBLIC] or requests
    answered = {r.region for r in asked if r in quotes.signals}
    without = dict.fromkeys(r.region for r in requests if r.region not in answered)
    failed = [r for r in requests if r not in quotes.signals]
    fatal = None
    for failures in grouped({r: quotes.errors.get(r) or _no_credentials("AWS") for r in failed}):
        if fatal is None and any(r.region in without for r in failures.requests):
            fatal = failures
        else:
            note("; ".join(filter(None, (str(failures), failures.advice))))
    if fatal is not None:
        subject = f"nothing came from AWS for {joined(without)}"
        raise CloudError(subject, fatal.error.why, str(fatal), fatal.error.advice)


def _check_written(cache: Cache) -> None:
    notes = cache.take_notes()
    if not cache.keeps:
        reason = next(iter(notes), "there is no home folder; DEEPVM_CACHE_DIR names another")
        raise DataError(f"the fetched data could not be cached: {reason}")
    for line in notes:
        note(line)


def status(
    region: list[str] | None = region_option(None),
    cloud: list[str] | None = CLOUD_NAMES,
    profile: str = PROFILE,
    output: Output = "table",
) -> None:
    """Show the cache of prices and types.

    Lists what it holds, how old that is, whether it is fresh, and what renews it. Sends no requests
    and changes nothing.
    """
    from deepvm.catalog.clouds import DEFAULT_CLOUD
    from deepvm.catalog.public.public_market import AUTO, public_catalogs
    from deepvm.reports.prices.types import file_rows, signal_rows

    cache = DEFAULT_CLOUD.cache(profile)
    now = utc_now()
    clouds = clouds_named(cloud or [])
    names = [r for r in dict.fromkeys(region or []) if r != ALL]
    regions = [clouds[0].check_region(name) for name in names]
    if ALL in (region or []):
        regions = []
    public = [c for one in clouds for c in public_catalogs(one, AUTO, now)]
    files = file_rows(public, now, absent=bool(cloud))
    signals = [row for one in clouds for row in signal_rows(one, profile, regions, now)]
    values = {"now": now.isoformat(), "cache": cache, "signals": signals, "public_catalogs": files}
    table = text("catalog_status", signals=signals, files=files, named=bool(cloud))
    print_named(output, table, "catalog-status", values)
    if output != "table" or DEFAULT_CLOUD not in clouds:
        return
    if cache.folder is None:
        note("there is no home folder for the cache; DEEPVM_CACHE_DIR names another folder")
    elif not any(row.path for row in signals):
        note(f"{cache.folder} is empty; 'deepvm catalog refresh' fetches from AWS")
