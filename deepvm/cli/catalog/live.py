"""``deepvm catalog refresh``, ``catalog status`` and ``doctor``: live prices, their cache, and what they need."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from deepvm.cli.catalog.public_files import clouds_named, named_source, not_kept, refresh_files
from deepvm.cli.help.completion import complete_cloud, complete_region
from deepvm.cli.output import Output, note, print_as, say
from deepvm.cli.parameters import flag, opt
from deepvm.cli.plan.options import MOST_DAYS, AwsProfile
from deepvm.core.spelling import joined, one_of
from deepvm.errors import CloudError, RequestError

if TYPE_CHECKING:
    from deepvm.catalog.signals.cloud import Check, Cloud
    from deepvm.catalog.signals.fetching import Outcome

ALL = "all"
PATIENCE_S = 30  # for each request: all are small, and somebody waits for the table
_STATUS = {True: "ok", None: "warning", False: "failed"}


Clouds = Annotated[
    list[str] | None,
    opt(
        "Cloud, or all; repeatable; default: aws.", "NAME", "--cloud", autocompletion=complete_cloud
    ),
]


def refresh(
    region: Annotated[
        list[str] | None,
        opt(
            "AWS region, or all; repeatable.",
            "NAME",
            "--region",
            "-r",
            autocompletion=complete_region,
        ),
    ] = None,
    only: Annotated[
        list[str] | None, opt("Only this signal, such as spot; repeatable.", "SIGNAL")
    ] = None,
    days: Annotated[
        str, opt(f"Also the spot price history of so many days, 1 to {MOST_DAYS}.", "N")
    ] = "",
    cloud: Clouds = None,
    source: Annotated[
        str, opt("A public catalog, in place of AWS: skypilot or gpuhunt; none: only AWS.", "NAME")
    ] = "",
    profile: AwsProfile = "",
    offline: Annotated[bool, opt("", None, "--offline", hidden=True)] = False,
) -> None:
    """Fetch prices, types and quotas into the cache now, however fresh it is: of AWS, or of public catalogs.

    Exit code 0 when something came from AWS for every region, else 5; 4 when the cache could not be
    written. Signals fail independently. A public catalog needs no account, and is fetched for all
    regions of a cloud; 5 if one fails.

    Example: deepvm catalog refresh --region us-east-1 --only spot
    """
    from deepvm.catalog.clouds import DEFAULT_CLOUD as CLOUD
    from deepvm.catalog.market.public_prices import NONE
    from deepvm.catalog.signals.fetching import SignalRequest, fetch
    from deepvm.catalog.signals.signal import title
    from deepvm.reports.prices.signals import print_outcomes

    if offline:
        raise RequestError(
            "offline", True, "no --offline: refresh asks AWS; 'deepvm catalog status' sends nothing"
        )
    clouds, now = clouds_named(cloud or []), datetime.now(timezone.utc)
    wanted = named_source(source, clouds)
    given = {"--region": region, "--only": only, "--days": days, "--profile": profile}
    # Whoever names clouds alone, and has no account, means their prices, from wherever they come.
    anywhere = bool(cloud) and not any(given.values())
    public = [
        c
        for c in clouds
        if wanted != NONE
        and (
            wanted
            or not c.has_api
            or (anywhere and not c.credentials_may_exist(profile, os.environ))
        )
    ]
    for without in (c for c in public if c.has_api and not wanted):
        note(f"no {without.title} credentials were found: a public catalog has its prices")
    if public:
        for option in (
            name for name, value in given.items() if value and len(public) == len(clouds)
        ):
            note(f"{option} has no effect on public catalogs, which are fetched whole")
        refresh_files(public, wanted, now)
    if len(public) == len(clouds):
        return
    kinds = _kinds(only or [], days)
    may_ask = CLOUD.credentials_may_exist(profile, os.environ)
    regions = _regions(CLOUD, region or [], profile, may_ask)
    cache = CLOUD.cache(profile, os.environ)
    requests = [SignalRequest(r, k, anew=True) for r in regions for k in kinds]
    providers = partial(CLOUD.providers, kinds, profile) if may_ask else CLOUD.public_providers
    outcomes = list(fetch(requests, providers, cache=cache, now=now, progress=say))
    for i, o in enumerate(outcomes):
        if o.signal is None and o.error is None:
            outcomes[i] = replace(
                o, error=_no_credentials(f"{title(o.request.kind)} of {o.request.region}")
            )
    print_outcomes(outcomes, now)
    notes = cache.take_notes()
    for text in notes if cache.keeps else notes[1:]:
        note(text)
    _conclude(regions, outcomes)
    if not cache.keeps:
        why = next(iter(notes), "there is no home folder")
        raise not_kept(why)


def status(
    region: Annotated[
        list[str] | None,
        opt(
            "Only this region; repeatable.",
            "NAME",
            "--region",
            "-r",
            autocompletion=complete_region,
        ),
    ] = None,
    cloud: Clouds = None,
    profile: AwsProfile = "",
    output: Output = "table",
) -> None:
    """Show the cache of prices and types: how much, how old, whether it is fresh, and what renews it.

    Sends no requests and changes nothing.
    """
    from deepvm.catalog.clouds import DEFAULT_CLOUD as CLOUD
    from deepvm.catalog.market.open_markets import KINDS
    from deepvm.catalog.market.public_prices import AUTO, public_markets
    from deepvm.reports.prices.public_files import file_rows, print_file_rows
    from deepvm.reports.prices.signals import print_status, status_document, status_rows
    from deepvm.reports.terminal import print_lines

    cache, now = CLOUD.cache(profile, os.environ), datetime.now(timezone.utc)
    clouds = clouds_named(cloud or [])
    files = file_rows([m for c in clouds for m in public_markets(c, AUTO, now)])
    if CLOUD not in clouds:
        print_as(
            output,
            lambda: print_file_rows(files, now),
            lambda: status_document([], cache, now, files),
        )
        return
    named = (
        []
        if region is None or ALL in region
        else [CLOUD.check_region(name) for name in dict.fromkeys(region)]
    )
    entries = [e for e in cache.entries(now) if e.account in ("", cache.account)]
    regions = named or list(dict.fromkeys(e.region for e in entries))
    snapshots = {r: CLOUD.snapshot(r) for r in CLOUD.snapshot_regions() if not named or r in named}
    statuses = status_rows(entries, regions, KINDS, snapshots, now)
    kept = [row for row in files if row["fetched_at"] or cloud]

    def table() -> None:
        print_status(statuses, now)
        if kept:
            print_lines([""])
            print_file_rows(kept, now)

    print_as(output, table, lambda: status_document(statuses, cache, now, kept))
    if output != "table":
        return
    if cache.folder is None:
        note("there is no home folder to keep anything in; DEEPVM_CACHE_DIR names a place")
    elif not entries:
        note(f"nothing is kept in {cache.folder}; 'deepvm catalog refresh' fetches from AWS")


def _kinds(only: Sequence[str], days: str) -> tuple[str, ...]:
    from deepvm.catalog.market.build_catalog import MarketRequest
    from deepvm.catalog.market.open_markets import KINDS
    from deepvm.catalog.signals.signal import HISTORY

    history = f"{HISTORY}:{MarketRequest(days=days).days}" if days else ""
    for name in only:
        if name not in (*KINDS, HISTORY):
            raise RequestError("only", name, one_of(name, (*KINDS, HISTORY)))
        if name == HISTORY and not history:
            raise RequestError("only", name, f"{HISTORY} together with --days N")
    if only and history and HISTORY not in only:
        note(f"--days {days} has no effect without --only {HISTORY}")
    names = only or ((*KINDS, HISTORY) if history else KINDS)
    return tuple(dict.fromkeys(history if name == HISTORY else name for name in names))


def _regions(cloud: Cloud, named: Sequence[str], profile: str, may_ask: bool) -> tuple[str, ...]:
    if not named:
        own = cloud.own_region(profile, os.environ)
        say(f"region {own.name} ({own.where})")
        return (own.name,)
    found = [cloud.check_region(name) for name in named if name != ALL]
    if ALL in named:
        if not may_ask:
            raise _no_credentials("the list of regions")
        found += cloud.account_regions(profile)
    return tuple(dict.fromkeys(found))


def _no_credentials(what: str) -> CloudError:
    keys = "run 'aws configure', or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    advice = f"{keys}; --source skypilot needs no account"
    return CloudError(what, "credentials", "no AWS credentials were found", advice)


def _conclude(regions: Sequence[str], outcomes: Sequence[Outcome]) -> None:
    """Note what failed. Raises CloudError: a region has only what is public.

    A timer must notice that.
    """
    from deepvm.catalog.signals.fetching import PUBLIC
    from deepvm.catalog.signals.resolve import advice_of, describe_failure, grouped

    without = []
    for region in regions:
        here = [o for o in outcomes if o.request.region == region]
        private = [o for o in here if o.request.kind not in PUBLIC]
        if all(o.signal is None for o in private or here):
            without.append(region)
    fatal = next(
        (g for g in grouped(outcomes) if any(o.request.region in without for o in g)), None
    )
    for group in grouped(outcomes):
        if group != fatal:
            note("; ".join(filter(None, (describe_failure(group), advice_of(group)))))
    if fatal is not None and (error := fatal[0].error) is not None:
        what = f"nothing came from AWS for {joined(without)}"
        raise CloudError(what, error.why, describe_failure(fatal), error.advice)


def doctor(
    region: Annotated[
        list[str],
        opt(
            "AWS region; repeatable; default: yours.",
            "NAME",
            "--region",
            "-r",
            autocompletion=complete_region,
        ),
    ] = [],  # noqa: B006  typer copies defaults, and None would hide the list type
    profile: AwsProfile = "",
    iam: Annotated[
        bool, flag("--iam", "Only print the read-only IAM policy that deepvm needs.")
    ] = False,
    purpose: Annotated[
        str,
        opt(
            "With --iam: the policy of run (who runs jobs on AWS), head or machine (roles).",
            "NAME",
            "--for",
        ),
    ] = "",
    output: Output = "table",
) -> None:
    """Check what live prices need: the cache, credentials, the clock, each permission, quotas, the price feed.

    Every check is a small read-only request; nothing is started or changed. Exit code 0 when
    nothing failed, else 5.
    """
    from deepvm.catalog.clouds import DEFAULT_CLOUD
    from deepvm.catalog.signals.cloud import Region
    from deepvm.reports.tables import Column, print_table

    if purpose and not iam:
        raise RequestError("for", purpose, "only with --iam")
    if iam:
        sys.stdout.write(_policy_for(purpose) if purpose else DEFAULT_CLOUD.policy())
        return
    # "all" is for prices; the usual region says the same about credentials and permissions.
    named = dict.fromkeys(r for r in region if r not in ("", "all"))
    regions = [Region(DEFAULT_CLOUD.check_region(r), "--region") for r in named]
    regions = regions or [DEFAULT_CLOUD.own_region(profile, os.environ)]
    found = [_check_cache(), _check_local_machines()]
    for asked in regions:
        note(f"asking AWS about {asked.name}" + ("" if named else f" ({asked.where})"))
        for check in DEFAULT_CLOUD.check(
            profile, asked.name, datetime.now(timezone.utc), PATIENCE_S
        ):
            found.append(
                check if len(regions) == 1 else replace(check, name=f"{asked.name}: {check.name}")
            )
    failed = any(c.ok is False for c in found)
    columns = [
        Column("check"),
        Column("status"),
        Column("found", drop=2),
        Column("what to do", drop=1),
    ]
    cells = [[c.name, _STATUS[c.ok], c.detail, c.advice or "-"] for c in found]
    checks = [
        {"name": c.name, "status": _STATUS[c.ok], "detail": c.detail, "advice": c.advice}
        for c in found
    ]
    document = {
        "schema_version": "deepvm.doctor/1",
        "ok": not failed,
        "regions": [r.name for r in regions],
    }
    print_as(
        output,
        lambda: print_table(columns, cells, also="-o json"),
        lambda: document | {"checks": checks},
    )
    if failed:
        raise typer.Exit(5)


def _policy_for(purpose: str) -> str:
    """The IAM policy of jobs. Raises RequestError."""
    from deepvm.jobs.clouds.aws.ec2_settings import Ec2Settings
    from deepvm.jobs.clouds.aws.run_policy import POLICIES, policy_text

    if purpose not in POLICIES:
        raise RequestError(
            "for", purpose, one_of(purpose, tuple(POLICIES)) or joined(POLICIES, "or")
        )
    return policy_text(purpose, Ec2Settings.of(os.environ))


def _check_cache() -> Check:
    """Whether answers of AWS can be kept; without that, deepvm works and is slow."""
    from deepvm.catalog.signals.cache import default_folder
    from deepvm.catalog.signals.cloud import Check

    folder = default_folder(os.environ)
    advice = "name a writable folder with DEEPVM_CACHE_DIR; without it every run asks AWS anew"
    if folder is None:
        return Check("cache", None, "there is no home folder to keep it in", advice)
    there = next((p for p in (folder, *folder.parents) if os.path.lexists(p)), folder)
    try:
        # Only a real file shows a full disk or a read-only file system; os.access() does not.
        with tempfile.TemporaryFile(dir=there) as stream:
            stream.write(b"deepvm")
    except OSError as error:
        return Check(
            "cache", None, f"{folder} cannot be written: {error.strerror or error}", advice
        )
    return Check("cache", True, str(folder) if folder.exists() else f"{folder}, not made yet")


def _check_local_machines() -> Check:
    """What keeps the processes of a local machine together.

    Without unshare, deepvm does it itself.
    """
    from deepvm.catalog.signals.cloud import Check
    from deepvm.jobs.clouds.local import unshared

    if unshared():
        return Check("local machines", True, "each has a PID namespace of its own, by unshare")
    found = (
        "unshare is refused here: machines of deepvm run are kept together by a process of"
        " deepvm's own"
    )
    return Check(
        "local machines",
        None,
        found,
        "nothing, unless you kill -9 that process and its child at once",
    )
