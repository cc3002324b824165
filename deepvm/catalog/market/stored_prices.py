"""Past spot prices without an account: the stored versions of skypilot-catalog in a clone of its repository.

The repository (github.com/skypilot-org/skypilot-catalog) keeps ``catalogs/v8/CLOUD/vms.csv``, which
is written anew every few hours; each commit is a version. Versions are read and checked as the file
of today is (:mod:`deepvm.catalog.public`). A zone in which a type has no spot price sold none on
the spot market then.

Only git is run, on the clone as it is: nothing is fetched, and nothing in it is trusted. A clone
has settings of its own, some of which name programs to run (``log.showSignature`` with
``gpg.program``): so only plumbing commands are used, which follow no such setting, and never ``git
log``.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

from deepvm.catalog.public.integrity import check
from deepvm.catalog.public.skypilot import SOURCE as CATALOG
from deepvm.catalog.signals.signal import HISTORY, Signal
from deepvm.core.units import counted
from deepvm.errors import DataError, MissingDataError

REPOSITORY = "https://github.com/skypilot-org/skypilot-catalog"
SOURCE = "skypilot-catalog, stored versions"
UNREADABLE = "unreadable version"
MOST_BYTES = 64 * 2**20
"""Of a version: that of AWS has 8 MB."""
_LIMIT_S = 300.0
_GAP = timedelta(days=1)
"""The catalog is written anew every seven hours; less than this is no gap worth words."""
_VERSION = re.compile(r"catalogs/v(\d{1,4})/[a-z0-9_-]+/vms\.csv", re.ASCII)
_FILES = ("100644", "100755")
"""Modes of plain files: links and submodules hold no prices."""

Changes = dict[str, dict[str, list[list[int | str]]]]


def _quiet(_: str) -> None: ...


@dataclass(frozen=True)
class StoredPrices:
    """The spot prices of a region over time.

    Attributes:
        signal: of the kind ``history:DAYS``. versions: how many could be read.
        sold: by type and zone, in how many of the versions there was a spot price.
        first, last: when the oldest and the newest of them were stored.
        gone: by type and zone, when a version came in which there was a spot price no longer.
        notes: what readers should know: unreadable versions, a history that is shorter than wanted,
            or old.
    """

    signal: Signal
    versions: int
    sold: Mapping[str, Mapping[str, int]]
    first: datetime
    last: datetime
    gone: Mapping[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def sold_now(self) -> Signal:
        """The signal without types in zones that sold none when the newest version was stored."""
        data: Changes = {}
        for name, zones in self.signal.data.items():
            for zone, points in zones.items():
                gone = self.gone.get(name, {}).get(zone, ())
                if not gone or gone[-1] < points[-1][0]:
                    data.setdefault(name, {})[zone] = points
        return replace(self.signal, data=data)


@dataclass(frozen=True)
class _Stored:
    """A version: object name of the file, and when it was committed, seconds since 1970."""

    name: str
    at_s: int


def read_stored_prices(
    folder: str | os.PathLike[str],
    cloud: str,
    regions: Sequence[str],
    days: int,
    now: datetime,
    progress: Callable[[str], None] = _quiet,
) -> dict[str, StoredPrices | MissingDataError]:
    """The versions of the last ``days`` by region, or that none has spot prices of it.

    Each version is read once, whatever the number of regions. Blocks while git reads: a second for
    about ten versions.

    Raises:
        DataError: no git, no clone, no version that can be read, or no end after minutes.
        MissingDataError: no version of that time.
    """
    clone = _Clone(Path(folder))
    start_s = int((now - timedelta(days=days)).timestamp())
    stored = [v for v in clone.versions(cloud) if v.at_s <= now.timestamp()]
    recent = [v for v in stored if v.at_s >= start_s]
    if not recent:
        newest = (
            f"the newest is of {_time(stored[-1].at_s):%Y-%m-%d}"
            if stored
            else f"it has no catalogs/v*/{cloud}/vms.csv"
        )
        raise MissingDataError(
            f"{folder}: no stored prices of the last {days} days: {newest}; 'git pull' there"
        )
    progress(f"reading {counted(len(recent), 'stored version')} of {folder}")
    earlier = stored[-len(recent) - 1 : -len(recent)]  # what held when the window began
    found = {region: _Found() for region in regions}
    for version in [*earlier, *recent]:
        files = _by_region(clone.content(version), regions)
        for region, one in found.items():
            one.add(
                version,
                _prices(files.get(region), cloud, region, one.refused),
                version.at_s >= start_s,
            )
    if not any(one.times for one in found.values()):
        raise DataError(f"{folder}: none of {len(recent)} versions of {cloud}/vms.csv can be read")
    return {
        region: _together(folder, cloud, region, days, now, one, not earlier)
        for region, one in found.items()
    }


def _together(
    folder: str | os.PathLike[str],
    cloud: str,
    region: str,
    days: int,
    now: datetime,
    found: _Found,
    begins: bool,
) -> StoredPrices | MissingDataError:
    """What the versions say of a region; ``begins``: none is older than the window."""
    if not found.sold:
        return MissingDataError(
            f"{folder}: {len(found.times)} versions of {cloud}/vms.csv have no spot prices of"
            f" {region}"
        )
    first, last = _time(found.times[0]), _time(found.times[-1])
    signal = Signal(
        f"{HISTORY}:{days}",
        region,
        last,
        SOURCE,
        found.changes,
        dict(found.refused),
        origin="cache",
    )
    notes = _notes(folder, signal, len(found.times), first if begins else None, now, days)
    return StoredPrices(signal, len(found.times), found.sold, first, last, found.gone, notes)


def _notes(
    folder: str | os.PathLike[str],
    signal: Signal,
    versions: int,
    first: datetime | None,
    now: datetime,
    days: int,
) -> tuple[str, ...]:
    """What is lacking; ``first``: when it begins, None where a version is older than the window."""
    notes = []
    if first is not None and first - (now - timedelta(days=days)) > _GAP:
        had = f"{(now - first) / timedelta(days=1):.1f} days, not {days}"
        notes.append(
            f"{folder} holds prices of the last {had}: 'git fetch --unshallow' there brings older"
            " ones"
        )
    if now - signal.observed_at > _GAP:
        notes.append(
            f"the newest version in {folder} is of {signal.observed_at:%Y-%m-%d}: 'git pull' there"
            " brings newer"
        )
    unreadable = signal.refused.get(UNREADABLE, 0)
    if unreadable:
        notes.append(
            f"{folder}: {counted(unreadable, 'version')} beside {versions} could not be read and"
            " are left out"
        )
    return tuple(notes)


class _Found:
    """Versions, from the oldest to the newest, put together."""

    def __init__(self) -> None:
        self.changes: Changes = {}
        self.sold: dict[str, dict[str, int]] = {}
        self.gone: dict[str, dict[str, list[int]]] = {}
        self.refused: Counter[str] = Counter()
        self.times: list[int] = []
        self._before: frozenset[tuple[str, str]] = frozenset()

    def add(
        self, version: _Stored, prices: dict[tuple[str, str], str] | None, counts: bool
    ) -> None:
        """``prices``: None for a version that cannot be read.

        ``counts``: whether it is of the wanted time.
        """
        if prices is None:
            self.refused[UNREADABLE] += 1
            return
        if counts:
            self.times.append(version.at_s)
        for (name, zone), price in prices.items():
            points = self.changes.setdefault(name, {}).setdefault(zone, [])
            if not points or points[-1][1] != price or (name, zone) not in self._before:
                points.append([version.at_s, price])
            if counts:
                zones = self.sold.setdefault(name, {})
                zones[zone] = zones.get(zone, 0) + 1
        for name, zone in self._before - prices.keys():
            self.gone.setdefault(name, {}).setdefault(zone, []).append(version.at_s)
        self._before = frozenset(prices)


def _by_region(body: bytes | None, regions: Sequence[str]) -> dict[str, bytes]:
    """A version's rows by region, each with the head; none of one that is too large.

    To check a row takes a hundred times as long as to look for a region's name in it.
    """
    if body is None:
        return {}
    head, _, rest = body.partition(b"\n")
    names = sorted(regions, key=len, reverse=True)  # europe-west12 before europe-west1
    mentioned = re.compile("|".join(map(re.escape, names)).encode(), re.IGNORECASE)
    lines: dict[str, list[bytes]] = {region: [head] for region in regions}
    for line in rest.split(b"\n"):
        for name in {word.lower().decode("ascii") for word in mentioned.findall(line)}:
            lines[name].append(line)
    end = b"\n" if body.endswith(b"\n") else b""  # without it, the file breaks off
    return {region: b"\n".join(kept) + end for region, kept in lines.items()}


def _prices(
    body: bytes | None, cloud: str, region: str, refused: Counter[str]
) -> dict[tuple[str, str], str] | None:
    """Spot prices of a region by type and zone; None if it is no such file."""
    if body is None:
        return None
    try:
        rows = list(CATALOG.parse(body, cloud))
        checked = check(rows) if rows else None
    except DataError:
        return None
    if checked is None:
        return {}
    for place, reasons in checked.refused.items():
        if place.region in ("", region):
            refused.update(reasons)
    return {
        (o.instance_type, o.zone): o.spot
        for o in checked.offers
        if o.region == region and o.spot is not None
    }


class _Clone:
    """A clone that git reads; all of it within minutes."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder; 'git clone {REPOSITORY}' makes one")
        self.folder = folder
        self._until_s = time.monotonic() + _LIMIT_S

    def versions(self, cloud: str) -> list[_Stored]:
        """All versions, the oldest first: of each commit the newest schema's, and none of a schema already replaced."""
        pattern = f":(top,glob)catalogs/v*/{cloud}/vms.csv"
        commits = (
            self._git(["rev-list", "--timestamp", "HEAD", "--", pattern])
            .decode("ascii", "replace")
            .split()
        )
        times = dict(zip(commits[1::2], map(int, commits[::2]), strict=True))
        words = ["diff-tree", "--stdin", "-r", "--root", "--raw", "--no-renames", "--no-abbrev"]
        lines = self._git(
            [*words, "--no-ext-diff", "--no-textconv", "--", pattern],
            "\n".join(times).encode() + b"\n",
        )
        found: dict[str, tuple[int, _Stored]] = {}
        commit = ""
        for line in lines.decode("utf-8", "replace").splitlines():
            if not line.startswith(":"):
                commit = line.strip()
                continue
            facts, _, path = line.partition("\t")
            _, mode, _, name, _ = facts.split(" ")
            schema = _VERSION.fullmatch(path)
            if schema is not None and mode in _FILES:
                known = found.get(commit)
                if known is None or known[0] < int(schema[1]):
                    found[commit] = int(schema[1]), _Stored(name, times[commit])
        newest, kept = 0, []
        # Git lists the newest first; a stable sort keeps its order among commits of one second.
        for schema_number, version in sorted(reversed(found.values()), key=lambda one: one[1].at_s):
            if schema_number >= newest:
                newest = schema_number
                kept.append(version)
        return kept

    def content(self, version: _Stored) -> bytes | None:
        """The text of a version; None for one that is too large.

        One at a time: a version has megabytes.
        """
        size = int(self._git(["cat-file", "-s", version.name]))
        return None if size > MOST_BYTES else self._git(["cat-file", "blob", version.name])

    def _git(self, words: Sequence[str], asked: bytes = b"") -> bytes:
        """What git says of the clone. Raises DataError: no git, no repository, or no answer."""
        safe = [
            "-c",
            "core.hooksPath=/dev/null",
            "-c",
            "core.fsmonitor=false",
            "-c",
            "core.quotePath=false",
        ]
        try:
            done = subprocess.run(
                ["git", "--no-pager", *safe, "-C", str(self.folder), *words],
                input=asked,
                capture_output=True,
                timeout=max(self._until_s - time.monotonic(), 0.001),
                env=_offline(os.environ),
            )
        except FileNotFoundError:
            raise DataError(
                f"{self.folder}: git is not installed, which reads its stored versions"
            ) from None
        except subprocess.TimeoutExpired:
            raise DataError(f"{self.folder}: git has not read it within {_LIMIT_S:.0f} s") from None
        if done.returncode:
            lines = [
                line for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip()
            ]
            why = lines[0] if lines else f"git ended with code {done.returncode}"
            if "not a git repository" in why:
                why = f"not a clone; 'git clone {REPOSITORY}' makes one"
            if "bad revision 'HEAD'" in why:
                why = f"a repository without commits; 'git clone {REPOSITORY}' makes one with them"
            if "dubious ownership" in why:
                why += (
                    "; if you trust it: 'git config --global --add safe.directory"
                    f" {self.folder.resolve()}'"
                )
            raise DataError(f"{self.folder}: {why}")
        return done.stdout


def _offline(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables with which git asks nobody, and reads no other repository.

    The user's own settings stay: they say which folders of others are safe.
    """
    kept = {k: v for k, v in environ.items() if not k.startswith("GIT_")}
    return {
        **kept,
        "GIT_ALLOW_PROTOCOL": "",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }


def _time(at_s: int) -> datetime:
    return datetime.fromtimestamp(at_s, timezone.utc)
