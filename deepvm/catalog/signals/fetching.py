"""Fetch many signals at once into the cache; failures are independent.

What fails slowly is remembered for five minutes (a negative cache), so that not every command waits
for it. Refused credentials and permissions are not: they fail fast, and may have been repaired
since.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deepvm.catalog.signals.cache import Cache
from deepvm.catalog.signals.signal import (
    ADVISOR,
    FAILURES,
    Provider,
    Signal,
    age,
    title,
    ttl_s,
)
from deepvm.core.spelling import joined
from deepvm.errors import CloudError, DeepVMError

AT_ONCE = 8
"""Most signals that are fetched at the same time."""

GIVE_UP_S = 420.0
"""Seconds without any answer after which the rest counts as failed.

Providers take a few minutes at most.
"""

PUBLIC = frozenset({ADVISOR})
"""Kinds that need no credentials."""

CREDENTIAL_REASONS = frozenset({"credentials", "expired", "clock"})
"""Reasons of a CloudError that apply to every signal of the account."""

SLOW_REASONS = frozenset({"network", "timeout", "throttled"})
"""Reasons of a CloudError that are remembered."""

Providers = Callable[[], Mapping[str, Provider]]


@dataclass(frozen=True)
class SignalRequest:
    """A signal to fetch; ``refetch``: even if the cache is fresh."""

    region: str
    kind: str
    refetch: bool = False


@dataclass(frozen=True)
class Outcome:
    """The signal, or an error; or neither: no provider."""

    request: SignalRequest
    signal: Signal | None
    error: CloudError | None = None
    seconds: float = 0.0


def fetch(
    requests: Sequence[SignalRequest],
    providers: Providers,
    *,
    cache: Cache,
    now: datetime,
    progress: Callable[[str], None],
    give_up_s: float = GIVE_UP_S,
) -> tuple[Outcome, ...]:
    """Fetch signals of one or more regions; keep them, and slow failures, in the cache.

    An interrupt ends it at once: requests under way finish in the background and are dropped. After
    ``give_up_s`` without a single answer the rest counts as failed.

    Returns:
        An outcome for each request, in their order; errors of providers are in there, none are
        raised.
    """
    outcomes: dict[SignalRequest, Outcome] = {}
    # Closed explicitly: after an interrupt a traceback may keep the generator, and so its threads,
    # alive.
    with closing(_ask(requests, providers, now, progress, give_up_s)) as answers:
        for outcome in answers:
            outcomes[outcome.request] = outcome
            what = f"{outcome.request.region}: {title(outcome.request.kind)}"
            if outcome.signal is not None:
                cache.write(outcome.signal, now)
                progress(f"{what} fetched ({outcome.seconds:.1f} s)")
            elif outcome.error is not None:
                progress(f"{what} failed ({outcome.seconds:.1f} s)")
    ordered = tuple(outcomes[r] for r in requests)
    remember_failures(cache, ordered, now)
    return ordered


def _ask(
    requests: Sequence[SignalRequest],
    providers: Providers,
    now: datetime,
    progress: Callable[[str], None],
    give_up_s: float,
) -> Generator[Outcome, None, None]:
    """Outcomes in the order in which they come."""
    from concurrent.futures import FIRST_COMPLETED, wait

    from deepvm.catalog.signals.daemon_pool import run_in_daemons

    if not requests:
        return
    try:
        sources = providers()
    except CloudError as failure:
        yield from (Outcome(r, None, failure) for r in requests)
        return
    yield from (Outcome(r, None) for r in requests if r.kind not in sources)
    requests = [r for r in requests if r.kind in sources]
    for region in dict.fromkeys(r.region for r in requests):
        titles = joined(title(r.kind) for r in requests if r.region == region)
        progress(f"{region}: fetching {titles}")
    refusals: list[CloudError] = []

    def ask(request: SignalRequest) -> Outcome:
        # The rest would be refused too, each after its own retries.
        if refusals and request.kind not in PUBLIC:
            return Outcome(request, None, refusals[0])
        outcome = _fetched(request, sources[request.kind], now)
        if outcome.error is not None and outcome.error.why in CREDENTIAL_REASONS:
            refusals.append(outcome.error)
        return outcome

    left = dict(zip(run_in_daemons(ask, requests, AT_ONCE, "fetch"), requests, strict=True))
    try:
        while left and (answered := wait(left, give_up_s, FIRST_COMPLETED).done):
            for future in answered:
                del left[future]
                yield future.result()
    finally:
        for future in left:
            future.cancel()
    for request in left.values():
        detail = f"no answer within {give_up_s:.0f} s"
        error = CloudError(_what(request), "timeout", detail, "try again later")
        yield Outcome(request, None, error, give_up_s)


def _fetched(request: SignalRequest, provider: Provider, now: datetime) -> Outcome:
    start = time.monotonic()
    try:
        signal = provider.fetch(request.region, now)
        return Outcome(request, signal, None, time.monotonic() - start)
    except CloudError as failure:
        error = failure
    except DeepVMError as failure:
        error = CloudError(_what(request), "reply", str(failure), "try again later")
    except Exception as failure:
        # A bug in a reader of replies costs only its signal. Its text may quote secrets.
        detail = f"internal error while reading the answer: {type(failure).__name__}"
        error = CloudError(_what(request), "reply", detail, "this is a bug: please report it")
    return Outcome(request, None, error, time.monotonic() - start)


def _what(request: SignalRequest) -> str:
    return f"{title(request.kind)} of {request.region}"


def recent_failures(cache: Cache, region: str, now: datetime) -> Mapping[str, CloudError]:
    """Errors of a region's signals within the last five minutes, by kind."""
    failures = {}
    for kind, error in _stored_failures(cache, region, now).items():
        failed_at = datetime.fromtimestamp(error["at"], now.tzinfo)
        if 0 <= (now - failed_at).total_seconds() < ttl_s(FAILURES):
            ago = f"that was {age(failed_at, now)} ago, and 'deepvm catalog refresh' asks again now"
            detail = f"{error['detail']}; {ago}"
            failures[kind] = CloudError(error["what"], error["why"], detail, error["advice"])
    return failures


def remember_failures(cache: Cache, outcomes: Sequence[Outcome], now: datetime) -> None:
    """Add new slow failures, drop those of what has been fetched since."""
    for region in dict.fromkeys(o.request.region for o in outcomes):
        before = _stored_failures(cache, region, now)
        after = dict(before)
        for outcome in (o for o in outcomes if o.request.region == region):
            error = outcome.error
            kind = outcome.request.kind
            if error is not None and error.why in SLOW_REASONS:
                after[kind] = {**vars(error), "at": int(now.timestamp())}
            elif outcome.signal is not None:
                after.pop(kind, None)
        if after != before:
            cache.write(Signal(FAILURES, region, now, "deepvm", after), now)


def _stored_failures(cache: Cache, region: str, now: datetime) -> Mapping[str, Mapping[str, Any]]:
    stored = cache.read(region, FAILURES, now)
    return stored.data if stored is not None and stored.origin == "cache" else {}
