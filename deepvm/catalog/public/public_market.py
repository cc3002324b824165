"""Prices of public catalogs: from the source's own cache, or downloaded, all regions at once.

Each source keeps what it said in a cache of its own, next to that of the cloud's API: where they
disagree both stay, and the newer one is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from deepvm.catalog.price_sources import SOURCES
from deepvm.catalog.public.registry import source
from deepvm.catalog.public.source import KINDS, DownloadTimeouts, PublicSource
from deepvm.catalog.published.instance_networks import bandwidths
from deepvm.catalog.signals.cache import Cache, default_folder
from deepvm.catalog.signals.cloud import Cloud
from deepvm.catalog.signals.daemon_pool import run_in_daemons
from deepvm.catalog.signals.fetching import (
    SLOW_REASONS,
    Outcome,
    SignalRequest,
    recent_failures,
    remember_failures,
)
from deepvm.catalog.signals.resolve import PriceSource, Quotes
from deepvm.catalog.signals.signal import REGIONS, SPECS, Signal
from deepvm.errors import CloudError, DeepVMError, RequestError

if TYPE_CHECKING:
    from deepvm.catalog.public.source import Get

AUTO = "auto"
NONE = "none"
OFF = "none"
"""Instead of a source's address: it is never asked nor read."""

QUICK_S = 2.0
"""For a command whose answer does not depend on it."""
ALONE_S = 20.0
"""For a command that has no other prices."""
SLOW_S = 120.0
"""For a command that asks for prices of this source."""
_READING_S = 5.0
"""For reading a file after it came, which takes a second for AWS's."""

_FILE = SignalRequest("all-regions", REGIONS)
"""Where what concerns the whole file is kept; no region has this name."""

Signals = dict[SignalRequest, Signal]


@dataclass
class PublicCatalog(PriceSource):
    """What one public catalog says of one cloud.

    Attributes:
        cache: the source's own. get: another way to download.
        wait_s: how long its file may take to come; 0: only what is kept counts.
        failures: where slow failures of the source are remembered, of all clouds together: it is
            waited for once.
        error: why its last answer is missing.
    """

    source: PublicSource
    cloud: Cloud
    cache: Cache
    now: datetime
    wait_s: float = 0.0
    get: Get | None = None
    progress: Callable[[str], None] = lambda _: None
    failures: Cache | None = None
    error: CloudError | None = None
    settles: ClassVar[bool] = False

    def fetch(self, requests: Sequence[SignalRequest]) -> Quotes:
        requests = [r for r in requests if r.kind in KINDS]
        signals = self.latest([*dict.fromkeys(r.region for r in requests)]) if requests else {}
        errors = dict.fromkeys(requests, self.error) if self.error is not None else {}
        return Quotes({r: self._completed(signals[r]) for r in requests if r in signals}, errors)

    def kept(self, regions: Sequence[str]) -> Signals:
        """What is in the cache, however old."""
        requests = [SignalRequest(r, k) for r in regions for k in KINDS]
        stored = {r: self.cache.read(r.region, r.kind, self.now) for r in requests}
        return {r: s for r, s in stored.items() if s is not None}

    def about(self) -> Signal | None:
        """Which regions the file held when it was last fetched; None if it never was."""
        return self.cache.read(_FILE.region, REGIONS, self.now)

    def regions(self) -> tuple[str, ...]:
        about = self.about()
        return () if about is None else tuple(about.data)

    def latest(self, regions: Sequence[str]) -> Signals:
        """What is in the cache if that is fresh in every region, else what the source says."""
        kept = self.kept(regions)
        if not self.wait_s or self._is_fresh(kept, regions):
            return kept
        self.error = self._known_failure()
        fetched = {} if self.error else self._fetch_within(self.wait_s, regions)
        return kept if self.error else fetched

    def refresh(
        self,
        first: Sequence[str] = (),
        timeouts: DownloadTimeouts = DownloadTimeouts(),  # noqa: B008
    ) -> Signals:
        """Download the file and keep all its regions, those named ``first`` before the others."""
        self.error = None
        try:
            return self._keep(self._read(timeouts), first)
        except CloudError as error:
            self._fail(error)
        except RequestError:
            raise  # a setting is wrong
        except DeepVMError as error:
            self._fail(self._unusable(str(error)))
        except Exception as error:
            # A bug in a reader costs only its source.
            detail = f"internal error while reading the file: {type(error).__name__}"
            self._fail(self._unusable(detail))
        return {}

    def _read(self, timeouts: DownloadTimeouts) -> list[Signal]:
        # Most commands read the cache, and need nothing of this.
        from deepvm.catalog.public.as_signals import readings
        from deepvm.catalog.public.download import download
        from deepvm.catalog.public.integrity import check

        file = self.source.fetch(self.cloud.name, self.get or download, timeouts)
        checked = check(self.source.parse(file.body, self.cloud.name))
        written = file.written_at or self.source.ended.get(self.cloud.name)
        observed = min(written or self.source.earliest(self.now), self.now)
        dated = written is not None
        title = self.source.title
        return [
            Signal(kind, region, observed, title, r.data, r.refused, dated=dated)
            for region, by_kind in readings(checked).items()
            for kind, r in by_kind.items()
        ]

    def _keep(self, signals: Sequence[Signal], first: Sequence[str]) -> Signals:
        for signal in sorted(signals, key=lambda s: s.region not in first):
            self.cache.write(signal, self.now)
        # Last: while it is old, the next command asks again.
        regions = list(dict.fromkeys(s.region for s in signals))
        about = replace(signals[0], kind=REGIONS, region=_FILE.region, data=regions, refused={})
        self.cache.write(about, self.now)
        return {SignalRequest(s.region, s.kind): s for s in signals}

    def _fetch_within(self, wait_s: float, regions: Sequence[str]) -> Signals:
        """Like ``refresh``, in a thread: looking up the server's name can take longer."""
        # The built-in one from Python 3.11 on
        from concurrent.futures import TimeoutError as LateError

        self.progress(f"asking {self.source.title} for prices of {self.cloud.name}")
        timeouts = DownloadTimeouts(min(wait_s, 10.0), min(wait_s, 60.0))
        # A copy: one that is given up may set its error much later.
        other = replace(self)
        (future,) = run_in_daemons(lambda r: other.refresh(r, timeouts), [regions], 1, "public")
        signals: Signals = {}
        try:
            signals = future.result(wait_s + _READING_S)
            if other.error is not None and other.error.why in SLOW_REASONS:
                self.error = self._may_wait_longer(other.error)
            else:
                self.error = other.error
        except LateError:
            late = f"no answer within {wait_s:g} s"
            self._fail(CloudError(self.source.title, "timeout", late, ""))
        return signals

    def _known_failure(self) -> CloudError | None:
        error = recent_failures(self.failures or self.cache, _FILE.region, self.now).get(REGIONS)
        return None if error is None else self._may_wait_longer(error)

    def _may_wait_longer(self, error: CloudError) -> CloudError:
        command = f"deepvm catalog refresh --source {self.source.name} --cloud {self.cloud.name}"
        advice = f"'{command}' waits longer"
        return CloudError(self.source.title, error.why, error.detail, advice)

    def _is_fresh(self, kept: Signals, regions: Sequence[str]) -> bool:
        about = self.about()
        if about is None or about.origin != "cache":
            return False
        return all(SignalRequest(r, SPECS) in kept for r in regions if r in about.data)

    def _unusable(self, detail: str) -> CloudError:
        advice = "what was fetched before stays; try again later"
        return CloudError(self.source.title, "reply", detail, advice)

    def _fail(self, error: CloudError) -> None:
        """What fails slowly is remembered for a while: not every command waits for it."""
        self.error = error
        failures = self.failures or self.cache
        remember_failures(failures, [Outcome(_FILE, None, error)], self.now)

    def _completed(self, signal: Signal) -> Signal:
        """Specifications with what vendors, a type's name and the snapshot say beyond the catalog."""
        if signal.kind != SPECS:
            return signal
        known: dict[str, Any] = {}
        for region in self.cloud.snapshot_regions():
            embedded = self.cloud.snapshot(region).get(SPECS)
            known |= embedded.data if embedded else {}
        data = {}
        for name, spec in signal.data.items():
            facts = {**bandwidths(self.cloud.name, name), **self.cloud.facts_of(name)}
            data[name] = {**spec, **facts, **known.get(name, {})}
        return replace(signal, data=data)


def wanted_source(named: str) -> str:
    """The source that is named, else ``auto``. Raises RequestError."""
    if named not in ("", AUTO, NONE, *SOURCES):
        raise RequestError("source", named, " or ".join((AUTO, NONE, *SOURCES)))
    return named or AUTO


def public_catalogs(
    cloud: Cloud,
    wanted: str,
    now: datetime,
    progress: Callable[[str], None] = lambda _: None,
) -> list[PublicCatalog]:
    """The public catalogs of a cloud, in the order in which they are asked.

    Raises RequestError: the wanted one is switched off.
    """
    names = {NONE: [], AUTO: [*SOURCES]}.get(wanted, [wanted])
    known = [s for s in map(source, names) if os.environ.get(s.variable) != OFF]
    if names == [wanted] and not known:
        variable = source(wanted).variable
        raise RequestError("source", wanted, f"one that {variable} does not switch off")
    # Sources that still renew their file are asked before others
    known.sort(key=lambda s: cloud.name in s.ended)
    return [
        PublicCatalog(
            s, cloud, cache_of(cloud.name, s), now, progress=progress, failures=cache_of("aws", s)
        )
        for s in known
        if cloud.name in s.clouds
    ]


def cache_of(cloud: str, source: PublicSource) -> Cache:
    """The cache of what a source says of a cloud."""
    folder = default_folder(os.environ, cloud)
    own = None if folder is None else folder / f"source_{source.name}"
    return Cache(own, "public", source.period_s)
