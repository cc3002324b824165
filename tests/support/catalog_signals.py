"""Signals of every kind with little in them, and honest fakes of providers: they fetch, count, fail
or stall.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

from deepvm.catalog.signals import signal as provider
from deepvm.catalog.signals.cache import Cache
from deepvm.catalog.signals.fetching import (
    CloudApi,
    PriceSource,
    ResolvedSignals,
    SignalRequest,
    Stored,
)
from deepvm.catalog.signals.fetching import resolve as resolve_requests
from deepvm.catalog.signals.signal import Provider, Signal
from deepvm.errors import CloudError

NOW = datetime(2026, 11, 21, 9, 30, tzinfo=timezone.utc)
REGION = "us-east-1"

DATA: dict[str, Any] = {
    provider.SPECS: {"g4dn.xlarge": {"vcpus": 4, "memory_gib": 16.0, "spot": True}},
    provider.OFFERINGS: {"g4dn.xlarge": ["use1-az4", "use1-az6"]},
    provider.ZONES: {"use1-az4": "us-east-1a"},
    provider.ON_DEMAND: {"g4dn.xlarge": "0.526"},
    provider.SPOT: {"g4dn.xlarge": {"use1-az4": ["0.1578", "2026-11-21T09:00:00Z"]}},
    "history:30": {"g4dn.xlarge": {"use1-az4": [[1795000000, "0.1578"], [1795003600, "0.16"]]}},
    provider.ADVISOR: {"g4dn.xlarge": 2},
    provider.QUOTAS: [
        {"family": "G and VT", "market": "spot", "code": "L-3819A6DF", "vcpus": 64, "in_use": 8}
    ],
    provider.PLACEMENT: [{"zone": "use1-az4", "score": 7}],
    provider.REGIONS: ["us-east-1"],
}
KINDS = (
    provider.SPECS,
    provider.OFFERINGS,
    provider.ZONES,
    provider.ON_DEMAND,
    provider.SPOT,
    provider.ADVISOR,
    provider.QUOTAS,
)


def signal(kind: str = provider.SPOT, region: str = REGION, **changes: Any) -> Signal:
    fields: dict[str, Any] = {"observed_at": NOW, "source": "a test", "data": DATA[kind]}
    return Signal(kind=kind, region=region, **(fields | changes))


def file_of(cache: Cache, kind: str = provider.SPOT, region: str = REGION) -> Path:
    """Where a cache keeps a signal."""
    file = cache._path(region, kind)
    assert file is not None
    return file


def denied(
    why: str = "timeout", detail: str = "no answer within 30 s", advice: str = "try again"
) -> CloudError:
    return CloudError("ec2 DescribeThings in us-east-1", why, detail, advice)


class Fake(Provider):
    """Answers with the kind's data; or raises; or waits first."""

    def __init__(
        self, kind: str, *, error: Exception | None = None, data: Any = None, stall_s: float = 0.0
    ) -> None:
        self.kind = kind
        self.source = "the fake cloud"
        self.error, self.data, self.stall_s = error, DATA[kind] if data is None else data, stall_s
        self.calls: list[str] = []
        self._lock = threading.Lock()

    def fetch(self, region: str, now: datetime) -> Signal:
        with self._lock:
            self.calls.append(region)
        if self.stall_s:
            time.sleep(self.stall_s)
        if self.error is not None:
            raise self.error
        return signal(self.kind, region, observed_at=now, data=self.data, source="the fake cloud")


class Cloud:
    """Providers of all kinds, and how often they were asked for."""

    def __init__(self, kinds: Iterable[str] = KINDS, **special: Fake | Exception) -> None:
        self.fakes = {k: Fake(k) for k in kinds}
        for name, fake in special.items():
            kind = name.replace("_", "-")
            self.fakes[kind] = fake if isinstance(fake, Fake) else Fake(kind, error=fake)
        self.made = 0

    def __call__(self) -> dict[str, Provider]:
        self.made += 1
        return dict(self.fakes)

    @property
    def calls(self) -> dict[str, int]:
        return {k: len(f.calls) for k, f in self.fakes.items() if f.calls}


def after(**delta: float) -> datetime:
    return NOW + timedelta(**delta)


@dataclass(frozen=True)
class Found:
    """The signals of one region, and the notes about all."""

    signals: Mapping[str, Signal]
    notes: tuple[str, ...] = ()


def resolve(
    region: str, kinds: Sequence[str], mode: str, *, snapshot: Mapping[str, Signal], **given: Any
) -> Found:
    """The signals of one region, with its error raised."""
    result = together([region], kinds, mode, snapshot=lambda _: snapshot, **given)
    if mode == "live":
        result.check_live(region)
    return Found(result.of_region(region), result.notes)


def together(
    regions: Sequence[str],
    kinds: Sequence[str],
    mode: str,
    *,
    cache: Cache,
    providers: Any,
    snapshot: Any,
    now: datetime,
    progress: Any = lambda _: None,
    not_asked: str = "",
) -> ResolvedSignals:
    """As ``open_markets`` puts sources in order."""
    without = provider.PRICES if mode == "live" else ()
    sources: list[PriceSource] = [Stored(lambda r, k: snapshot(r).get(k), without)]
    if mode != "snapshot":
        sources.insert(0, Stored(partial(cache.read, now=now), without))
        if providers is not None:
            sources.insert(1, CloudApi(cache, providers, now, progress, patient=mode == "live"))
    requests = [SignalRequest(r, k) for r in regions for k in kinds]
    return resolve_requests(requests, sources, now, not_asked)


SNAPSHOT = {
    k: signal(k, observed_at=after(days=-100), origin="snapshot")
    for k in ("specs", "on-demand", "spot")
}


def get(
    cache: Cache,
    cloud: Any,
    mode: str = "auto",
    kinds: Sequence[str] = KINDS,
    now: datetime = NOW,
    **changes: Any,
) -> Found:
    """The signals of :data:`REGION`."""
    settings: dict[str, Any] = {"snapshot": SNAPSHOT, "progress": lambda _: None} | changes
    return resolve(REGION, kinds, mode, cache=cache, providers=cloud, now=now, **settings)


def several(
    cache: Cache, cloud: Any, regions: Sequence[str], mode: str = "auto", **changes: Any
) -> ResolvedSignals:
    """The signals of several regions; only :data:`REGION` has a snapshot."""
    settings: dict[str, Any] = {
        "kinds": KINDS,
        "snapshot": lambda r: SNAPSHOT if r == REGION else {},
        "now": NOW,
    }
    settings |= changes
    return together(regions, settings.pop("kinds"), mode, cache=cache, providers=cloud, **settings)


def origins(resolved: Found) -> dict[str, str]:
    return {k: s.origin for k, s in resolved.signals.items()}


def all_from(origin: str, kinds: Iterable[str] = KINDS) -> dict[str, str]:
    return dict.fromkeys(kinds, origin)
