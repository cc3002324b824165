"""Sources of signals, asked in order: the first fresh answer counts, else the newest."""
# Slow failures are remembered for five minutes, so that not every command waits for them. Refused
# credentials and permissions are not: they fail fast, and may be repaired by then.

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import NamedTuple, TypeVar

from deepvm.catalog.price_sources import TITLES
from deepvm.catalog.signals import signal as kinds
from deepvm.catalog.signals.cache import Cache
from deepvm.catalog.signals.signal import Provider, Signal, age, base, reason, title
from deepvm.core.progress import Say
from deepvm.core.spelling import joined
from deepvm.errors import CloudError, DeepVMError
from deepvm.io.threads import start_thread
from deepvm.records import dataclass, field

AT_ONCE = 8  # Most signals that are fetched at the same time
# Seconds without any answer after which the rest counts as failed. Providers take a few minutes at
# most
GIVE_UP_S = 420.0
AUTO_GIVE_UP_S = 60.0  # The same for ``auto``, which then uses stored signals
PUBLIC = frozenset({kinds.ADVISOR})  # Kinds that need no credentials
# Reasons of a CloudError that apply to every signal of the account
CREDENTIAL_REASONS = frozenset({"credentials", "expired", "clock"})

# Reasons of a CloudError that are remembered
SLOW_REASONS = frozenset({"network", "timeout", "throttled"})


class SignalRequest(NamedTuple):
    """Names a signal by region and kind."""

    region: str
    kind: str


@dataclass
class Quotes:
    """The signals that a source has, and why others are missing."""

    signals: dict[SignalRequest, Signal] = field(default_factory=dict)
    errors: dict[SignalRequest, CloudError] = field(default_factory=dict)
    seconds: dict[SignalRequest, float] = field(default_factory=dict)


class PriceSource(ABC):
    """Where signals come from."""

    settles = True  # a fresh answer ends the search; else the newest of all sources counts

    @abstractmethod
    def fetch(self, requests: Sequence[SignalRequest]) -> Quotes:
        """The signals of these requests that it has."""


@dataclass(frozen=True)
class CloudApi(PriceSource):
    """A cloud itself; its answers, and slow failures, are kept in the cache."""

    cache: Cache
    providers: Callable[[], Mapping[str, Provider]]
    now: datetime
    progress: Say
    patient: bool = False

    def fetch(self, requests: Sequence[SignalRequest]) -> Quotes:
        quotes = Quotes()
        for request in requests if not self.patient else ():
            error = recent_failure(self.cache, request, self.now)
            if error is not None:
                quotes.errors[request] = error
        asked = [r for r in requests if r not in quotes.errors]
        if not asked:
            return quotes
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
            result = "fetched"
            if isinstance(answer, Signal):
                quotes.signals[request] = answer
                self.cache.write(answer, self.now)
            else:
                result = "failed"
                quotes.errors[request] = answer
                remember_failure(self.cache, request, answer, self.now)
            self.progress(f"{request.region}: {title(request.kind)} {result} ({seconds:.1f} s)")

        give_up_s = AUTO_GIVE_UP_S
        if self.patient:
            give_up_s = GIVE_UP_S
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
    stored = cache.read(request.region, f"{kinds.FAILURES}:{request.kind}", now)
    if stored is None or not stored.fresh or stored.observed_at > now:
        return None
    detail = (
        f"{stored.data['detail']}; that was {age(stored.observed_at, now)} ago, and 'deepvm catalog"
        " refresh' asks again now"
    )
    return CloudError(**{**stored.data, "detail": detail})


def remember_failure(
    cache: Cache, request: SignalRequest, error: CloudError, now: datetime
) -> None:
    """Write the error of a signal into the cache if it is a slow one."""
    if error.why in SLOW_REASONS:
        kind = f"{kinds.FAILURES}:{request.kind}"
        cache.write(Signal(kind, request.region, now, "deepvm", vars(error)), now)


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def run_in_daemons(
    work: Callable[[_Item], _Result], items: Sequence[_Item], at_once: int, name: str
) -> list[Future[_Result]]:
    """Work on items in at most ``at_once`` daemon threads; cancelled ones are not started."""
    # No ThreadPoolExecutor: Python waits for its threads, even after Ctrl-C, and a cloud may stay
    # silent for minutes.
    futures: list[Future[_Result]] = [Future() for _ in items]
    waiting = deque(zip(futures, items, strict=True))

    def serve() -> None:
        while waiting:
            try:
                future, item = waiting.popleft()
            except IndexError:  # another thread took the last one
                return
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work(item))
                except BaseException as error:
                    future.set_exception(error)

    for number in range(min(at_once, len(items))):
        start_thread(serve, name=f"{name}-{number}")
    return futures


_ALWAYS_NEEDED = frozenset({kinds.SPECS, kinds.ON_DEMAND, kinds.SPOT})
_ADVICE_HELPS = CREDENTIAL_REASONS | {"permission", "region", "throttled"}

Signals = Mapping[SignalRequest, Signal]


@dataclass(frozen=True)
class Stored(PriceSource):
    """Stored signals: fetched before, or shipped with deepvm."""

    read: Callable[[str, str], Signal | None]
    without: Collection[str] = ()

    def fetch(self, requests: Sequence[SignalRequest]) -> Quotes:
        signals = {r: self.read(*r) for r in requests if base(r.kind) not in self.without}
        return Quotes({r: s for r, s in signals.items() if s is not None})


@dataclass(frozen=True)
class ResolvedSignals:
    """The best signals, and why others are missing or old."""

    signals: Signals
    errors: Mapping[SignalRequest, CloudError] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    not_asked: str = ""

    def of_region(self, region: str) -> dict[str, Signal]:
        return {r.kind: s for r, s in self.signals.items() if r.region == region}

    def errors_of(self, region: str) -> dict[str, CloudError]:
        return {r.kind: e for r, e in self.errors.items() if r.region == region}

    def check_live(self, region: str) -> None:
        for kind, error in self.errors_of(region).items():
            if base(kind) in kinds.PRICES or error.why in CREDENTIAL_REASONS:
                raise CloudError(
                    f"live prices of {region}",
                    error.why,
                    f"{reason(error.why)} ({error.what}: {error.detail})",
                    f"{error.advice}; --prices auto continues with older prices",
                )


def resolve(
    requests: Sequence[SignalRequest],
    sources: Iterable[PriceSource],
    now: datetime,
    not_asked: str = "",
) -> ResolvedSignals:
    """Get signals of one or more regions from sources in order."""
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
        error = self.error
        return f"{_titles(self.requests)}: {reason(error.why)} ({error.what}: {error.detail})"

    @property
    def advice(self) -> str:
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
    titles = joined(dict.fromkeys(title(r.kind) for r in requests))
    return f"{titles} of {joined(dict.fromkeys(r.region for r in requests))}"
