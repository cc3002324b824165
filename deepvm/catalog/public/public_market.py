"""Prices of public catalogs as signals: from the source's own cache, or downloaded, all regions of a file at once.

Each source keeps what it said in a cache of its own, beside that of the cloud's API: where they
disagree both stay, and the newer one is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from threading import Event
from typing import TYPE_CHECKING

from deepvm.catalog.public.source import KINDS, DownloadTimeouts, PublicSource
from deepvm.catalog.signals.cache import CLOCK_SKEW, Cache
from deepvm.catalog.signals.daemon_pool import run_in_daemons
from deepvm.catalog.signals.fetching import SLOW_REASONS, recent_failures
from deepvm.catalog.signals.signal import FAILURES, REGIONS, SPECS, Signal
from deepvm.errors import CloudError, DeepVMError, RequestError

if TYPE_CHECKING:
    from deepvm.catalog.public.source import Get

QUICK_S = 2.0
"""For a command whose answer does not depend on it."""
QUICK = DownloadTimeouts(QUICK_S + 1, QUICK_S + 1)
"""Longer than it is waited for: or either could give up first, each with other words."""
ALONE_S = 20.0
"""For a command that has no other prices."""
SLOW_S = 120.0
"""For a command that asks for prices of this source."""
_READING_S = 15.0
"""For reading a file that is here, which takes a second for AWS's: giving it up would mean to fetch it every time."""

_NO_ANSWER = ("network", "timeout")
_FILE = "all-regions"
"""Where what concerns the whole file is kept; no region has this name."""


@dataclass(frozen=True)
class Found:
    """Signals by region and kind, and why others are missing."""

    signals: Mapping[str, Mapping[str, Signal]] = field(default_factory=dict)
    error: CloudError | None = None

    def of(self, region: str, kind: str) -> Signal | None:
        """A signal, None if there is none."""
        return self.signals.get(region, {}).get(kind)


@dataclass(frozen=True)
class PublicMarket:
    """What one source says of one cloud.

    ``cache`` is the source's own, ``get`` another way to download. ``silent``: why sources gave no
    answer in time, by
    name: they are waited for once, whatever else the command asks of them.
    """

    source: PublicSource
    cloud: str
    cache: Cache
    now: datetime
    get: Get | None = None
    progress: Callable[[str], None] = lambda _: None
    silent: dict[str, CloudError] = field(default_factory=dict, compare=False)

    def kept(self, regions: Sequence[str]) -> Found:
        """What is in the cache, however old."""
        read = {r: {k: self.cache.read(r, k, self.now) for k in KINDS} for r in regions}
        return Found(
            {r: {k: s for k, s in kinds.items() if s is not None} for r, kinds in read.items()}
        )

    def about(self) -> Signal | None:
        """Which regions the file held when it was last fetched, and when that was.

        None if it never was.
        """
        return self.cache.read(_FILE, REGIONS, self.now)

    def regions(self) -> tuple[str, ...]:
        """The regions that were in the file when it was last fetched, sorted."""
        about = self.about()
        return () if about is None else tuple(about.data)

    def latest(self, regions: Sequence[str], wait_s: float = QUICK_S) -> Found:
        """What is in the cache if that is fresh in every region, else what the source says.

        ``wait_s``: how long its file may take to come; reading it is not counted.
        """
        kept = self.kept(regions)
        if self._is_fresh(kept, regions):
            return kept
        if (silent := self.silent.get(self.source.name)) is not None:
            # It was asked for another cloud's file.
            advice = self._waits_longer if silent.why == "timeout" else silent.advice
            return Found(
                kept.signals, CloudError(self.source.title, silent.why, silent.detail, advice)
            )
        if (failed := recent_failures(self.cache, _FILE, self.now).get(REGIONS)) is not None:
            return Found(kept.signals, failed)
        return self._within(wait_s, kept, regions)

    def refresh(
        self,
        first: Sequence[str] = (),
        patience: DownloadTimeouts = DownloadTimeouts(),  # noqa: B008
        fetched: Callable[[], None] = lambda: None,
    ) -> Found:
        """Download the file and keep all its regions, those named ``first`` before the others.

        Errors are in there.

        ``fetched`` is called when the file is here, or cannot be had.
        """
        # Most commands read the cache, and need nothing of this.
        from deepvm.catalog.public.as_signals import readings
        from deepvm.catalog.public.download import download
        from deepvm.catalog.public.integrity import check

        try:
            try:
                got = self.source.fetch(self.cloud, self.get or download, patience)
            finally:
                fetched()
            checked = check(self.source.parse(got.body, self.cloud))
        except CloudError as error:
            return self._failed(error)
        except RequestError:
            raise  # a setting is wrong
        except DeepVMError as error:
            return self._failed(self._unusable(str(error)))
        except Exception as error:
            # A bug in a reader costs only its source.
            return self._failed(
                self._unusable(f"internal error while reading the file: {type(error).__name__}")
            )
        written = got.written_at or self.source.ended.get(self.cloud)
        observed, dated = (
            min(written or self.source.earliest(self.now), self.now),
            written is not None,
        )
        signals = {
            region: {
                k: Signal(k, region, observed, self.source.title, r.data, r.refused, dated=dated)
                for k, r in kinds.items()
            }
            for region, kinds in readings(checked).items()
        }
        for region in (
            *(r for r in first if r in signals),
            *(r for r in signals if r not in first),
        ):
            for signal in signals[region].values():
                self.cache.write(signal, self.now)
        # Last: while it is old, the next command asks again.
        self.cache.write(
            Signal(REGIONS, _FILE, observed, self.source.title, [*signals], dated=dated), self.now
        )
        return Found(signals)

    def _within(self, wait_s: float, kept: Found, regions: Sequence[str]) -> Found:
        self.progress(f"asking {self.source.title} for prices of {self.cloud}")
        patience = QUICK if wait_s <= QUICK_S else DownloadTimeouts()
        # The built-in one from Python 3.11 on
        from concurrent.futures import TimeoutError as LateError

        here = Event()
        (future,) = run_in_daemons(
            lambda first: self.refresh(first, patience, here.set), [tuple(regions)], 1, "public"
        )
        try:
            found = future.result(_READING_S if here.wait(wait_s) else 0)
        except LateError:
            late = f"no answer within {wait_s:g} s"
            found = self._failed(CloudError(self.source.title, "timeout", late, self._waits_longer))
        if found.error is None:
            return found
        if wait_s < SLOW_S and found.error.why in _NO_ANSWER:
            self.silent[self.source.name] = found.error
        return Found(kept.signals, found.error)

    @property
    def _waits_longer(self) -> str:
        return (
            f"'deepvm catalog refresh --source {self.source.name} --cloud {self.cloud}' waits"
            " longer"
        )

    def _is_fresh(self, kept: Found, regions: Sequence[str]) -> bool:
        about = self.about()
        if about is None or about.origin != "cache":
            return False
        return all(kept.of(region, SPECS) is not None for region in regions if region in about.data)

    def _unusable(self, why: str) -> CloudError:
        return CloudError(
            self.source.title, "reply", why, "what was fetched before stays; try again later"
        )

    def _failed(self, error: CloudError) -> Found:
        """Remember for a while what fails slowly, so that not every command waits for it."""
        if error.why in SLOW_REASONS:
            said = {
                "what": error.what,
                "why": error.why,
                "detail": error.detail,
                "advice": error.advice,
            }
            failure = {REGIONS: said | {"at": int(self.now.timestamp())}}
            self.cache.write(Signal(FAILURES, _FILE, self.now, "deepvm", failure), self.now)
        return Found(error=error)


def newest(signals: Sequence[Signal | None], now: datetime) -> Signal | None:
    """The signal that was true last; of equally old ones the first. None without any."""
    known = [s for s in signals if s is not None and s.observed_at <= now + CLOCK_SKEW]
    return max(known, key=lambda s: s.observed_at, default=None)
