"""``catalog refresh`` of public catalogs: each file is downloaded whole, for all regions of a cloud."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from deepvm.cli.output import note, say
from deepvm.core.spelling import joined, one_of
from deepvm.errors import CloudError, DataError, RequestError

if TYPE_CHECKING:
    from deepvm.catalog.public.public_market import PublicMarket
    from deepvm.catalog.signals.cloud import Cloud


def refresh_files(clouds: Sequence[Cloud], wanted: str, now: datetime) -> None:
    """Download the public catalogs of clouds into the cache.

    The first source of each unless one is ``wanted``.

    Raises CloudError: one gave no answer that can be used. DataError: what was fetched could not be
    kept.
    """
    from deepvm.reports.prices.public_files import print_files

    markets = [_market(cloud, wanted, now) for cloud in clouds]
    found = []
    for market in markets:
        say(f"{market.cloud}: fetching {market.source.title}")
        found.append(market.refresh())
    print_files(list(zip(markets, found, strict=True)), now)
    lost = [
        (market, said.error)
        for market, said in zip(markets, found, strict=True)
        if said.error is not None
    ]
    for _, error in lost[1:]:
        note(str(error))
    if lost:
        market, error = lost[0]
        what = f"nothing came from {market.source.title} for {joined([m.cloud for m, _ in lost])}"
        raise CloudError(what, error.why, f"{error.what}: {error.detail}", error.advice)
    full = next(
        (
            text
            for market in markets
            for text in market.cache.take_notes()
            if not market.cache.keeps
        ),
        "",
    )
    if full or not all(market.cache.keeps for market in markets):
        why = full or "there is no home folder"
        raise not_kept(why)


def not_kept(why: str) -> DataError:
    """The error where the cache takes nothing."""
    place = "" if "DEEPVM_CACHE_DIR" in why else "; DEEPVM_CACHE_DIR names a place"
    return DataError(f"what was fetched could not be kept: {why}{place}")


def named_source(name: str, clouds: Sequence[Cloud]) -> str:
    """The public catalog that ``--source`` names, empty for none in particular.

    Raises RequestError.
    """
    from deepvm.catalog.market.public_prices import AUTO, NONE
    from deepvm.catalog.public.registry import SOURCES

    if name in ("", AUTO):  # which a setting for other commands may say
        return ""
    if name == NONE:
        if without := [cloud.title for cloud in clouds if not cloud.has_api]:
            allowed = (
                f"{' or '.join(SOURCES)}: only public catalogs have prices of {joined(without)}"
            )
            raise RequestError("source", name, allowed)
        return NONE
    if name not in SOURCES:
        raise RequestError("source", name, one_of(name, SOURCES))
    return name


def clouds_named(names: Sequence[str]) -> list[Cloud]:
    """The clouds that ``--cloud`` names; the default one without any. Raises RequestError."""
    from deepvm.catalog.clouds import DEFAULT_CLOUD, REGISTRY, clouds_of

    return [REGISTRY[name] for name in clouds_of(names)] or [DEFAULT_CLOUD]


def _market(cloud: Cloud, wanted: str, now: datetime) -> PublicMarket:
    from deepvm.catalog.market.public_prices import AUTO, public_markets
    from deepvm.catalog.public.registry import SOURCES, source

    found = public_markets(cloud, wanted or AUTO, now)
    if not found:
        having = [name for name in SOURCES if cloud.name in source(name).clouds]
        off = " or ".join(source(name).variable for name in having)
        raise RequestError(
            "source",
            wanted or AUTO,
            f"{joined(having, 'or')} for {cloud.title}, not switched off by {off}",
        )
    return found[0]
