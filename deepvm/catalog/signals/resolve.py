"""Resolve signals from sources in order: the first fresh answer counts, else the newest.

Notes, short sentences for a person, say what did not go as planned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from deepvm.catalog.price_sources import TITLES
from deepvm.catalog.signals.cache import Cache
from deepvm.catalog.signals.fetching import (
    CREDENTIAL_REASONS,
    GIVE_UP_S,
    SLOW_REASONS,
    Providers,
    SignalRequest,
    fetch,
    recent_failures,
)
from deepvm.catalog.signals.signal import (
    ON_DEMAND,
    PRICES,
    SPECS,
    SPOT,
    Signal,
    age,
    base,
    reason,
    title,
)
from deepvm.core.spelling import joined
from deepvm.errors import CloudError

_ALWAYS_NEEDED = frozenset({SPECS, ON_DEMAND, SPOT})
_ADVICE_HELPS = CREDENTIAL_REASONS | {"permission", "region", "throttled"}

PATIENCE_S = 60.0
"""Seconds without any answer after which ``auto`` uses what is there."""

Errors = Mapping[SignalRequest, CloudError]


@dataclass(frozen=True)
class Quotes:
    """What a source says, each signal with its age and source, and why others are missing."""

    signals: Mapping[SignalRequest, Signal]
    errors: Errors = field(default_factory=dict)


class PriceSource(ABC):
    """Where signals come from.

    Attributes:
        settles: whether its answers, while they are fresh, end the search; else the newest counts.
    """

    settles: ClassVar[bool] = True

    @abstractmethod
    def fetch(self, requests: Sequence[SignalRequest]) -> Quotes:
        """What it knows of these."""


@dataclass(frozen=True)
class CachedSignals(PriceSource):
    """What was fetched before."""

    cache: Cache
    now: datetime

    def fetch(self, requests: Sequence[SignalRequest]) -> Quotes:
        usable = [r for r in requests if not r.refetch]
        stored = {r: self.cache.read(r.region, r.kind, self.now) for r in usable}
        return Quotes({r: s for r, s in stored.items() if s is not None})


@dataclass(frozen=True)
class CloudApi(PriceSource):
    """A cloud itself; its answers are kept in the cache.

    ``patient``: whether to ask again for what has just failed, and to wait long.
    """

    cache: Cache
    providers: Providers
    now: datetime
    progress: Callable[[str], None]
    patient: bool = False

    def fetch(self, requests: Sequence[SignalRequest]) -> Quotes:
        regions = {r.region for r in requests} if not self.patient else ()
        failed = {region: recent_failures(self.cache, region, self.now) for region in regions}
        errors = {r: e for r in requests if (e := failed.get(r.region, {}).get(r.kind)) is not None}
        outcomes = fetch(
            [r for r in requests if r not in errors],
            self.providers,
            cache=self.cache,
            now=self.now,
            progress=self.progress,
            give_up_s=GIVE_UP_S if self.patient else PATIENCE_S,
        )
        new_errors = {o.request: o.error for o in outcomes if o.error is not None}
        signals = {o.request: o.signal for o in outcomes if o.signal is not None}
        return Quotes(signals, {**new_errors, **errors})


@dataclass(frozen=True)
class Snapshot(PriceSource):
    """What came with deepvm."""

    of_region: Callable[[str], Mapping[str, Signal]]
    settles: ClassVar[bool] = False

    def fetch(self, requests: Sequence[SignalRequest]) -> Quotes:
        stored = {r: self.of_region(r.region).get(r.kind) for r in requests}
        return Quotes({r: s for r, s in stored.items() if s is not None})


@dataclass(frozen=True)
class Without(PriceSource):
    """A source whose answers of some kinds do not count."""

    source: PriceSource
    kinds: Collection[str]

    def fetch(self, requests: Sequence[SignalRequest]) -> Quotes:
        return self.source.fetch([r for r in requests if r.kind not in self.kinds])


@dataclass(frozen=True)
class Resolved:
    """The signals of one region and the errors of those that failed, by kind.

    ``notes`` are sentences for a person; ``not_asked``: the one that no cloud was asked.
    """

    signals: Mapping[str, Signal]
    notes: tuple[str, ...] = ()
    failures: Mapping[str, CloudError] = field(default_factory=dict)
    not_asked: str = ""


def resolve_regions(
    requests: Sequence[SignalRequest],
    sources: Sequence[PriceSource],
    now: datetime,
    not_asked: str = "",
) -> Mapping[str, Resolved | CloudError]:
    """Get signals of one or more regions from sources in order.

    What is to be refetched are prices that must be live: a region where they are not has an
    error. ``not_asked``: why no cloud is asked, which becomes a note. A note about several regions
    stands with the first of them.

    Raises:
        RequestError: a region's name has the wrong form.
    """
    answers = _Answers(now)
    regions = list(dict.fromkeys(r.region for r in requests))
    for source in sources:
        missing = [r for r in requests if r not in answers.settled]
        if missing:
            answers.add(source.fetch(missing), source.settles)
    failed = {r: e for r in regions if (e := _not_live(r, requests, answers, not_asked))}
    kept = [r for r in requests if r.region not in failed]
    notes = answers.failure_notes(kept)
    unasked = answers.not_asked_note(kept, not_asked)
    return {
        region: failed.get(region)
        or answers.of_region(region, kept, notes.get(region, []), unasked.get(region, ""))
        for region in regions
    }


class _Answers:
    """The best signal for each request, and what failed."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.settled: set[SignalRequest] = set()
        self.best: dict[SignalRequest, Signal] = {}
        self.errors: dict[SignalRequest, CloudError] = {}

    def add(self, quotes: Quotes, settles: bool) -> None:
        self.errors |= quotes.errors
        for request, signal in quotes.signals.items():
            if settles and signal.origin in ("live", "cache"):
                self.settled.add(request)
                self.best[request] = signal
            elif self._is_newer(signal, self.best.get(request)):
                self.best[request] = signal

    def _is_newer(self, signal: Signal, other: Signal | None) -> bool:
        # One of the future only shows that the clock is wrong.
        return other is None or other.observed_at < signal.observed_at <= self.now

    def of_region(
        self, region: str, requests: Sequence[SignalRequest], notes: list[str], not_asked: str
    ) -> Resolved:
        here = [r for r in requests if r.region == region]
        return Resolved(
            {r.kind: self.best[r] for r in here if r in self.best},
            (*notes, not_asked) if not_asked else tuple(notes),
            {r.kind: self.errors[r] for r in here if r in self.errors},
            not_asked,
        )

    def failure_notes(self, requests: Sequence[SignalRequest]) -> dict[str, list[str]]:
        """What failed, and what is used instead, by region."""
        notes: dict[str, list[str]] = {}
        for group in grouped({r: self.errors[r] for r in requests if r in self.errors}):
            parts = [describe_failure(group), self._used([*group]), advice_of(group)]
            notes.setdefault(next(iter(group)).region, []).append("; ".join(filter(None, parts)))
        return notes

    def not_asked_note(self, requests: Sequence[SignalRequest], why: str) -> dict[str, str]:
        """What no cloud was asked for, with the first region that lacks something."""
        # That quotas and zones are missing without AWS is no news.
        missed = [
            r
            for r in requests
            if r not in self.settled
            and r not in self.errors
            and (r in self.best or r.kind in _ALWAYS_NEEDED)
        ]
        if not missed or not why:
            return {}
        return {missed[0].region: f"{_titles(missed)}: {why}; {self._used(missed)}"}

    def _used(self, requests: Sequence[SignalRequest]) -> str:
        """What is used instead of what was not fetched: ``the cache of 2 h ago is used``."""
        groups: dict[str, list[SignalRequest]] = {}
        for request in requests:
            groups.setdefault(self._name(self.best.get(request)), []).append(request)
        if len(groups) == 1:
            (name,) = groups
            return f"{name} is used" if name else "going on without them"
        used = [f"{name} is used for {_titles(g)}" for name, g in groups.items() if name]
        without = [f"going on without {_titles(g)}" for name, g in groups.items() if not name]
        return "; ".join(used + without)

    def _name(self, signal: Signal | None) -> str:
        if signal is None:
            return ""
        if signal.origin == "snapshot":
            return f"the snapshot of {signal.observed_at:%Y-%m-%d}"
        source = signal.source if signal.source in TITLES else "cache"
        return f"the {source} of {age(signal.observed_at, self.now, signal.dated)} ago"


def describe_failure(failed: Errors) -> str:
    """Which signals failed for one reason, the reason, and the details of the first."""
    request, error = next(iter(failed.items()))
    # AWS's errors name the call; ours name the signal, which the sentence already does.
    call = "" if error.what == _titles([request]) else f"{error.what}: "
    return f"{_titles([*failed])}: {reason(error.why)} ({call}{error.detail})"


def grouped(errors: Errors) -> list[dict[SignalRequest, CloudError]]:
    """Failures by reason; of those that many signals share, details differ in no way that helps."""
    groups: dict[tuple[str, str], dict[SignalRequest, CloudError]] = {}
    for request, error in errors.items():
        alike = error.why in CREDENTIAL_REASONS | SLOW_REASONS
        key = (error.why, "" if alike else str(error))
        groups.setdefault(key, {})[request] = error
    return [*groups.values()]


def advice_of(failed: Errors) -> str:
    """What to do about a failure, empty where that is just to try again."""
    error = next(iter(failed.values()))
    return error.advice if error.why in _ADVICE_HELPS else ""


def _titles(requests: Sequence[SignalRequest]) -> str:
    """``spot prices and quotas of us-east-1``; regions that lack the same are named together."""
    by_region: dict[str, list[str]] = {}
    for request in requests:
        by_region.setdefault(request.region, []).append(title(request.kind))
    by_kinds: dict[str, list[str]] = {}
    for region, titles in by_region.items():
        by_kinds.setdefault(joined(titles), []).append(region)
    return "; ".join(f"{titles} of {joined(regions)}" for titles, regions in by_kinds.items())


def _not_live(
    region: str, requests: Sequence[SignalRequest], answers: _Answers, not_asked: str
) -> CloudError | None:
    """Why prices of a region are not all live, though they must be."""
    here = [r for r in requests if r.region == region]
    prices = [r for r in here if r.refetch]
    refused = [e for r in here if (e := answers.errors.get(r)) and e.why in CREDENTIAL_REASONS]
    missing = [r for r in prices if r not in answers.settled]
    if not prices or not (refused or missing):
        return None
    errors = refused + [answers.errors[r] for r in missing if r in answers.errors]
    if errors:
        error = errors[0]
    else:
        why = not_asked or "AWS was not asked"
        advice = "run 'aws configure', or set AWS_PROFILE"
        error = CloudError("AWS", "credentials", why, advice)
    detail = f"{reason(error.why)} ({error.what}: {error.detail})"
    advice = f"{error.advice}; --prices auto continues with older prices"
    return CloudError(f"live prices of {region}", error.why, detail, advice)


def requests_for(
    regions: Sequence[str], kinds: Sequence[str], *, live: bool = False
) -> list[SignalRequest]:
    """Requests for kinds of signals; ``live``: prices must be refetched."""
    return [SignalRequest(r, k, live and base(k) in PRICES) for r in regions for k in kinds]
