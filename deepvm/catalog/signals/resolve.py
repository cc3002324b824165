"""Resolve signals from sources in order: the first fresh answer counts, else the newest.

Notes, short sentences for people, report failures and old data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from deepvm.catalog.price_sources import TITLES
from deepvm.catalog.signals.fetching import (
    CREDENTIAL_REASONS,
    SLOW_REASONS,
    PriceSource,
    Quotes,
    SignalRequest,
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

Signals = Mapping[SignalRequest, Signal]


@dataclass(frozen=True)
class Stored(PriceSource):
    """Stored signals: fetched before, or shipped with deepvm.

    ``read``: returns the signal of a region and a kind. ``without``: kinds that it must not answer.
    """

    read: Callable[[str, str], Signal | None]
    without: Collection[str] = ()

    def fetch(self, requests: Sequence[SignalRequest]) -> Quotes:
        signals = {r: self.read(*r) for r in requests if base(r.kind) not in self.without}
        return Quotes({r: s for r, s in signals.items() if s is not None})


@dataclass(frozen=True)
class ResolvedSignals:
    """The best signals, and why others are missing or old.

    Attributes:
        notes: sentences for a person.
        not_asked: why no cloud was asked for something, empty if none of that is missing.
    """

    signals: Signals
    errors: Mapping[SignalRequest, CloudError] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    not_asked: str = ""

    def of_region(self, region: str) -> dict[str, Signal]:
        """The signals of a region by kind."""
        return {r.kind: s for r, s in self.signals.items() if r.region == region}

    def errors_of(self, region: str) -> dict[str, CloudError]:
        """Why signals of a region are missing or old, by kind."""
        return {r.kind: e for r, e in self.errors.items() if r.region == region}

    def check_live(self, region: str) -> None:
        """Raise a CloudError if prices of a region, or credentials, were refused."""
        for kind, error in self.errors_of(region).items():
            if base(kind) in PRICES or error.why in CREDENTIAL_REASONS:
                detail = f"{reason(error.why)} ({error.what}: {error.detail})"
                advice = f"{error.advice}; --prices auto continues with older prices"
                raise CloudError(f"live prices of {region}", error.why, detail, advice)


def resolve(
    requests: Sequence[SignalRequest],
    sources: Iterable[PriceSource],
    now: datetime,
    not_asked: str = "",
) -> ResolvedSignals:
    """Get signals of one or more regions from sources in order.

    ``not_asked``: why no cloud is asked, which becomes a note.

    Raises:
        RequestError: a region's name has the wrong form.
    """
    best: dict[SignalRequest, Signal] = {}
    errors: dict[SignalRequest, CloudError] = {}
    unsettled = list(requests)
    for source in sources:
        quotes = source.fetch(unsettled)
        errors = {**quotes.errors, **errors}  # the first source that failed is the one to name
        for request, signal in quotes.signals.items():
            known = best.get(request)
            if source.settles and signal.fresh:
                unsettled.remove(request)
                best[request] = signal
            # A signal from the future only shows that the clock is wrong.
            elif known is None or known.observed_at < signal.observed_at <= now:
                best[request] = signal
    errors = {r: errors[r] for r in requests if r in errors}
    notes = []
    for failures in grouped(errors):
        parts = (str(failures), _used(failures.requests, best, now), failures.advice)
        notes.append("; ".join(filter(None, parts)))
    # No note for quotas and zones, which are always missing without AWS.
    missed = [r for r in unsettled if r in best or r.kind in _ALWAYS_NEEDED]
    if missed and not_asked:
        notes.append(f"{_titles(missed)}: {not_asked}; {_used(missed, best, now)}")
        silent = next((errors[r].what for r in missed if r in errors), "")
        if silent:
            not_asked += f", and {silent} gave no answer"
    return ResolvedSignals(best, errors, tuple(notes), not_asked if missed else "")


class Failures(NamedTuple):
    """Signals that failed for one reason, and the error of the first."""

    requests: list[SignalRequest]
    error: CloudError

    def __str__(self) -> str:
        """Which failed, the reason, and the details of the first."""
        error = self.error
        return f"{_titles(self.requests)}: {reason(error.why)} ({error.what}: {error.detail})"

    @property
    def advice(self) -> str:
        """What to do about it, empty where that is just to try again."""
        if self.error.why in _ADVICE_HELPS:
            return self.error.advice
        return ""


def grouped(errors: Mapping[SignalRequest, CloudError]) -> list[Failures]:
    """Failures by reason; shared reasons are one group, since their details do not help."""
    groups: dict[tuple[str, str], Failures] = {}
    for request, error in errors.items():
        alike = error.why in CREDENTIAL_REASONS | SLOW_REASONS
        key = (error.why, "" if alike else str(error))
        groups.setdefault(key, Failures([], error)).requests.append(request)
    return [*groups.values()]


def _used(requests: Sequence[SignalRequest], best: Signals, now: datetime) -> str:
    """The substitutes of signals that were not fetched: ``the cache of 2 h ago is used``."""
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


def _titles(requests: Sequence[SignalRequest]) -> str:
    """``spot prices and quotas of us-east-1``."""
    titles = joined(dict.fromkeys(title(r.kind) for r in requests))
    return f"{titles} of {joined(dict.fromkeys(r.region for r in requests))}"
