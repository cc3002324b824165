"""``deepvm catalog refresh`` and ``deepvm catalog status``: fill the cache of live signals, and see what is in it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Annotated

import typer

from deepvm.cli.output import TableJson, note, print_document, say
from deepvm.cli.plan.options import MOST_DAYS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deepvm.catalog.signals.fetching import Outcome
    from deepvm.errors import CloudError

ALL = "all"

Profile = Annotated[str, typer.Option("--profile", metavar="NAME", help="AWS profile; the usual one unless given.")]


def refresh(
    region: Annotated[
        list[str] | None,
        typer.Option(
            "--region", "-r", metavar="NAME", help="What to fetch for, or all; may be repeated. Yours unless given."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="SIGNAL", help="Only this one, such as spot; may be repeated."),
    ] = None,
    days: Annotated[
        str, typer.Option("--days", metavar="N", help=f"Also past spot prices, of so many days, 1 to {MOST_DAYS}.")
    ] = "",
    profile: Profile = "",
    offline: Annotated[bool, typer.Option("--offline", hidden=True)] = False,
) -> None:
    """Fetch prices, types and quotas from AWS now, however fresh the cache is, and keep them for the next commands.

    Leaves with exit code 0 when something came from AWS for every region, and 5 otherwise; with 4 when it could not be
    kept. One signal that fails costs that signal only.

    Example: deepvm catalog refresh --region us-east-1 --only spot
    """
    from datetime import datetime, timezone
    from functools import partial

    from deepvm.catalog.clouds import DEFAULT_CLOUD as CLOUD
    from deepvm.catalog.signals.fetching import Wish, fetch
    from deepvm.catalog.signals.negative_cache import remember_failures
    from deepvm.errors import DataError, RequestError
    from deepvm.reports.prices.signals import print_outcomes

    if offline:
        raise RequestError("offline", True, "no such option here, because refresh asks AWS; 'deepvm catalog status'")
    kinds = _kinds(only or [], days)
    may_ask = CLOUD.credentials_may_exist(profile, os.environ)
    regions = _regions(region or [], profile, may_ask)
    cache = CLOUD.cache(profile, os.environ)
    now = datetime.now(timezone.utc)
    wishes = [Wish(r, k, anew=True) for r in regions for k in kinds]
    providers = partial(CLOUD.providers, kinds, profile) if may_ask else CLOUD.public_providers
    outcomes = fetch(wishes, providers, cache=cache, now=now, progress=say)
    outcomes = tuple(_explained(o) for o in outcomes)
    remember_failures(cache, outcomes, now)
    print_outcomes(outcomes, now)
    notes = cache.take_notes()
    for text in notes if cache.keeps else notes[1:]:
        note(text)
    _conclude(regions, outcomes)
    if not cache.keeps:
        raise DataError(
            f"what was fetched could not be kept: {next(iter(notes), 'there is no home folder')}; DEEPVM_CACHE_DIR "
            "names another place"
        )


def status(
    region: Annotated[
        list[str] | None,
        typer.Option(
            "--region", "-r", metavar="NAME", help="Only this one; may be repeated. All that are kept unless given."
        ),
    ] = None,
    profile: Profile = "",
    output: TableJson = "table",
) -> None:
    """Show what is kept of AWS's prices and types: how much, how old, whether it is fresh, and what renews it.

    Asks nobody and changes nothing.
    """
    from datetime import datetime, timezone

    from deepvm.catalog.clouds import DEFAULT_CLOUD as CLOUD
    from deepvm.catalog.market.live import KINDS
    from deepvm.reports.prices.signals import print_status, status_document, status_rows

    cache = CLOUD.cache(profile, os.environ)
    now = datetime.now(timezone.utc)
    named = [] if region is None or ALL in region else [CLOUD.check_region(name) for name in dict.fromkeys(region)]
    entries = [e for e in cache.entries(now) if e.account in ("", cache.account)]
    regions = named or list(dict.fromkeys(e.region for e in entries))
    snapshots = {r: CLOUD.snapshot(r) for r in CLOUD.snapshot_regions() if not named or r in named}
    statuses = status_rows(entries, regions, KINDS, snapshots, now)
    if output == "json":
        print_document(status_document(statuses, cache, now))
        return
    print_status(statuses, now)
    if cache.folder is None:
        note("there is no home folder to keep anything in; DEEPVM_CACHE_DIR names a place")
    elif not entries:
        note(f"nothing is kept in {cache.folder}; 'deepvm catalog refresh' fetches from AWS")


def _kinds(only: Sequence[str], days: str) -> tuple[str, ...]:
    from deepvm.catalog.market.live import KINDS
    from deepvm.catalog.signals.signal import HISTORY
    from deepvm.core.spelling import one_of
    from deepvm.errors import RequestError

    if days and not (re.fullmatch(r"[0-9]{1,3}", days, re.ASCII) and 1 <= int(days) <= MOST_DAYS):
        raise RequestError("days", days, f"a whole number from 1 to {MOST_DAYS}")
    history = f"{HISTORY}:{int(days)}" if days else ""
    for name in only:
        if name not in (*KINDS, HISTORY):
            raise RequestError("only", name, one_of(name, (*KINDS, HISTORY)))
        if name == HISTORY and not history:
            raise RequestError("only", name, f"{HISTORY} together with --days N")
    if only and history and HISTORY not in only:
        note(f"--days {days} has no effect without --only {HISTORY}")
    names = only or ((*KINDS, HISTORY) if history else KINDS)
    return tuple(dict.fromkeys(history if name == HISTORY else name for name in names))


def _regions(named: Sequence[str], profile: str, may_ask: bool) -> tuple[str, ...]:
    from deepvm.catalog.clouds import DEFAULT_CLOUD as CLOUD

    if not named:
        own = CLOUD.own_region("", profile, os.environ)
        say(f"region {own.name} ({own.where})")
        return (own.name,)
    found = [CLOUD.check_region(name) for name in named if name != ALL]
    if ALL in named:
        if not may_ask:
            raise _no_credentials("the list of regions")
        found += CLOUD.account_regions(profile)
    return tuple(dict.fromkeys(found))


def _explained(outcome: Outcome) -> Outcome:
    """A signal that was not asked for lacks credentials."""
    from dataclasses import replace

    from deepvm.catalog.signals.signal_words import title

    if outcome.signal is not None or outcome.error is not None:
        return outcome
    return replace(outcome, error=_no_credentials(f"{title(outcome.wish.kind)} of {outcome.wish.region}"))


def _no_credentials(what: str) -> CloudError:
    from deepvm.errors import CloudError

    advice = "run 'aws configure', or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    return CloudError(what, "credentials", "no AWS credentials were found", advice)


def _conclude(regions: Sequence[str], outcomes: Sequence[Outcome]) -> None:
    """Note what failed; raise if nothing came for a region.

    Raises:
        CloudError: for some region nothing came but what is public anyway; a timer must notice that.
    """
    from deepvm.catalog.signals.fetching import PUBLIC
    from deepvm.catalog.signals.resolve import advice_of, describe_failure, grouped
    from deepvm.catalog.signals.signal_words import listed
    from deepvm.errors import CloudError

    without = []
    for region in regions:
        here = [o for o in outcomes if o.wish.region == region]
        decisive = [o for o in here if o.wish.kind not in PUBLIC] or here
        if all(o.signal is None for o in decisive):
            without.append(region)
    fatal = next((g for g in grouped(outcomes) if any(o.wish.region in without for o in g)), None)
    for group in grouped(outcomes):
        if group != fatal:
            note("; ".join(p for p in (describe_failure(group), advice_of(group)) if p))
    if fatal is not None and fatal[0].error is not None:
        error = fatal[0].error
        raise CloudError(
            f"nothing came from AWS for {listed(without)}", error.why, describe_failure(fatal), error.advice
        )
