"""Prices of public catalogs: from the source's own cache, or downloaded, all regions at once."""

import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

from deepvm.catalog.price_sources import SOURCES, PublicSource
from deepvm.catalog.published.hardware import bandwidths
from deepvm.catalog.signals import fetching
from deepvm.catalog.signals.cache import Cache, default_folder
from deepvm.catalog.signals.cloud import Cloud
from deepvm.catalog.signals.fetching import PriceSource, Quotes, SignalRequest, run_in_daemons
from deepvm.catalog.signals.signal import OFFERINGS, ON_DEMAND, REGIONS, SPECS, SPOT, Signal
from deepvm.core.progress import Say
from deepvm.errors import CloudError, RequestError
from deepvm.records import dataclass, replace

if TYPE_CHECKING:
    from deepvm.catalog.public.download import DownloadedFile

KINDS = (SPECS, OFFERINGS, ON_DEMAND, SPOT)  # The kinds of signals that a public catalog can give
AUTO = "auto"
NONE = "none"
OFF = "none"  # Value of a source's address variable that switches the source off
QUICK_S = 2.0  # Wait of a command that has other prices
ALONE_S = 20.0  # Wait of a command that has no other prices
SLOW_S = 120.0  # Wait of a command that asks for this source
_READING_S = 5.0  # Extra time to parse a file, which takes a second for AWS's
# Key of the cached facts about the whole file; no region has this name
_FILE = SignalRequest("all-regions", REGIONS)

Signals = dict[SignalRequest, Signal]


@dataclass
class PublicCatalog(PriceSource):
    """The prices that one public catalog has of one cloud."""

    source: PublicSource
    cloud: Cloud
    cache: Cache  # the source's own
    failures: Cache  # of the source, for all clouds: it is waited for once
    now: datetime
    progress: Say = lambda _: None
    wait_s: float = 0.0  # for its file; 0: only what is kept counts
    error: CloudError | None = None  # why its last answer is missing
    settles = False

    def fetch(self, requests: Sequence[SignalRequest]) -> Quotes:
        requests = [r for r in requests if r.kind in KINDS]
        if not requests:
            return Quotes()
        signals = self.latest([*dict.fromkeys(r.region for r in requests)])
        errors = {r: self.error for r in requests if self.error is not None}
        return Quotes({r: self._completed(signals[r]) for r in requests if r in signals}, errors)

    def about(self) -> Signal | None:
        """Which regions the file held when it was last fetched; None if it never was."""
        return self.cache.read(_FILE.region, REGIONS, self.now)

    def regions(self) -> tuple[str, ...]:
        about = self.about()
        if about is None:
            return ()
        return tuple(about.data)

    def latest(self, regions: Sequence[str]) -> Signals:
        kept = {}
        for request in (SignalRequest(r, k) for r in regions for k in KINDS):
            signal = self.cache.read(*request, self.now)
            if signal is not None:
                kept[request] = signal
        if not self.wait_s:
            return kept
        about = self.about()
        if about is not None and about.origin == "cache":
            known = {*regions}.intersection(about.data)
            if all(SignalRequest(r, SPECS) in kept for r in known):
                return kept
        signals: Signals = {}
        self.error = fetching.recent_failure(self.failures, _FILE, self.now)
        if self.error is None:
            signals = self._fetch_within(self.wait_s, regions)
        if self.error is not None and self.error.why in fetching.SLOW_REASONS:
            self.error = CloudError(
                self.source.title,
                self.error.why,
                self.error.detail,
                f"'deepvm catalog refresh --source {self.source.name} --cloud {self.cloud.name}'"
                " waits longer",
            )
        return signals or kept

    def refresh(self, first: Sequence[str] = (), total_s: float = 60.0) -> Signals:
        self.error = None
        try:
            signals = self._read(total_s)
        except RequestError:
            raise  # a setting is wrong
        except Exception as error:
            self._remember(
                fetching.failure_of(
                    self.source.title, error, "what was fetched before stays; try again later"
                )
            )
        else:
            for signal in sorted(signals, key=lambda s: s.region not in first):
                self.cache.write(signal, self.now)
            # Last, after all signals: if this is interrupted, the next command downloads again.
            regions = list(dict.fromkeys(s.region for s in signals))
            about = replace(signals[0], kind=REGIONS, region=_FILE.region, data=regions, refused={})
            self.cache.write(about, self.now)
            return {SignalRequest(s.region, s.kind): s for s in signals}
        return {}

    def _read(self, total_s: float) -> list[Signal]:
        # Imported here: most commands only read the cache.
        from deepvm.catalog.public.offers import check, signals_of

        reader: Any = import_module(f"deepvm.catalog.public.{self.source.name}")
        file: DownloadedFile = reader.fetch(self.source, self.cloud.name, total_s)
        table = check(reader.parse(file.body, self.cloud.name))
        written = file.written_at
        if written is None and self.cloud.name in self.source.ended:
            written = datetime.fromisoformat(self.source.ended[self.cloud.name])
        # A file without a date may be due to be renewed.
        earliest = self.now - timedelta(seconds=self.source.period_s)
        observed = min(written or earliest, self.now)
        dated = written is not None
        return signals_of(table, observed_at=observed, source=self.source.title, dated=dated)

    def _fetch_within(self, wait_s: float, regions: Sequence[str]) -> Signals:
        # The built-in one from Python 3.11 on
        from concurrent.futures import TimeoutError as LateError

        self.progress(f"asking {self.source.title} for prices of {self.cloud.name}")
        # A copy: after a timeout the thread may set its error much later.
        other = replace(self)
        total_s = min(wait_s, 60.0)
        (future,) = run_in_daemons(lambda r: other.refresh(r, total_s), [regions], 1, "public")
        try:
            signals = future.result(wait_s + _READING_S)
        except LateError:
            self._remember(
                CloudError(self.source.title, "timeout", f"no answer within {wait_s:g} s", "")
            )
            return {}
        self.error = other.error
        return signals

    def _remember(self, error: CloudError) -> None:
        self.error = error
        fetching.remember_failure(self.failures, _FILE, error, self.now)

    def _completed(self, signal: Signal) -> Signal:
        if signal.kind != SPECS:
            return signal
        signal = with_facts(self.cloud, signal)
        if not self.cloud.has_api:
            return signal
        known: dict[str, Any] = {}
        for region in self.cloud.snapshot_regions():
            known |= self.cloud.snapshot(region)[SPECS].data
        data = {name: {**spec, **known.get(name, {})} for name, spec in signal.data.items()}
        return replace(signal, data=data)


def with_facts(cloud: Cloud, specs: Signal) -> Signal:
    """Specifications with what other pages say of the types, such as their bandwidths."""
    data = {
        name: {**bandwidths(cloud.name, name), **cloud.facts_of(name), **spec}
        for name, spec in specs.data.items()
    }
    return replace(specs, data=data)


def wanted_source(named: str) -> str:
    """The source that is named, else ``auto``. Raises RequestError."""
    if named not in ("", AUTO, NONE, *SOURCES):
        raise RequestError("source", named, " or ".join((AUTO, NONE, *SOURCES)))
    return named or AUTO


def public_catalogs(
    cloud: Cloud, wanted: str, now: datetime, progress: Say = lambda _: None
) -> list[PublicCatalog]:
    """The public catalogs of a cloud, in the order in which they are asked."""
    names = {NONE: [], AUTO: [*SOURCES]}.get(wanted, [wanted])
    known = [s for s in map(SOURCES.__getitem__, names) if os.environ.get(s.variable) != OFF]
    if names == [wanted] and not known:
        variable = SOURCES[wanted].variable
        raise RequestError("source", wanted, f"one that {variable} does not switch off")
    # Sources that still renew their file are asked before others
    known.sort(key=lambda s: cloud.name in s.ended)
    return [
        PublicCatalog(s, cloud, cache_of(cloud.name, s), cache_of("aws", s), now, progress)
        for s in known
        if cloud.name in s.paths
    ]


def cache_of(cloud: str, source: PublicSource) -> Cache:
    """The cache of a source's prices of a cloud."""
    folder = default_folder(cloud)
    if folder is not None:
        folder /= f"source_{source.name}"
    return Cache(folder, "public", source.period_s)
