"""Choose each signal's source: fresh cache, the cloud, expired cache, embedded snapshot.

Signals are resolved independently. Notes, short sentences for a person, say what did not go as planned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from deepvm.catalog.signals.cache import LOCK_WAIT_S, Cache
from deepvm.catalog.signals.fetching import CREDENTIAL_REASONS, GIVE_UP_S, Outcome, Providers, Wish, fetch
from deepvm.catalog.signals.negative_cache import recent_failures, remember_failures
from deepvm.catalog.signals.signal import HISTORY, ON_DEMAND, PLACEMENT, SPECS, SPOT, Signal
from deepvm.catalog.signals.signal_words import age, listed, reason, title
from deepvm.errors import CloudError

_PRICES = frozenset({ON_DEMAND, SPOT, HISTORY})
_ALWAYS_NEEDED = frozenset({SPECS, ON_DEMAND, SPOT})
# Reasons that signals share: one line for all of them, with the details of the first.
_ALIKE = CREDENTIAL_REASONS | {"network", "timeout", "throttled"}
_ADVICE_HELPS = CREDENTIAL_REASONS | {"permission", "region", "throttled"}


PATIENCE_S = 60.0
"""Seconds without any answer after which ``auto`` uses what is at hand."""


class Mode(str, Enum):
    """How prices are to be had."""

    AUTO = "auto"
    LIVE = "live"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True)
class Resolved:
    """The signals of one region.

    Attributes:
        signals: what could be had, by kind; their ``origin`` says from where.
        notes: what did not go as planned, a sentence each.
        failures: why signals are missing or old although somebody was asked, by kind.
    """

    signals: Mapping[str, Signal]
    notes: tuple[str, ...] = ()
    failures: Mapping[str, CloudError] = field(default_factory=dict)


def resolve_regions(
    regions: Sequence[str],
    kinds: Sequence[str],
    mode: Mode,
    *,
    cache: Cache,
    providers: Providers | None,
    snapshot: Callable[[str], Mapping[str, Signal]],
    now: datetime,
    progress: Callable[[str], None] = lambda _: None,
    not_asked: str = "",
    lock_wait_s: float = LOCK_WAIT_S,
) -> Mapping[str, Resolved | CloudError]:
    """Get signals: ``auto`` and ``live`` fetch what is not fresh, all regions at once; ``snapshot`` reads nothing else.

    Args:
        regions: such as ``us-east-1``; duplicates count once.
        kinds: what is wanted of each.
        mode: ``live`` fetches prices anew even if the cache is fresh.
        cache: read first, written with what was fetched; untouched by ``snapshot``.
        providers: makes those to ask, called only if something must be fetched; None if nobody may be asked. A kind
            without a provider is not asked for.
        snapshot: the signals of a region that came with deepvm, by kind; called only if they are needed.
        now: the time, UTC.
        progress: hears a line whenever something has happened.
        not_asked: why nobody is asked (``no AWS credentials were found``), for a note; empty for no note about it.
        lock_wait_s: how long to wait for other processes that fetch the same.

    Returns:
        For each region its signals; or, in ``live``, why not all of its prices are live. A note that concerns several
        regions stands at the first of them only.

    Raises:
        RequestError: not the name of a region.
    """
    regions, kinds = list(dict.fromkeys(regions)), list(dict.fromkeys(kinds))
    if mode is Mode.SNAPSHOT or not regions:
        return {r: Resolved(_only(kinds, snapshot(r))) for r in regions}
    kept = {r: _from_cache(r, kinds, cache, now) for r in regions}
    anew = {k for k in kinds if mode is Mode.LIVE and _is_price(k)}
    wishes = [Wish(r, k, k in anew) for r in regions for k in kinds if k in anew or _is_stale(kept[r].get(k))]
    outcomes: tuple[Outcome, ...] = ()
    if providers is not None and wishes:
        known = {r: recent_failures(cache, r, now) for r in regions} if mode is Mode.AUTO else {}
        spared = [Outcome(w, None, known[w.region][w.kind]) for w in wishes if w.kind in known.get(w.region, {})]
        asked = [w for w in wishes if w.kind not in known.get(w.region, {})]
        limits = {"lock_wait_s": lock_wait_s, "give_up_s": PATIENCE_S if mode is Mode.AUTO else GIVE_UP_S}
        fetched_now = fetch(asked, providers, cache=cache, now=now, progress=progress, **limits) if asked else ()
        remember_failures(cache, fetched_now, now)
        outcomes = (*fetched_now, *spared)
    failed: dict[str, CloudError] = {}
    if mode is Mode.LIVE:
        failed = {r: e for r in regions if (e := _no_live(r, wishes, outcomes, not_asked)) is not None}
    found = {r: {k: s for k, s in kept[r].items() if not _is_stale(s)} for r in regions}
    instead: dict[Wish, Signal | None] = {}
    fetched = {o.wish: o.signal for o in outcomes if o.signal is not None}
    for wish in wishes:
        signal = fetched.get(wish)
        if signal is None and wish.region not in failed:
            signal = _second_best(kept[wish.region].get(wish.kind), snapshot(wish.region).get(wish.kind), now)
            instead[wish] = signal
        if signal is not None:
            found[wish.region][wish.kind] = signal
    notes: dict[str, list[str]] = {r: [] for r in regions}
    for group in grouped([o for o in outcomes if o.wish in instead]):
        parts = [describe_failure(group), _used([o.wish for o in group], instead, now), advice_of(group)]
        notes[group[0].wish.region].append("; ".join(p for p in parts if p))
    missed = _missed(outcomes, instead)
    if missed and not_asked:
        used = _used(missed, instead, now)
        # Where several things stand in, each is said with its signals; one alone would be read as if for all of them.
        which = "" if used.startswith(_SEVERAL) else f"{_which(missed)}: "
        notes[missed[0].region].append(f"{which}{not_asked}; {used}")
    # What went wrong with the cache concerns no region of its own.
    notes[next((r for r in regions if r not in failed), regions[0])].extend(cache.take_notes())
    return {
        r: failed[r] if r in failed else Resolved(found[r], tuple(notes[r]), _failures(r, outcomes)) for r in regions
    }


def _failures(region: str, outcomes: Sequence[Outcome]) -> dict[str, CloudError]:
    return {o.wish.kind: o.error for o in outcomes if o.wish.region == region and o.error is not None}


def describe_failure(failed: Sequence[Outcome]) -> str:
    """One sentence about signals that failed for the same reason: which, why, and the details of the first."""
    error = failed[0].error
    assert error is not None
    which = _which([o.wish for o in failed])
    # Errors of our own name the signal, which stands there already; those of AWS name the call.
    what = "" if error.what == _which([failed[0].wish]) else error.what
    return f"{which}: {reason(error.why)} ({': '.join(p for p in (what, error.detail) if p)})"


def grouped(outcomes: Sequence[Outcome]) -> tuple[tuple[Outcome, ...], ...]:
    """Outcomes that failed, those with the same reason together, in the order of the first of each."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        error = outcome.error
        if error is not None:
            groups.setdefault((error.why, "" if error.why in _ALIKE else str(error)), []).append(outcome)
    return tuple(tuple(g) for g in groups.values())


def advice_of(failed: Sequence[Outcome]) -> str:
    """What to do about it, where that is more than to try again; empty otherwise."""
    error = failed[0].error
    return error.advice if error is not None and error.why in _ADVICE_HELPS else ""


def _missed(outcomes: Sequence[Outcome], instead: Mapping[Wish, Signal | None]) -> list[Wish]:
    """What nobody was asked for, as far as it matters."""
    asked = {o.wish for o in outcomes if o.error is not None or o.signal is not None}
    # Without AWS there are no quotas and no zones, which is no news; prices and specifications cannot be done without.
    return [w for w in instead if w not in asked and (instead[w] is not None or w.kind in _ALWAYS_NEEDED)]


_SEVERAL = "used instead"


def _used(wishes: Sequence[Wish], instead: Mapping[Wish, Signal | None], now: datetime) -> str:
    """What stands in for signals that could not be fetched: ``the cache of 2 h ago is used``."""
    groups: dict[str, list[Wish]] = {}
    for wish in wishes:
        signal = instead[wish]
        if signal is None:
            words = "nothing"
        elif signal.origin == "snapshot":
            words = f"the snapshot of {signal.observed_at:%Y-%m-%d}"
        else:
            words = f"the cache of {age(signal.observed_at, now)} ago"
        groups.setdefault(words, []).append(wish)
    if len(groups) == 1:
        (words,) = groups
        return "going on without them" if words == "nothing" else f"{words} is used"
    parts = [f"{words} for {_which(ws)}" for words, ws in groups.items() if words != "nothing"]
    lost = f"; going on without {_which(groups['nothing'])}" if "nothing" in groups else ""
    return f"{_SEVERAL}: {', '.join(parts)}{lost}"


def _which(wishes: Sequence[Wish]) -> str:
    """``us-east-1: spot prices and quotas``; regions that lack the same are named together."""
    by_region: dict[str, list[str]] = {}
    for wish in wishes:
        by_region.setdefault(wish.region, []).append(title(wish.kind))
    by_kinds: dict[str, list[str]] = {}
    for region, titles in by_region.items():
        by_kinds.setdefault(listed(titles), []).append(region)
    return "; ".join(f"{titles} of {listed(regions)}" for titles, regions in by_kinds.items())


def _no_live(region: str, wishes: Sequence[Wish], outcomes: Sequence[Outcome], not_asked: str) -> CloudError | None:
    """Why ``live`` cannot keep its word for a region: credentials that do not work, or a price that is not live."""
    if not any(w.region == region for w in wishes):
        return None
    here = [o for o in outcomes if o.wish.region == region]
    for error in (o.error for o in here if o.error is not None):
        if error.why in CREDENTIAL_REASONS:
            return _not_live(region, error)
    decisive = [o for o in here if _is_price(o.wish.kind)] or here
    if decisive and all(o.signal is not None for o in decisive):
        return None
    nobody = CloudError(
        "AWS", "credentials", not_asked or "AWS was not asked", "run 'aws configure', or set AWS_PROFILE"
    )
    return _not_live(region, next((o.error for o in decisive if o.error is not None), nobody))


def _not_live(region: str, error: CloudError) -> CloudError:
    detail = f"{reason(error.why)} ({error.what}: {error.detail})"
    advice = f"{error.advice}; --prices auto goes on with older prices"
    return CloudError(f"live prices of {region}", error.why, detail, advice)


def _from_cache(region: str, kinds: Collection[str], cache: Cache, now: datetime) -> dict[str, Signal]:
    found = {k: cache.read(region, k, now) for k in kinds}
    return {k: s for k, s in found.items() if s is not None}


def _second_best(kept: Signal | None, snapshot: Signal | None, now: datetime) -> Signal | None:
    if kept is not None and kept.kind.partition(":")[0] == PLACEMENT and _is_stale(kept):
        return None  # a score tells what capacity is there now; an old one misleads
    if kept is None:
        return snapshot
    # A cache that is older than the snapshot knows nothing that the snapshot does not know better.
    return snapshot if snapshot is not None and kept.observed_at < snapshot.observed_at <= now else kept


def _only(kinds: Sequence[str], signals: Mapping[str, Signal]) -> dict[str, Signal]:
    return {k: signals[k] for k in kinds if k in signals}


def _is_stale(signal: Signal | None) -> bool:
    return signal is None or signal.origin != "cache"


def _is_price(kind: str) -> bool:
    return kind.partition(":")[0] in _PRICES
