"""Negative cache: what just failed slowly is not asked for again for five minutes.

Refused credentials and permissions are not remembered: they fail fast, and may have been repaired since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from deepvm.catalog.signals.cache import Cache
from deepvm.catalog.signals.fetching import Outcome
from deepvm.catalog.signals.signal import FAILURES, Signal, ttl_s
from deepvm.catalog.signals.signal_words import age
from deepvm.errors import CloudError

_REMEMBERED = frozenset({"network", "timeout", "throttled"})


def recent_failures(cache: Cache, region: str, now: datetime) -> Mapping[str, CloudError]:
    """The kinds of a region that failed within the last five minutes, with their errors."""
    kept = cache.read(region, FAILURES, now)
    if kept is None or kept.origin != "cache":
        return {}
    found = {}
    for kind, said in kept.data.items():
        failed_at = datetime.fromtimestamp(said["at"], now.tzinfo)
        if 0 <= (now - failed_at).total_seconds() < ttl_s(FAILURES):
            detail = (
                f"{said['detail']}; that was {age(failed_at, now)} ago, and 'deepvm catalog refresh' asks again now"
            )
            found[kind] = CloudError(said["what"], said["why"], detail, said["advice"])
    return found


def remember_failures(cache: Cache, outcomes: Sequence[Outcome], now: datetime) -> None:
    """Keep new failures, drop those of what has been fetched since."""
    for region in dict.fromkeys(o.wish.region for o in outcomes):
        kept = cache.read(region, FAILURES, now)
        before = dict(kept.data) if kept is not None and kept.origin == "cache" else {}
        after = dict(before)
        for outcome in (o for o in outcomes if o.wish.region == region):
            error, kind = outcome.error, outcome.wish.kind
            if error is not None and error.why in _REMEMBERED:
                said = {"what": error.what, "why": error.why, "detail": error.detail, "advice": error.advice}
                after[kind] = said | {"at": int(now.timestamp())}
            elif outcome.signal is not None:
                after.pop(kind, None)
        if after != before:
            cache.write(Signal(FAILURES, region, now, "deepvm", after), now)
