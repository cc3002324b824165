"""Sources of signals, and the one that is a cloud itself: many requests at once into the cache.

Slow failures are remembered for five minutes (a negative cache), so that not every command waits
for them. Refused credentials and permissions are not: they fail fast, and may be repaired by then.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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

AUTO_GIVE_UP_S = 60.0
"""The same for ``auto``, which then uses stored signals."""

PUBLIC = frozenset({ADVISOR})
"""Kinds that need no credentials."""

CREDENTIAL_REASONS = frozenset({"credentials", "expired", "clock"})
"""Reasons of a CloudError that apply to every signal of the account."""

SLOW_REASONS = frozenset({"network", "timeout", "throttled"})
"""Reasons of a CloudError that are remembered."""


class SignalRequest(NamedTuple):
    """Names a signal by region and kind."""

    region: str
    kind: str


@dataclass
class Quotes:
    """The signals that a source has, and why others are missing.

    ``seconds``: how long each took. Signals that the source does not have are in none of these.
    """

    signals: dict[SignalRequest, Signal] = field(default_factory=dict)
    errors: dict[SignalRequest, CloudError] = field(default_factory=dict)
    seconds: dict[SignalRequest, float] = field(default_factory=dict)


class PriceSource(ABC):
    """Where signals come from.

    Attributes:
        settles: whether a fresh answer ends the search; else the newest of all sources counts.
    """

    settles = True

    @abstractmethod
    def fetch(self, requests: Sequence[SignalRequest]) -> Quotes:
        """The signals of these requests that it has."""


@dataclass(frozen=True)
class CloudApi(PriceSource):
    """A cloud itself; its answers, and slow failures, are kept in the cache.

    ``patient``: whether to ask again for what has just failed, and to wait long.
    """

    cache: Cache
    providers: Callable[[], Mapping[str, Provider]]
    now: datetime
    progress: Callable[[str], None]
    patient: bool = False

    def fetch(self, requests: Sequence[SignalRequest]) -> Quotes:
        """As described; failures are independent, and errors of providers are not raised.

        An interrupt ends it at once: requests under way finish in the background and are dropped.
        """
        quotes = Quotes()
        for request in requests if not self.patient else ():
            error = recent_failure(self.cache, request, self.now)
            if error is not None:
                quotes.errors[request] = error
        asked = [r for r in requests if r not in quotes.errors]
        if asked:
            try:
                providers = self.providers()
            except CloudError as failure:
                quotes.errors |= dict.fromkeys(asked, failure)
            else:
                self._ask([r for r in asked if r.kind in providers], providers, quotes)
        return quotes

    def _ask(
        self, asked: Sequence[SignalRequest], providers: Mapping[str, Provider], quotes: Quotes
    ) -> None:
        from concurrent.futures import FIRST_COMPLETED, wait

        from deepvm.catalog.signals.daemon_pool import run_in_daemons

        for region in dict.fromkeys(r.region for r in asked):
            titles = joined(title(r.kind) for r in asked if r.region == region)
            self.progress(f"{region}: fetching {titles}")
        refusals: list[CloudError] = []

        def ask(request: SignalRequest) -> tuple[Signal | CloudError, float]:
            # The rest would be refused too, each after its own retries.
            if refusals and request.kind not in PUBLIC:
                return refusals[0], 0.0
            start = time.monotonic()
            answer = answer_of(providers[request.kind], request.region, self.now)
            if isinstance(answer, CloudError) and answer.why in CREDENTIAL_REASONS:
                refusals.append(answer)
            return answer, time.monotonic() - start

        # In the thread that waits: an interrupt must not come between an answer and its file.
        def settle(request: SignalRequest, answer: Signal | CloudError, seconds: float) -> None:
            quotes.seconds[request] = seconds
            if isinstance(answer, Signal):
                result = "fetched"
                quotes.signals[request] = answer
                self.cache.write(answer, self.now)
            else:
                result = "failed"
                quotes.errors[request] = answer
                remember_failure(self.cache, request, answer, self.now)
            self.progress(f"{request.region}: {title(request.kind)} {result} ({seconds:.1f} s)")

        give_up_s = GIVE_UP_S if self.patient else AUTO_GIVE_UP_S
        left = dict(zip(run_in_daemons(ask, asked, AT_ONCE, "fetch"), asked, strict=True))
        try:
            while left and (answered := wait(left, give_up_s, FIRST_COMPLETED).done):
                for future in answered:
                    settle(left.pop(future), *future.result())
        finally:
            for future in left:
                future.cancel()
        for request in left.values():
            source = providers[request.kind].source
            late = f"no answer within {give_up_s:.0f} s"
            settle(request, CloudError(source, "timeout", late, "try again later"), give_up_s)


def answer_of(provider: Provider, region: str, now: datetime) -> Signal | CloudError:
    """The signal, or why there is none."""
    try:
        return provider.fetch(region, now)
    except Exception as error:
        return failure_of(provider.source, error, "try again later")


def failure_of(source: str, error: Exception, advice: str) -> CloudError:
    """A CloudError for any error of a source, so that a bug in a reader costs only that source."""
    if isinstance(error, CloudError):
        return error
    # The text of a foreign error may quote secrets
    detail = f"internal error while reading the answer: {type(error).__name__}"
    if isinstance(error, DeepVMError):
        detail = str(error)
    return CloudError(source, "reply", detail, advice)


def recent_failure(cache: Cache, request: SignalRequest, now: datetime) -> CloudError | None:
    """The error of a signal that failed slowly within the last five minutes."""
    stored = cache.read(request.region, f"{FAILURES}:{request.kind}", now)
    if stored is None or not stored.fresh or stored.observed_at > now:
        return None
    ago = f"that was {age(stored.observed_at, now)} ago"
    detail = f"{stored.data['detail']}; {ago}, and 'deepvm catalog refresh' asks again now"
    return CloudError(**{**stored.data, "detail": detail})


def remember_failure(
    cache: Cache, request: SignalRequest, error: CloudError, now: datetime
) -> None:
    """Write the error of a signal into the cache if it is a slow one."""
    if error.why in SLOW_REASONS:
        kind = f"{FAILURES}:{request.kind}"
        cache.write(Signal(kind, request.region, now, "deepvm", vars(error)), now)
