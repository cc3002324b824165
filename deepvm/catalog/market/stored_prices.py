"""Past spot prices without an account: the stored versions of skypilot-catalog in a clone of its repository.

The repository (github.com/skypilot-org/skypilot-catalog) keeps ``catalogs/v8/CLOUD/vms.csv``, which is written anew
every few hours; each commit is a version. A row holds a type in a zone: ``InstanceType``, ``Region``,
``AvailabilityZone``, ``SpotPrice``. A zone in which a type has no spot price sold none on the spot market then.

Only git is run, on the clone as it is: nothing is fetched, no hook runs, and missing objects of a partial clone are an
error.
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from pathlib import Path

from deepvm.catalog.signals.signal import HISTORY, Signal
from deepvm.core.units import MICRO
from deepvm.errors import DataError, MissingDataError

REPOSITORY = "https://github.com/skypilot-org/skypilot-catalog"
SOURCE = "skypilot-catalog, stored versions"
_COLUMNS = ("InstanceType", "Region", "AvailabilityZone", "SpotPrice")
_LIMIT_S = 300.0
_VERSION = re.compile(r"catalogs/v(\d{1,4})/[a-z0-9_-]+/vms\.csv", re.ASCII)


@dataclass(frozen=True)
class StoredPrices:
    """The spot prices of a region over time.

    Attributes:
        signal: of the kind ``history:DAYS``. versions: how many could be read.
        sold: by type and zone, in how many of the versions there was a spot price.
        first, last: when the oldest and the newest of them were stored.
    """

    signal: Signal
    versions: int
    sold: Mapping[str, Mapping[str, int]]
    first: datetime
    last: datetime


@dataclass(frozen=True)
class _Stored:
    """A version: object name of the file, and when it was committed, seconds since 1970."""

    name: str
    at_s: int


def read_stored_prices(
    folder: str | os.PathLike[str], cloud: str, region: str, days: int, now: datetime
) -> StoredPrices:
    """The versions of the last ``days``. Blocks while git reads: a second for about ten versions.

    Raises:
        DataError: no git, no clone, or no version that can be read.
        MissingDataError: no version of that time, or none with spot prices of the region.
    """
    clone = Path(folder)
    if not clone.is_dir():
        raise DataError(f"{folder}: no such folder; 'git clone {REPOSITORY}' makes one")
    start_s = int((now - timedelta(days=days)).timestamp())
    stored = [v for v in _versions(clone, cloud) if v.at_s <= now.timestamp()]
    recent = [v for v in stored if v.at_s >= start_s]
    if not recent:
        newest = (
            f"the newest is of {_time(stored[-1].at_s):%Y-%m-%d}"
            if stored
            else f"it has no catalogs/v*/{cloud}/vms.csv"
        )
        raise MissingDataError(f"{folder}: no stored prices of the last {days} days: {newest}; 'git pull' there")
    earlier = stored[-len(recent) - 1 : -len(recent)]  # what held when the window began
    changes: dict[str, dict[str, list[list[int | str]]]] = {}
    sold: dict[str, dict[str, int]] = {}
    refused: dict[str, int] = {}
    read: list[_Stored] = []
    for version, text in _contents(clone, [*earlier, *recent]):
        try:
            found = _prices(text, region, refused)
        except csv.Error:
            found = None
        if found is None:
            refused["unreadable version"] = refused.get("unreadable version", 0) + 1
            continue
        if version.at_s >= start_s:
            read.append(version)
        for (name, zone), price in found.items():
            points = changes.setdefault(name, {}).setdefault(zone, [])
            if not points or points[-1][1] != price:
                points.append([version.at_s, price])
            if version.at_s >= start_s:
                zones = sold.setdefault(name, {})
                zones[zone] = zones.get(zone, 0) + 1
    if not read:
        raise DataError(f"{folder}: none of {len(recent)} versions of {cloud}/vms.csv can be read")
    if not sold:
        raise MissingDataError(f"{folder}: {len(read)} versions of {cloud}/vms.csv have no spot prices of {region}")
    first, last = _time(read[0].at_s), _time(read[-1].at_s)
    signal = Signal(f"{HISTORY}:{days}", region, last, SOURCE, changes, refused, origin="cache")
    return StoredPrices(signal, len(read), sold, first, last)


def _versions(clone: Path, cloud: str) -> list[_Stored]:
    """All versions, the oldest first; of a commit that changes several schemas, the newest schema's."""
    pattern = f":(glob)catalogs/v*/{cloud}/vms.csv"
    # --raw names the object of each file, so that contents need no path; merges are followed to where they come from.
    words = ["log", "--raw", "--no-abbrev", "--no-renames", "--diff-filter=AM", "--format=at %ct", "--", pattern]
    found: dict[tuple[int, int], _Stored] = {}
    commit = at_s = 0
    best = -1
    for line in _git(clone, words).decode("utf-8", "replace").splitlines():
        if line.startswith("at "):
            commit, at_s, best = commit + 1, int(line[3:]), -1
        elif line.startswith(":"):
            facts, _, path = line.partition("\t")
            schema = _VERSION.fullmatch(path)
            if schema is not None and int(schema[1]) > best:
                best = int(schema[1])
                found[at_s, commit] = _Stored(facts.split(" ")[3], at_s)
    return [found[key] for key in sorted(found, key=lambda k: (k[0], -k[1]))]  # git lists the newest first


def _contents(clone: Path, stored: Sequence[_Stored]) -> Iterator[tuple[_Stored, str]]:
    """Each version with its text, one after the other: a version has megabytes."""
    for version in stored:
        yield version, _git(clone, ["cat-file", "blob", version.name]).decode("utf-8", "replace")


def _prices(text: str, region: str, refused: dict[str, int]) -> dict[tuple[str, str], str] | None:
    """Spot prices by type and zone, of a region; None if it is no such file."""
    header, _, rest = text.lstrip("\ufeff").partition("\n")
    names = next(csv.reader([header]), [])
    if any(column not in names for column in _COLUMNS):
        return None
    places = [names.index(column) for column in _COLUMNS]
    # Parsing a line takes ten times as long as looking for the region's name in it.
    wanted = f",{region},"
    found: dict[tuple[str, str], str] = {}
    for row in csv.reader(line for line in rest.splitlines() if wanted in line):
        if len(row) != len(names):
            refused["broken row"] = refused.get("broken row", 0) + 1
            continue
        name, where, zone, spot = (row[place].strip() for place in places)
        if where != region or not name or not spot:
            continue
        price = _amount(spot)
        if price is None:
            refused["price not above 0"] = refused.get("price not above 0", 0) + 1
        elif (name, zone) in found and found[name, zone] != price:
            refused["doubled row"] = refused.get("doubled row", 0) + 1
        else:
            found[name, zone] = price
    return found


def _amount(text: str) -> str | None:
    """As signals have prices; None for what is none."""
    try:
        price = Decimal(text)
    except InvalidOperation:
        return None
    if not price.is_finite() or not 0 < price < 10**6:
        return None
    return f"{price.quantize(MICRO, rounding=ROUND_CEILING):f}".rstrip("0").rstrip(".")


def _git(clone: Path, words: Sequence[str]) -> bytes:
    """What git says of the clone. Raises DataError: no git, no repository, or no answer."""
    safe = ["-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false"]
    try:
        done = subprocess.run(
            ["git", *safe, "-C", str(clone), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
            env=_offline(os.environ),
        )
    except FileNotFoundError:
        raise DataError(f"{clone}: git is not installed, which reads its stored versions") from None
    except subprocess.TimeoutExpired:
        raise DataError(f"{clone}: git has not answered for {_LIMIT_S:.0f} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
        raise DataError(f"{clone}: {lines[0] if lines else f'git ended with code {done.returncode}'}")
    return done.stdout


def _offline(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables with which git asks nobody, and reads no other repository."""
    kept = {k: v for k, v in environ.items() if not k.startswith("GIT_")}
    return {**kept, "GIT_ALLOW_PROTOCOL": "", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


def _time(at_s: int) -> datetime:
    return datetime.fromtimestamp(at_s, timezone.utc)
