"""Choose each signal's source: fresh cache, the cloud, expired cache, embedded snapshot.

Signals are resolved independently. Notes, short sentences for a person, say what did not go as
planned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from deepvm.catalog.signals.cache import Cache
from deepvm.catalog.signals.fetching import (
    CREDENTIAL_REASONS,
    GIVE_UP_S,
    SLOW_REASONS,
    Outcome,
    Providers,
    SignalRequest,
    fetch,
    recent_failures,
)
from deepvm.catalog.signals.signal import (
    OFFERINGS,
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
_TOLD_ELSEWHERE = _ALWAYS_NEEDED | {OFFERINGS}
# Failures for these reasons share one note, with the details of the first.
_ALIKE = CREDENTIAL_REASONS | SLOW_REASONS
_ADVICE_HELPS = CREDENTIAL_REASONS | {"permission", "region", "throttled"}

Elsewhere = Callable[[Sequence[str]], Mapping[str, Mapping[str, Signal]]]
"""What other sources than the cloud say of some regions: signals by region and kind, each with its own ``source``."""

PATIENCE_S = 60.0
"""Seconds without any answer after which ``auto`` uses what is at hand."""


@dataclass(frozen=True)
class Resolved:
    """The signals of one region and the errors of those that failed, by kind.

    ``notes`` are sentences for a person.

    ``not_asked``: the note that nobody was asked, if that is one of them.
    """

    signals: Mapping[str, Signal]
    notes: tuple[str, ...] = ()
    failures: Mapping[str, CloudError] = field(default_factory=dict)
    not_asked: str = ""


@dataclass(frozen=True)
class _Instead:
    """What is used for signals that the cloud did not give; ``names``: the source of those that come from elsewhere."""

    signals: dict[SignalRequest, Signal | None] = field(default_factory=dict)
    names: dict[SignalRequest, str] = field(default_factory=dict)


def resolve_regions(
    regions: Sequence[str],
    kinds: Sequence[str],
    mode: str,
    *,
    cache: Cache,
    providers: Providers | None,
    snapshot: Callable[[str], Mapping[str, Signal]],
    now: datetime,
    progress: Callable[[str], None] = lambda _: None,
    not_asked: str = "",
    elsewhere: Elsewhere | None = None,
    only_elsewhere: Collection[str] = (),
) -> Mapping[str, Resolved | CloudError]:
    """Get signals of several regions at once: ``auto`` fetches what is not fresh, ``live`` all prices.

    Mode ``snapshot`` leaves cache and cloud alone. ``providers`` and ``snapshot`` are called when
    something must come from there; no providers: nobody may be asked, for the reason ``not_asked``,
    which becomes a note. ``elsewhere`` is asked for what neither a fresh cache nor the cloud says;
    the newest of what is left wins. Of kinds ``only_elsewhere`` nothing else counts.

    Returns:
        Each region's signals or, in ``live``, why not all of its prices are live. A note about
        several regions stands with the first of them.

    Raises:
        RequestError: a region's name has the wrong form.
    """
    if mode == "snapshot" or not regions:
        embedded = {r: snapshot(r) for r in regions}
        return {
            r: Resolved({k: here[k] for k in kinds if k in here}) for r, here in embedded.items()
        }
    own = [k for k in kinds if k not in only_elsewhere]
    kept = {(r, k): s for r in regions for k in own if (s := cache.read(r, k, now)) is not None}
    fresh = {place for place, signal in kept.items() if signal.origin == "cache"}
    anew = {k for k in kinds if mode == "live" and base(k) in PRICES}
    requests = [
        SignalRequest(r, k, k in anew)
        for r in regions
        for k in kinds
        if k in anew or (r, k) not in fresh
    ]
    outcomes: tuple[Outcome, ...] = ()
    if providers is not None and requests:
        known = {r: recent_failures(cache, r, now) if mode == "auto" else {} for r in regions}
        outcomes = tuple(
            Outcome(w, None, known[w.region][w.kind]) for w in requests if w.kind in known[w.region]
        )
        asked = [w for w in requests if w.kind not in known[w.region]]
        give_up_s = PATIENCE_S if mode == "auto" else GIVE_UP_S
        answered = fetch(
            asked, providers, cache=cache, now=now, progress=progress, give_up_s=give_up_s
        )
        outcomes = (*answered, *outcomes)
    not_live = {r: _not_live(r, requests, outcomes, not_asked) for r in regions if mode == "live"}
    failed = {region: error for region, error in not_live.items() if error is not None}
    found = {r: {k: kept[r, k] for k in kinds if (r, k) in fresh} for r in regions}
    instead = _Instead()
    fetched = {o.request: o.signal for o in outcomes if o.signal is not None}
    told = [
        w
        for w in requests
        if w.kind in _TOLD_ELSEWHERE and w not in fetched and w.region not in failed
    ]
    lacking = dict.fromkeys(w.region for w in told)
    others = elsewhere([*lacking]) if elsewhere is not None and lacking else {}
    for request in requests:
        signal = fetched.get(request)
        if signal is None and request.region not in failed:
            old = kept.get((request.region, request.kind))
            came_with_us = (
                snapshot(request.region).get(request.kind) if request.kind in own else None
            )
            signal = _second_best(old, came_with_us, now)
            public = others.get(request.region, {}).get(request.kind)
            signal = _second_best(public, signal, now)
            instead.signals[request] = signal
            if signal is not None and signal is public:
                instead.names[request] = signal.source
        if signal is not None:
            found[request.region][request.kind] = signal
    notes = _notes(regions, outcomes, instead, now)
    unasked = _not_asked(outcomes, instead, not_asked, now)
    for region, text in unasked.items():
        notes[region].append(text)
    # Trouble with the cache concerns no region in particular.
    notes[next((r for r in regions if r not in failed), regions[0])].extend(cache.take_notes())
    failures = {
        r: {o.request.kind: o.error for o in outcomes if o.request.region == r and o.error}
        for r in regions
    }
    return {
        r: (
            failed[r]
            if r in failed
            else Resolved(found[r], tuple(notes[r]), failures[r], unasked.get(r, ""))
        )
        for r in regions
    }


def _second_best(first: Signal | None, other: Signal | None, now: datetime) -> Signal | None:
    """The newer of two signals, of equally old ones the first."""
    if first is None or other is None:
        return first or other
    return other if first.observed_at < other.observed_at <= now else first


def _notes(
    regions: Sequence[str],
    outcomes: Sequence[Outcome],
    instead: _Instead,
    now: datetime,
) -> dict[str, list[str]]:
    """What failed, and what is used in its place, by region."""
    notes: dict[str, list[str]] = {r: [] for r in regions}
    for group in grouped([o for o in outcomes if o.request in instead.signals]):
        parts = [
            describe_failure(group),
            _used([o.request for o in group], instead, now),
            advice_of(group),
        ]
        notes[group[0].request.region].append("; ".join(p for p in parts if p))
    return notes


def _not_asked(
    outcomes: Sequence[Outcome], instead: _Instead, why: str, now: datetime
) -> dict[str, str]:
    """What nobody was asked for, and what is used in its place, with the first region that lacks something."""
    asked = {o.request for o in outcomes if o.error is not None or o.signal is not None}
    # That quotas and zones are missing without AWS is no news.
    missed = [
        w
        for w, s in instead.signals.items()
        if w not in asked and (s is not None or w.kind in _ALWAYS_NEEDED)
    ]
    if not missed or not why:
        return {}
    return {missed[0].region: f"{_which(missed)}: {why}; {_used(missed, instead, now)}"}


def describe_failure(failed: Sequence[Outcome]) -> str:
    """Which signals failed for one reason, the reason, and the details of the first."""
    error = failed[0].error
    assert error is not None
    which = _which([o.request for o in failed])
    # AWS's errors name the call; ours name the signal, which the sentence already does.
    what = "" if error.what == _which([failed[0].request]) else error.what
    return f"{which}: {reason(error.why)} ({': '.join(p for p in (what, error.detail) if p)})"


def grouped(outcomes: Sequence[Outcome]) -> tuple[tuple[Outcome, ...], ...]:
    """Failed outcomes by reason, in the order in which the reasons appear."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        error = outcome.error
        if error is not None:
            groups.setdefault((error.why, "" if error.why in _ALIKE else str(error)), []).append(
                outcome
            )
    return tuple(tuple(g) for g in groups.values())


def advice_of(failed: Sequence[Outcome]) -> str:
    """What to do about a failure, empty where that is just to try again."""
    error = failed[0].error
    return error.advice if error is not None and error.why in _ADVICE_HELPS else ""


def _used(requests: Sequence[SignalRequest], instead: _Instead, now: datetime) -> str:
    """What is used in place of signals that were not fetched: ``the cache of 2 h ago is used``."""
    groups: dict[str, list[SignalRequest]] = {}
    for request in requests:
        signal = instead.signals[request]
        words = ""
        if signal is not None:
            old = (
                f"{instead.names.get(request, 'cache')} of"
                f" {age(signal.observed_at, now, signal.dated)} ago"
            )
            words = (
                f"snapshot of {signal.observed_at:%Y-%m-%d}" if signal.origin == "snapshot" else old
            )
        groups.setdefault(words, []).append(request)
    if len(groups) == 1:
        (words,) = groups
        return f"the {words} is used" if words else "going on without them"
    used = [f"the {words} is used for {_which(group)}" for words, group in groups.items() if words]
    return "; ".join([*used, *(f"going on without {_which(groups[w])}" for w in groups if not w)])


def _which(requests: Sequence[SignalRequest]) -> str:
    """``spot prices and quotas of us-east-1``; regions that lack the same are named together."""
    by_region: dict[str, list[str]] = {}
    for request in requests:
        by_region.setdefault(request.region, []).append(title(request.kind))
    by_kinds: dict[str, list[str]] = {}
    for region, titles in by_region.items():
        by_kinds.setdefault(joined(titles), []).append(region)
    return "; ".join(f"{titles} of {joined(regions)}" for titles, regions in by_kinds.items())


def _not_live(
    region: str, requests: Sequence[SignalRequest], outcomes: Sequence[Outcome], not_asked: str
) -> CloudError | None:
    """Why prices of a region are not all live, though ``live`` promises it."""
    if not any(w.region == region for w in requests):
        return None
    here = [o for o in outcomes if o.request.region == region]
    decisive = [o for o in here if base(o.request.kind) in PRICES] or here
    errors = [o.error for o in here if o.error and o.error.why in CREDENTIAL_REASONS]
    if not errors and decisive and all(o.signal is not None for o in decisive):
        return None
    errors += [o.error for o in decisive if o.error]
    nobody = not_asked or "AWS was not asked"
    errors.append(
        CloudError("AWS", "credentials", nobody, "run 'aws configure', or set AWS_PROFILE")
    )
    error = errors[0]
    detail = f"{reason(error.why)} ({error.what}: {error.detail})"
    advice = f"{error.advice}; --prices auto goes on with older prices"
    return CloudError(f"live prices of {region}", error.why, detail, advice)
