"""Past spot prices without an account: stored versions of skypilot-catalog, in a clone."""
# github.com/skypilot-org/skypilot-catalog rewrites ``catalogs/v8/CLOUD/vms.csv`` every few hours;
# each commit is a version. A zone where a type has no spot price then sold none. Nothing is
# fetched.

import os
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar

from deepvm.catalog.public.offers import check
from deepvm.catalog.public.skypilot import parse
from deepvm.catalog.signals.signal import HISTORY, Signal
from deepvm.core.json_types import JsonDict
from deepvm.core.progress import Say
from deepvm.core.units import counted
from deepvm.errors import DataError, MissingDataError
from deepvm.records import dataclass, field

REPOSITORY = "https://github.com/skypilot-org/skypilot-catalog"
UNREADABLE = "unreadable version"
_GIT_TIMEOUT_S = 300.0
# The catalog is rewritten every seven hours; less than this is no gap worth a note
_GAP = timedelta(days=1)
# A change of a plain file: links and submodules hold no prices.
_CHANGE = re.compile(r":\d+ 100(?:644|755) \w+ (\w+) \w\tcatalogs/v(\d{1,4})/.+", re.ASCII)
_OFFLINE = {
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}

Pool = tuple[str, str]  # A type in a zone


def _lists() -> defaultdict[Pool, Any]:
    return defaultdict(list)


@dataclass
class StoredPrices:
    """The spot prices of a region over time; times are seconds since 1970, oldest first."""

    source: ClassVar = "skypilot-catalog, stored versions"
    folder: str
    cloud: str
    region: str
    days: int
    changes: dict[Pool, list[tuple[int, str]]] = field(default_factory=_lists)  # prices from then
    times: list[int] = field(default_factory=list)  # of the readable versions of these days
    sold: Counter[Pool] = field(default_factory=Counter)  # in how many of them
    gone: dict[Pool, list[int]] = field(default_factory=_lists)  # when it was no longer sold
    newest: dict[Pool, str] = field(default_factory=dict)  # prices of the newest version
    refused: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    @property
    def versions(self) -> int:
        return len(self.times)

    @property
    def first(self) -> datetime:
        return datetime.fromtimestamp(self.times[0], timezone.utc)

    @property
    def last(self) -> datetime:
        return datetime.fromtimestamp(self.times[-1], timezone.utc)

    @property
    def history(self) -> Signal:
        self.check()
        data: JsonDict = defaultdict(dict)
        for name, zone in self.newest:
            data[name][zone] = self.changes[name, zone]
        kind = f"{HISTORY}:{self.days}"
        refused = dict(self.refused)
        return Signal(kind, self.region, self.last, self.source, data, refused, origin="cache")

    def check(self) -> None:
        if not self.sold:
            raise MissingDataError(
                f"{self.folder}: {self.versions} versions of {self.cloud}/vms.csv have no spot"
                f" prices of {self.region}"
            )

    def add(self, lines: Sequence[bytes], at_s: int, *, counts: bool) -> None:
        try:
            prices = self._prices(lines)
        except DataError:
            self.refused[UNREADABLE] += 1
            return
        for pool, price in prices.items():
            if self.newest.get(pool) != price:
                self.changes[pool].append((at_s, price))
        for pool in self.newest.keys() - prices.keys():
            self.gone[pool].append(at_s)
        self.newest = prices
        if counts:
            self.times.append(at_s)
            self.sold.update(prices.keys())

    def _prices(self, lines: Sequence[bytes]) -> dict[Pool, str]:
        if not lines or not lines[-1].endswith(b"\n"):
            raise DataError("the file breaks off")
        # Parsing a row takes a hundred times as long as searching it for the region's name.
        region = self.region.encode()
        of_region = [line for line in lines[1:] if region in line.lower()]
        table = parse(lines[0] + b"".join(of_region), self.cloud)
        if not of_region:
            return {}
        table = check(table)
        for (where, reason), rows in table.refused.items():
            if where in ("", self.region):
                self.refused[reason] += rows
        offers = [o for o in table.offers if o.region == self.region]
        return {(o.instance_type, o.zone): o.spot for o in offers if o.spot is not None}

    def take_notes(self, now: datetime, *, complete: bool) -> None:
        folder = self.folder
        if not complete and self.first - (now - timedelta(days=self.days)) > _GAP:
            self.notes.append(
                f"{folder} holds prices of the last {(now - self.first) / timedelta(days=1):.1f}"
                f" days, not {self.days}: 'git fetch --unshallow' there brings older ones"
            )
        if now - self.last > _GAP:
            self.notes.append(
                f"the newest version in {folder} is of {self.last:%Y-%m-%d}: 'git pull' there"
                " brings newer"
            )
        if self.refused[UNREADABLE]:
            unreadable = counted(self.refused[UNREADABLE], "version")
            self.notes.append(f"{folder}: {unreadable} besides {self.versions} could not be read")


def read_stored_prices(
    folder: str,
    cloud: str,
    regions: Sequence[str],
    days: int,
    now: datetime,
    progress: Say = lambda _: None,
) -> dict[str, StoredPrices]:
    """The versions of the last ``days`` by region, each read once; git takes 0.1 s for each."""
    start_s = int((now - timedelta(days=days)).timestamp())
    versions = [v for v in _versions(folder, cloud) if v[0] <= now.timestamp()]
    recent = [v for v in versions if v[0] >= start_s]
    if not recent:
        newest = f"it has no catalogs/v*/{cloud}/vms.csv"
        if versions:
            at = datetime.fromtimestamp(versions[-1][0], timezone.utc)
            newest = f"the newest is of {at:%Y-%m-%d}"
        raise MissingDataError(
            f"{folder}: no stored prices of the last {days} days: {newest}; 'git pull' there"
        )
    progress(f"reading {counted(len(recent), 'stored version')} of {folder}")
    earlier = versions[-len(recent) - 1 : -len(recent)]  # what held when the window started
    prices = {region: StoredPrices(folder, cloud, region, days) for region in regions}
    for at_s, name in [*earlier, *recent]:
        lines = _git(folder, "cat-file", "blob", name).splitlines(keepends=True)
        for stored in prices.values():
            stored.add(lines, at_s, counts=at_s >= start_s)
    if not any(stored.times for stored in prices.values()):
        raise DataError(f"{folder}: none of {len(recent)} versions of {cloud}/vms.csv can be read")
    for stored in filter(lambda one: one.times, prices.values()):
        stored.take_notes(now, complete=bool(earlier))
    return prices


def _versions(folder: str, cloud: str) -> list[tuple[int, str]]:
    shape = ["--format=@%ct", "--raw", "--root", "--no-renames", "--no-abbrev"]
    pattern = f":(top,glob)catalogs/v*/{cloud}/vms.csv"
    text = _git(folder, "log", "--no-show-signature", *shape, "--", pattern).decode()
    at_s = 0
    changes: list[tuple[int, int, str]] = []
    for line in text.splitlines():
        if line.startswith("@"):
            at_s = int(line[1:])
        elif change := _CHANGE.fullmatch(line):
            changes.append((at_s, int(change[2]), change[1]))
    newest = 0
    versions: dict[int, str] = {}
    # Git lists the newest first; a stable sort keeps its order among commits of one second.
    for at_s, schema, name in sorted(reversed(changes), key=lambda change: change[0]):
        if schema >= newest:
            newest = schema
            versions[at_s] = name  # of one commit the newest schema's
    return list(versions.items())


def _git(folder: str, *words: str) -> bytes:
    # Without the user's GIT_ variables: GIT_DIR, for one, would name another repository.
    environ = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    command = ["git", "--no-pager", "-c", "color.ui=false", "-C", folder, *words]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_GIT_TIMEOUT_S, env=environ | _OFFLINE
        )
    except FileNotFoundError:
        raise DataError(f"{folder}: git is not installed") from None
    except subprocess.TimeoutExpired:
        raise DataError(f"{folder}: git has not read it within {_GIT_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        reason = next(iter(done.stderr.decode("utf-8", "replace").splitlines()), "git failed")
        raise DataError(f"{folder}: {reason}; 'git clone {REPOSITORY}' makes a clone")
    return done.stdout
