"""Past spot prices without an account: stored versions of skypilot-catalog in a clone of its repository.

The repository (github.com/skypilot-org/skypilot-catalog) keeps ``catalogs/v8/CLOUD/vms.csv``, which
is rewritten every few hours; each commit is a version. Versions are read and checked as the file of
today is (:mod:`deepvm.catalog.public`). A zone in which a type has no spot price sold none on the
spot market then. Nothing is fetched.
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
"""The catalog is rewritten every seven hours; less than this is no gap worth a note."""
# A change of a plain file: links and submodules hold no prices.
_CHANGE = re.compile(r":\d+ 100(?:644|755) \w+ (\w+) \w\tcatalogs/v(\d{1,4})/.+", re.ASCII)
_OFFLINE = {
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}

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
class _Version:
    """Object name of the file, and when it was committed, seconds since 1970."""

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
    versions = [v for v in clone.versions(cloud) if v.at_s <= now.timestamp()]
    recent = [v for v in versions if v.at_s >= start_s]
    if not recent:
        newest = f"it has no catalogs/v*/{cloud}/vms.csv"
        if versions:
            newest = f"the newest is of {_time(versions[-1].at_s):%Y-%m-%d}"
        raise MissingDataError(
            f"{folder}: no stored prices of the last {days} days: {newest}; 'git pull' there"
        )
    progress(f"reading {counted(len(recent), 'stored version')} of {folder}")
    earlier = versions[-len(recent) - 1 : -len(recent)]  # what held when the window began
    histories = {region: _History(cloud, region) for region in regions}
    for version in [*earlier, *recent]:
        head, lines = _lines(clone.content(version))
        for history in histories.values():
            history.add(version, head, lines, counts=version.at_s >= start_s)
    if not any(history.times for history in histories.values()):
        raise DataError(f"{folder}: none of {len(recent)} versions of {cloud}/vms.csv can be read")
    return {
        region: history.prices(folder, days, now, complete=bool(earlier))
        for region, history in histories.items()
    }


def _lines(body: bytes | None) -> tuple[bytes, list[bytes]]:
    """The header of a version and its lines; nothing of one that is too large or breaks off."""
    if body is None or len(body) > MOST_BYTES or not body.endswith(b"\n"):
        return b"", []
    head, *lines = body.splitlines(keepends=True)
    return head, lines


class _History:
    """Versions of one region, from the oldest to the newest, put together."""

    def __init__(self, cloud: str, region: str) -> None:
        self.cloud = cloud
        self.region = region
        self.changes: Changes = {}
        self.sold: dict[str, dict[str, int]] = {}
        self.gone: dict[str, dict[str, list[int]]] = {}
        self.refused: Counter[str] = Counter()
        self.times: list[int] = []
        self._before: frozenset[tuple[str, str]] = frozenset()

    def add(self, version: _Version, head: bytes, lines: Sequence[bytes], *, counts: bool) -> None:
        """Add a version; ``counts``: whether it is of the wanted time."""
        # To check a row takes a hundred times as long as to look for a region's name in it.
        region = self.region.encode()
        prices = self._prices(head + b"".join(line for line in lines if region in line.lower()))
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

    def _prices(self, body: bytes) -> dict[tuple[str, str], str] | None:
        """Spot prices by type and zone; None if it is no such file."""
        try:
            rows = list(CATALOG.parse(body, self.cloud))
            if not rows:
                return {}
            checked = check(rows)
        except DataError:
            return None
        for place, reasons in checked.refused.items():
            if place.region in ("", self.region):
                self.refused.update(reasons)
        here = [o for o in checked.offers if o.region == self.region]
        return {(o.instance_type, o.zone): o.spot for o in here if o.spot is not None}

    def prices(
        self, folder: str | os.PathLike[str], days: int, now: datetime, *, complete: bool
    ) -> StoredPrices | MissingDataError:
        """What the versions say; ``complete``: one is older than the window."""
        versions = len(self.times)
        if not self.sold:
            what = f"{versions} versions of {self.cloud}/vms.csv"
            return MissingDataError(f"{folder}: {what} have no spot prices of {self.region}")
        first = _time(self.times[0])
        last = _time(self.times[-1])
        kind = f"{HISTORY}:{days}"
        refused = dict(self.refused)
        signal = Signal(kind, self.region, last, SOURCE, self.changes, refused, origin="cache")
        notes = []
        if not complete and first - (now - timedelta(days=days)) > _GAP:
            held = f"{(now - first) / timedelta(days=1):.1f} days, not {days}"
            older = "'git fetch --unshallow' there brings older ones"
            notes.append(f"{folder} holds prices of the last {held}: {older}")
        if now - last > _GAP:
            newest = f"the newest version in {folder} is of {last:%Y-%m-%d}"
            notes.append(f"{newest}: 'git pull' there brings newer")
        if self.refused[UNREADABLE]:
            unreadable = counted(self.refused[UNREADABLE], "version")
            notes.append(f"{folder}: {unreadable} besides {versions} could not be read")
        return StoredPrices(signal, versions, self.sold, first, last, self.gone, tuple(notes))


class _Clone:
    """A clone that git reads; all of it within minutes."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder; 'git clone {REPOSITORY}' makes one")
        self.folder = folder
        self._until_s = time.monotonic() + _LIMIT_S

    def versions(self, cloud: str) -> list[_Version]:
        """All versions, the oldest first: none of a schema that was replaced before."""
        shape = ["--format=@%ct", "--raw", "--root", "--no-renames", "--no-abbrev"]
        pattern = f":(top,glob)catalogs/v*/{cloud}/vms.csv"
        text = self._git("log", "--no-show-signature", *shape, "--", pattern).decode()
        at_s = 0
        newest = 0
        schemas: list[tuple[int, _Version]] = []
        for line in text.splitlines():
            if line.startswith("@"):
                at_s = int(line[1:])
            elif change := _CHANGE.fullmatch(line):
                schemas.append((int(change[2]), _Version(change[1], at_s)))
        versions: dict[int, _Version] = {}
        # Git lists the newest first; a stable sort keeps its order among commits of one second.
        for schema, version in sorted(reversed(schemas), key=lambda one: one[1].at_s):
            if schema >= newest:
                newest = schema
                versions[version.at_s] = version  # of one commit the newest schema's
        return list(versions.values())

    def content(self, version: _Version) -> bytes:
        """The text of a version."""
        return self._git("cat-file", "blob", version.name)

    def _git(self, *words: str) -> bytes:
        """What git says of the clone. Raises DataError: no git, no repository, or no answer."""
        environ = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        command = ["git", "--no-pager", "-c", "color.ui=false", "-C", str(self.folder), *words]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                timeout=max(self._until_s - time.monotonic(), 0.001),
                env=environ | _OFFLINE,
            )
        except FileNotFoundError:
            raise DataError(f"{self.folder}: git is not installed") from None
        except subprocess.TimeoutExpired:
            raise DataError(f"{self.folder}: git has not read it within {_LIMIT_S:.0f} s") from None
        if done.returncode:
            reason = next(iter(done.stderr.decode("utf-8", "replace").splitlines()), "git failed")
            raise DataError(f"{self.folder}: {reason}; 'git clone {REPOSITORY}' makes a clone")
        return done.stdout


def _time(at_s: int) -> datetime:
    return datetime.fromtimestamp(at_s, timezone.utc)
