"""Fetch many signals at once into the cache; failures are independent, and processes share the work."""

from __future__ import annotations

import queue
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from datetime import datetime

from deepvm.catalog.signals.cache import LOCK_WAIT_S, Cache, RegionLock
from deepvm.catalog.signals.daemon_pool import DaemonPool
from deepvm.catalog.signals.signal import ADVISOR, Provider, Signal
from deepvm.catalog.signals.signal_file import form_problem
from deepvm.catalog.signals.signal_words import listed, title
from deepvm.errors import CloudError, DeepVMError

AT_ONCE = 8
"""Signals that are fetched at the same time."""

GIVE_UP_S = 420.0
"""Seconds without any answer after which the rest counts as failed; providers take a few minutes at most."""

PUBLIC = frozenset({ADVISOR})
"""Kinds that need no credentials."""

CREDENTIAL_REASONS = frozenset({"credentials", "expired", "clock"})
"""Reasons of a CloudError that apply to every signal of the account."""

Providers = Callable[[], Mapping[str, Provider]]


@dataclass(frozen=True)
class Wish:
    """A signal to fetch.

    Attributes:
        region, kind: which one.
        anew: fetch it whatever the cache says; what another process fetched during the wait for it is new enough.
    """

    region: str
    kind: str
    anew: bool = False


@dataclass(frozen=True)
class Outcome:
    """The result of a wish.

    Attributes:
        wish: what was wanted.
        signal: the answer; None if there is none. Its origin is ``cache`` if another process fetched it meanwhile.
        error: why there is no answer; None beside a missing signal means that nobody could be asked.
        seconds: that it took.
    """

    wish: Wish
    signal: Signal | None
    error: CloudError | None = None
    seconds: float = 0.0


def fetch(
    wishes: Sequence[Wish],
    providers: Providers,
    *,
    cache: Cache,
    now: datetime,
    progress: Callable[[str], None],
    lock_wait_s: float = LOCK_WAIT_S,
    give_up_s: float = GIVE_UP_S,
) -> tuple[Outcome, ...]:
    """Fetch signals of one or more regions, and keep them in the cache.

    An interrupt ends it at once: requests under way finish in the background and are dropped.

    Args:
        wishes: what to fetch; each once.
        providers: whom to ask, called only if something is left to ask.
        cache: where answers are kept; its locks make sure that processes which want the same do the work once.
        now: the time, UTC.
        progress: hears a line whenever something has happened; called by this thread only.
        lock_wait_s: how long to wait for other processes, for all regions together.
        give_up_s: seconds without a single answer after which what is left counts as failed.

    Returns:
        One outcome for each wish, in their order. Nothing that a provider does is raised.
    """
    outcomes: dict[Wish, Outcome] = {}
    stamps = {w: cache.stamp(w.region, w.kind) for w in wishes}
    waiting = Counter(w.region for w in wishes)
    with ExitStack() as stack:
        locks = _locks(sorted(waiting), cache, lock_wait_s, progress, stack)
        for wish in wishes:
            # Only what was written since we looked can spare us the work.
            if not wish.anew or cache.stamp(wish.region, wish.kind) != stamps[wish]:
                kept = cache.read(wish.region, wish.kind, now)
                if kept is not None and kept.origin == "cache":
                    outcomes[wish] = Outcome(wish, kept)
                    _count_down(wish.region, waiting, locks)
        left = [w for w in wishes if w not in outcomes]
        # Closed by hand: a traceback may keep the generator alive, and its threads at work, after an interrupt.
        asking = stack.enter_context(closing(_ask(left, providers, now, progress, give_up_s)))
        for outcome in asking:
            if outcome.signal is not None:
                cache.write(outcome.signal, now)
            if outcome.signal is not None or outcome.error is not None:
                progress(_line(outcome))
            outcomes[outcome.wish] = outcome
            _count_down(outcome.wish.region, waiting, locks)
    return tuple(outcomes[w] for w in wishes)


def _locks(
    regions: Sequence[str], cache: Cache, wait_s: float, progress: Callable[[str], None], stack: ExitStack
) -> Mapping[str, RegionLock]:
    # Always in the same order: two processes that want the same two regions must not wait for each other.
    end = time.monotonic() + wait_s
    locks = {}
    for region in regions:
        left = max(0.0, end - time.monotonic())
        wait = f"{region}: another deepvm is fetching it; waiting for that, at most {left:.0f} s"
        locks[region] = stack.enter_context(cache.lock(region, left, lambda wait=wait: progress(wait)))  # type: ignore[misc]
    return locks


def _count_down(region: str, waiting: Counter[str], locks: Mapping[str, RegionLock]) -> None:
    # Whoever waits for one region need not wait for all of them.
    waiting[region] -= 1
    if not waiting[region]:
        locks[region].release()


def _ask(
    wishes: Sequence[Wish], providers: Providers, now: datetime, progress: Callable[[str], None], give_up_s: float
) -> Generator[Outcome, None, None]:
    if not wishes:
        return
    try:
        asked = providers()
    except CloudError as error:
        yield from (Outcome(w, None, error) for w in wishes)
        return
    nobody = [w for w in wishes if w.kind not in asked]
    yield from (Outcome(w, None) for w in nobody)
    wishes = [w for w in wishes if w.kind in asked]
    for region in dict.fromkeys(w.region for w in wishes):
        progress(f"{region}: fetching {listed(title(w.kind) for w in wishes if w.region == region)}")
    yield from _at_once(wishes, asked, now, give_up_s)


def _at_once(
    wishes: Sequence[Wish], asked: Mapping[str, Provider], now: datetime, give_up_s: float
) -> Generator[Outcome, None, None]:
    refusals = dict[str, CloudError]()

    def ask(wish: Wish) -> Outcome:
        known = None if wish.kind in PUBLIC else refusals.get(wish.region)
        outcome = Outcome(wish, None, known) if known is not None else _fetched(wish, asked[wish.kind], now)
        if outcome.error is not None and outcome.error.why in CREDENTIAL_REASONS:
            refusals[wish.region] = outcome.error  # the rest would be refused alike, each after its own tries
        return outcome

    left = set(wishes)
    with closing(DaemonPool(ask, wishes, AT_ONCE, "fetch")) as pool, suppress(queue.Empty):
        while left:
            outcome = pool.next(give_up_s).result()
            left.discard(outcome.wish)
            yield outcome
    for wish in sorted(left, key=wishes.index):
        detail = f"no answer within {give_up_s:.0f} s"
        error = CloudError(f"{title(wish.kind)} of {wish.region}", "timeout", detail, "try again later")
        yield Outcome(wish, None, error, give_up_s)


def _fetched(wish: Wish, provider: Provider, now: datetime) -> Outcome:
    start = time.monotonic()
    signal, error = None, None
    what = f"{title(wish.kind)} of {wish.region}"
    try:
        signal = provider.fetch(wish.region, now)
    except CloudError as failure:
        error = failure
    except DeepVMError as failure:
        error = CloudError(what, "reply", str(failure), "try again later")
    except Exception as failure:
        # A mistake in a reader of replies must cost its signal only. Its text is not shown: it may quote anything.
        detail = f"internal error while reading the answer: {type(failure).__name__}"
        error = CloudError(what, "reply", detail, "this is a bug: please report it")
    if signal is not None:
        problem = form_problem(wish.kind, signal.data)
        if problem or (signal.kind, signal.region) != (wish.kind, wish.region):
            detail = f"the answer has another form: {problem or f'{signal.kind} of {signal.region}'}"
            signal, error = None, CloudError(what, "reply", detail, "try again later")
    return Outcome(wish, signal, error, time.monotonic() - start)


def _line(outcome: Outcome) -> str:
    what = f"{outcome.wish.region}: {title(outcome.wish.kind)}"
    if outcome.signal is None:
        return f"{what} failed ({outcome.seconds:.1f} s)"
    return f"{what} fetched ({outcome.seconds:.1f} s)"
