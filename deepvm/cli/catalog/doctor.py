"""``deepvm doctor``: can live prices be had from here, and if not, what is missing?"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from deepvm.cli.output import TableJson, note, print_document

if TYPE_CHECKING:
    from pathlib import Path

    from deepvm.catalog.signals.cloud import Check

SCHEMA_VERSION = "deepvm.doctor/1"
SOMETHING_FAILED = 5
PATIENCE_S = 30
"""Seconds for each request: every one is small, and somebody waits for the table."""
_STATUS = {True: "ok", None: "warning", False: "failed"}


def doctor(
    region: Annotated[
        list[str],
        typer.Option(
            "--region", "-r", metavar="NAME", help="Where to look; may be repeated. AWS's usual one unless given."
        ),
    ] = [],  # noqa: B006  typer copies defaults, and None would hide the list type
    profile: Annotated[str, typer.Option("--profile", help="AWS profile.")] = "",
    iam: Annotated[
        bool, typer.Option("--iam", help="Print the read-only IAM policy that deepvm needs, and do nothing else.")
    ] = False,
    output: TableJson = "table",
) -> None:
    """Check what live prices need: the cache, credentials, the clock, each permission, quotas, the price feed.

    Every check is a small read-only request; nothing is started or changed. Exit code 0 when nothing failed, else 5.
    """
    from deepvm.catalog.clouds import DEFAULT_CLOUD
    from deepvm.catalog.signals.cloud import Check, Region

    if iam:
        sys.stdout.write(DEFAULT_CLOUD.policy())
        return
    from datetime import datetime, timezone

    # "all" is meant for prices; one look at the usual region says the same about credentials and permissions.
    named = dict.fromkeys(r for r in region if r not in ("", "all"))
    regions = [Region(DEFAULT_CLOUD.check_region(r), "--region") for r in named]
    regions = regions or [DEFAULT_CLOUD.own_region(profile, os.environ)]
    found = [_check_cache()]
    for asked in regions:
        note(f"asking AWS about {asked.name}" + ("" if named else f" ({asked.where})"))
        for check in DEFAULT_CLOUD.check(profile, asked.name, datetime.now(timezone.utc), PATIENCE_S):
            name = check.name if len(regions) == 1 else f"{asked.name}: {check.name}"
            found.append(Check(name, check.ok, check.detail, check.advice))
    failed = any(c.ok is False for c in found)
    if output == "json":
        rows = [{"name": c.name, "status": _STATUS[c.ok], "detail": c.detail, "advice": c.advice} for c in found]
        document = {
            "schema_version": SCHEMA_VERSION,
            "ok": not failed,
            "regions": [r.name for r in regions],
            "checks": rows,
        }
        print_document(document)
    else:
        from deepvm.reports.tables import Column, print_table

        columns = [Column("check"), Column("status"), Column("found", drop=2), Column("what to do", drop=1)]
        print_table(columns, [[c.name, _STATUS[c.ok], c.detail, c.advice or "-"] for c in found], also="-o json")
    if failed:
        raise typer.Exit(SOMETHING_FAILED)


def _check_cache() -> Check:
    """Whether answers of AWS can be kept; without that, deepvm works and is slow."""
    from deepvm.catalog.signals.cache import default_folder
    from deepvm.catalog.signals.cloud import Check

    folder = default_folder(os.environ)
    advice = "name a folder that may be written with DEEPVM_CACHE_DIR; without it every run asks AWS anew"
    if folder is None:
        return Check("cache", None, "there is no home folder to keep it in", advice)
    try:
        _try_to_write(folder)
    except OSError as error:
        return Check("cache", None, f"{folder} cannot be written: {error.strerror or error}", advice)
    return Check("cache", True, str(folder) if folder.exists() else f"{folder}, not made yet")


def _try_to_write(folder: Path) -> None:
    """Write a file that nobody sees, in the folder or in the nearest one above it that is there.

    Raises:
        OSError: that is not possible.
    """
    import tempfile

    there = next((p for p in (folder, *folder.parents) if os.path.lexists(p)), folder)
    # Only a real file shows a full disk or a read-only file system; os.access() does not.
    with tempfile.TemporaryFile(dir=there) as stream:
        stream.write(b"deepvm")
