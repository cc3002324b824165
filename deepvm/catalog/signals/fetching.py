"""Fetch many signals at once into the cache; failures are independent.

What fails slowly is remembered for five minutes (a negative cache), so that not every command waits
for it. Refused credentials and permissions are not: they fail fast, and may have been repaired
since.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from deepvm.catalog.signals.cache import Cache
from deepvm.catalog.signals.signal import ADVISOR, FAILURES, Provider, Signal, age, title
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


class SignalRequest(NamedTuple):
    """A signal that is wanted."""

    region: str
    kind: str


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
    from concurrent.futures import FIRST_COMPLETED, wait

    from deepvm.catalog.signals.daemon_pool import run_in_daemons

    if not requests:
        return ()
    try:
        sources = providers()
    except CloudError as failure:
        return tuple(Outcome(r, None, failure) for r in requests)
    asked = [r for r in requests if r.kind in sources]
    for region in dict.fromkeys(r.region for r in asked):
        titles = joined(title(r.kind) for r in asked if r.region == region)
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

    outcomes = {r: Outcome(r, None) for r in requests}

    def settle(outcome: Outcome) -> None:
        request = outcome.request
        outcomes[request] = outcome
        result = "failed"
        if outcome.signal is not None:
            cache.write(outcome.signal, now)
            result = "fetched"
        elif outcome.error is not None:
            remember_failure(cache, request, outcome.error, now)
        progress(f"{request.region}: {title(request.kind)} {result} ({outcome.seconds:.1f} s)")

    left = dict(zip(run_in_daemons(ask, asked, AT_ONCE, "fetch"), asked, strict=True))
    try:
        while left and (answered := wait(left, give_up_s, FIRST_COMPLETED).done):
            for future in answered:
                del left[future]
                settle(future.result())
    finally:
        for future in left:
            future.cancel()
    for request in left.values():
        late = f"no answer within {give_up_s:.0f} s"
        source = sources[request.kind].source
        error = CloudError(source, "timeout", late, "try again later")
        settle(Outcome(request, None, error, give_up_s))
    return tuple(outcomes.values())


def _fetched(request: SignalRequest, provider: Provider, now: datetime) -> Outcome:
    start = time.monotonic()
    try:
        signal = provider.fetch(request.region, now)
        return Outcome(request, signal, None, time.monotonic() - start)
    except CloudError as failure:
        error = failure
    except Exception as failure:
        # A bug in a reader of replies costs only its signal. Its text may quote secrets.
        detail = f"internal error while reading the answer: {type(failure).__name__}"
        if isinstance(failure, DeepVMError):
            detail = str(failure)
        error = CloudError(provider.source, "reply", detail, "try again later")
    return Outcome(request, None, error, time.monotonic() - start)


def recent_failure(cache: Cache, request: SignalRequest, now: datetime) -> CloudError | None:
    """The error of a signal that failed slowly within the last five minutes."""
    stored = cache.read(request.region, f"{FAILURES}:{request.kind}", now)
    if stored is None or stored.origin != "cache" or stored.observed_at > now:
        return None
    ago = f"that was {age(stored.observed_at, now)} ago"
    detail = f"{stored.data['detail']}; {ago}, and 'deepvm catalog refresh' asks again now"
    return CloudError(**{**stored.data, "detail": detail})


def remember_failure(
    cache: Cache, request: SignalRequest, error: CloudError, now: datetime
) -> None:
    """Keep the error of a signal if it is a slow one."""
    if error.why in SLOW_REASONS:
        kind = f"{FAILURES}:{request.kind}"
        cache.write(Signal(kind, request.region, now, "deepvm", vars(error)), now)
