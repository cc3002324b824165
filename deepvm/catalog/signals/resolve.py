"""Resolve signals from sources in order: the first fresh answer counts, else the newest.

Notes, short sentences for a person, say what did not go as planned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from deepvm.catalog.price_sources import TITLES
from deepvm.catalog.signals.cache import Cache
from deepvm.catalog.signals.fetching import (
    CREDENTIAL_REASONS,
    GIVE_UP_S,
    SLOW_REASONS,
    Providers,
    SignalRequest,
    fetch,
    recent_failure,
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
Signals = Mapping[SignalRequest, Signal]


@dataclass(frozen=True)
class Quotes:
    """What a source says, each signal with its age and source, and why others are missing."""

    signals: Signals
    errors: Errors = field(default_factory=dict)


class PriceSource(ABC):
    """Where signals come from.

    Attributes:
        settles: whether its answers, while they are fresh, end the search; else the newest counts.
    """

    settles = True

    @abstractmethod
    def fetch(self, requests: Sequence[SignalRequest]) -> Quotes:
        """What it knows of these."""


@dataclass(frozen=True)
class Stored(PriceSource):
    """Signals that lie ready: what was fetched before, or came with deepvm.

    ``read``: the one of a region and of a kind. ``without``: kinds that others have to answer.
    """

    read: Callable[[str, str], Signal | None]
    without: Collection[str] = ()

    def fetch(self, requests: Sequence[SignalRequest]) -> Quotes:
        signals = {r: self.read(*r) for r in requests if r.kind not in self.without}
        return Quotes({r: s for r, s in signals.items() if s is not None})


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
        errors = {}
        for request in requests if not self.patient else ():
            error = recent_failure(self.cache, request, self.now)
            if error is not None:
                errors[request] = error
        outcomes = fetch(
            [r for r in requests if r not in errors],
            self.providers,
            cache=self.cache,
            now=self.now,
            progress=self.progress,
            give_up_s=GIVE_UP_S if self.patient else PATIENCE_S,
        )
        errors |= {o.request: o.error for o in outcomes if o.error is not None}
        return Quotes({o.request: o.signal for o in outcomes if o.signal is not None}, errors)


@dataclass(frozen=True)
class ResolvedSignals:
    """The best signals, and why others are missing or old.

    Attributes:
        not_live: regions of which prices had to be live and are not, with the reason.
        notes: sentences for a person about the other regions.
        not_asked: why no cloud was asked for something, empty if none of that is missing.
    """

    signals: Signals
    errors: Errors = field(default_factory=dict)
    not_live: Mapping[str, CloudError] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    not_asked: str = ""

    def of_region(self, region: str) -> dict[str, Signal]:
        """The signals of a region by kind."""
        return {r.kind: s for r, s in self.signals.items() if r.region == region}


def resolve(
    requests: Sequence[SignalRequest],
    sources: Iterable[PriceSource],
    now: datetime,
    not_asked: str = "",
    *,
    live: bool = False,
) -> ResolvedSignals:
    """Get signals of one or more regions from sources in order.

    ``live``: prices that were fetched before do not settle anything. ``not_asked``: why no cloud is
    asked, which becomes a note.

    Raises:
        RequestError: a region's name has the wrong form.
    """
    best: dict[SignalRequest, Signal] = {}
    errors: dict[SignalRequest, CloudError] = {}
    settled: set[SignalRequest] = set()
    must_be_live = [r for r in requests if live and base(r.kind) in PRICES]
    for source in sources:
        quotes = source.fetch([r for r in requests if r not in settled])
        errors = {**quotes.errors, **errors}  # the first source that failed is the one to name
        for request, signal in quotes.signals.items():
            fresh = ("live",) if request in must_be_live else ("live", "cache")
            known = best.get(request)
            if source.settles and signal.origin in fresh:
                settled.add(request)
                best[request] = signal
            # One of the future only shows that the clock is wrong.
            elif known is None or known.observed_at < signal.observed_at <= now:
                best[request] = signal
    not_live = {}
    for region in dict.fromkeys(r.region for r in must_be_live):
        here = [r for r in requests if r.region == region]
        refused = [r for r in here if r in errors and errors[r].why in CREDENTIAL_REASONS]
        failed = [*refused, *(r for r in here if r in must_be_live and r not in settled)]
        if failed:
            error = next((errors[r] for r in failed if r in errors), None)
            not_live[region] = _not_live(region, error, not_asked)
    kept = [r for r in requests if r.region not in not_live]
    notes = []
    for failed_alike in grouped({r: errors[r] for r in kept if r in errors}):
        used = _used([*failed_alike], best, now)
        note = f"{describe_failure(failed_alike)}; {used}; {advice_of(failed_alike)}"
        notes.append(note.removesuffix("; "))
    # That quotas and zones are missing without AWS is no news.
    missed = [r for r in kept if r not in settled and (r in best or r.kind in _ALWAYS_NEEDED)]
    if not missed or not not_asked:
        return ResolvedSignals(best, errors, not_live, tuple(notes))
    notes.append(f"{_titles(missed)}: {not_asked}; {_used(missed, best, now)}")
    silent = next((f", and {errors[r].what} gave no answer" for r in missed if r in errors), "")
    return ResolvedSignals(best, errors, not_live, tuple(notes), not_asked + silent)


def _used(requests: Sequence[SignalRequest], best: Signals, now: datetime) -> str:
    """What is used for signals that were not fetched: ``the cache of 2 h ago is used``."""
    names = dict.fromkeys(_name(best[r], now) for r in requests if r in best)
    missing = [r for r in requests if r not in best]
    parts = []
    if names:
        parts.append(f"{joined(names)} {'is' if len(names) == 1 else 'are'} used")
    if missing:
        parts.append(f"continuing without {_titles(missing)}")
    return "; ".join(parts)


def _name(signal: Signal, now: datetime) -> str:
    if signal.origin == "snapshot":
        return f"the snapshot of {signal.observed_at:%Y-%m-%d}"
    source = "cache"
    if signal.source in TITLES:
        source = signal.source
    return f"the {source} of {age(signal.observed_at, now, signal.dated)} ago"


def describe_failure(failed: Errors) -> str:
    """Which signals failed for one reason, the reason, and the details of the first."""
    error = next(iter(failed.values()))
    return f"{_titles([*failed])}: {reason(error.why)} ({error.what}: {error.detail})"


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
    if error.why in _ADVICE_HELPS:
        return error.advice
    return ""


def _titles(requests: Sequence[SignalRequest]) -> str:
    """``spot prices and quotas of us-east-1``."""
    titles = joined(dict.fromkeys(title(r.kind) for r in requests))
    return f"{titles} of {joined(dict.fromkeys(r.region for r in requests))}"


def _not_live(region: str, error: CloudError | None, not_asked: str) -> CloudError:
    """Why prices of a region are not all live, though they must be."""
    if error is None:
        detail = not_asked or "AWS was not asked"
        error = CloudError("AWS", "credentials", detail, "run 'aws configure', or set AWS_PROFILE")
    detail = f"{reason(error.why)} ({error.what}: {error.detail})"
    advice = f"{error.advice}; --prices auto continues with older prices"
    return CloudError(f"live prices of {region}", error.why, detail, advice)
