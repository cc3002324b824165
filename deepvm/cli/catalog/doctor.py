"""``deepvm doctor``: can live prices be had from here, and if not, what is missing?"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

import typer

from deepvm.cli.output import TableJson, note, print_as
from deepvm.cli.parameters import flag, opt
from deepvm.cli.plan.options import AwsProfile

if TYPE_CHECKING:
    from deepvm.catalog.signals.cloud import Check

PATIENCE_S = 30  # for each request: every one is small, and somebody waits for the table
_STATUS = {True: "ok", None: "warning", False: "failed"}


def doctor(
    region: Annotated[list[str], opt("AWS region; repeatable; default: yours.", "NAME", "--region", "-r")] = [],  # noqa: B006  typer copies defaults, and None would hide the list type
    profile: AwsProfile = "",
    iam: Annotated[bool, flag("--iam", "Only print the read-only IAM policy that deepvm needs.")] = False,
    output: TableJson = "table",
) -> None:
    """Check what live prices need: the cache, credentials, the clock, each permission, quotas, the price feed.

    Every check is a small read-only request; nothing is started or changed. Exit code 0 when nothing failed, else 5.
    """
    from deepvm.catalog.clouds import DEFAULT_CLOUD

    if iam:
        sys.stdout.write(DEFAULT_CLOUD.policy())
        return
    from deepvm.reports.tables import Column, print_table

    # "all" is meant for prices; one look at the usual region says the same about credentials and permissions.
    named = dict.fromkeys(r for r in region if r not in ("", "all"))
    regions = [DEFAULT_CLOUD.own_region(r, profile, os.environ) for r in named or [""]]
    found = [_check_cache()]
    for asked in regions:
        note(f"asking AWS about {asked.name}" + ("" if named else f" ({asked.where})"))
        for check in DEFAULT_CLOUD.check(profile, asked.name, datetime.now(timezone.utc), PATIENCE_S):
            found.append(check if len(regions) == 1 else replace(check, name=f"{asked.name}: {check.name}"))
    failed = any(c.ok is False for c in found)
    columns = [Column("check"), Column("status"), Column("found", drop=2), Column("what to do", drop=1)]
    print_as(
        output,
        lambda: print_table(
            columns, [[c.name, _STATUS[c.ok], c.detail, c.advice or "-"] for c in found], also="-o json"
        ),
        lambda: {
            "schema_version": "deepvm.doctor/1",
            "ok": not failed,
            "regions": [r.name for r in regions],
            "checks": [
                {"name": c.name, "status": _STATUS[c.ok], "detail": c.detail, "advice": c.advice} for c in found
            ],
        },
    )
    if failed:
        raise typer.Exit(5)


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
        return Check("cache", None, f"{folder} cannot be written: {error.strerror or error}", advice)
    return Check("cache", True, str(folder) if folder.exists() else f"{folder}, not made yet")
