"""Public catalogs as a source of a market's signals: which are asked, how long for, and what of theirs is newest."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from deepvm.catalog.public.public_market import ALONE_S, QUICK_S, SLOW_S, PublicMarket, newest
from deepvm.catalog.public.registry import SOURCES, source
from deepvm.catalog.published.instance_networks import bandwidths
from deepvm.catalog.signals.cache import Cache, default_folder
from deepvm.catalog.signals.cloud import Cloud
from deepvm.catalog.signals.signal import SPECS, Signal
from deepvm.errors import CloudError, RequestError

AUTO, NONE = "auto", "none"
OFF = "none"
"""In place of a source's address: it is never asked nor read."""


def wanted_source(named: str) -> str:
    """The source that is named, else ``auto``. Raises RequestError."""
    if named not in ("", AUTO, NONE, *SOURCES):
        raise RequestError("source", named, " or ".join((AUTO, NONE, *SOURCES)))
    return named or AUTO


def public_markets(
    cloud: Cloud,
    wanted: str,
    now: datetime,
    progress: Callable[[str], None] = lambda _: None,
    silent: dict[str, CloudError] | None = None,
) -> tuple[PublicMarket, ...]:
    """The public catalogs of a cloud that may be used, in the order in which they are asked.

    ``silent``: those that gave no answer, as
    :class:`~deepvm.catalog.public.public_market.PublicMarket` has them. Raises RequestError: the
    wanted one is switched off.
    """
    names = [] if wanted == NONE else [*SOURCES] if wanted == AUTO else [wanted]
    known = [s for s in map(source, names) if os.environ.get(s.variable) != OFF]
    if wanted in SOURCES and not known:
        raise RequestError(
            "source",
            wanted,
            f"a catalog that is not switched off, as {source(wanted).variable} does",
        )
    silent = {} if silent is None else silent
    # Sources that still renew their file are asked before others
    known.sort(key=lambda s: cloud.name in s.ended)
    return tuple(
        PublicMarket(
            s,
            cloud.name,
            cache_of(cloud, s.name, s.period_s),
            now,
            progress=progress,
            silent=silent,
        )
        for s in known
        if cloud.name in s.clouds
    )


def cache_of(cloud: Cloud, name: str, period_s: int) -> Cache:
    """The cache of what a source says of a cloud."""
    folder = default_folder(os.environ, cloud.name)
    return Cache(None if folder is None else folder / f"source_{name}", "public", period_s)


@dataclass
class PublicPrices:
    """What public catalogs say of a cloud's regions, as :data:`deepvm.catalog.signals.resolve.Elsewhere`.

    Attributes:
        ask: whether the first one may be asked; else only what is kept counts. named: whether the
            user named it, so that it is waited for. others: whether there are other clouds to
            answer from. error: why it gave no answer, set by the first call.
    """

    cloud: Cloud
    markets: Sequence[PublicMarket]
    ask: bool
    named: bool
    now: datetime
    others: bool = False
    error: CloudError | None = None

    def __call__(self, regions: Sequence[str]) -> Mapping[str, Mapping[str, Signal]]:
        """The newest signals of some regions."""
        found = []
        for number, market in enumerate(self.markets):
            said = (
                market.latest(regions, self._wait_s)
                if self.ask and number == 0
                else market.kept(regions)
            )
            self.error = self.error or said.error
            found.append(said)
        kinds = {k for said in found for signals in said.signals.values() for k in signals}
        best = {
            r: {k: newest([said.of(r, k) for said in found], self.now) for k in kinds}
            for r in regions
        }
        return {
            r: {k: self._completed(s) for k, s in signals.items() if s}
            for r, signals in best.items()
        }

    @property
    def _wait_s(self) -> float:
        if self.named:
            return SLOW_S
        at_hand = (
            self.others
            or self.cloud.snapshot_regions()
            or any(market.regions() for market in self.markets)
        )
        return QUICK_S if at_hand else ALONE_S

    def regions(self) -> tuple[str, ...]:
        """All regions of which they have prices, sorted; the first one is asked if it may be."""
        if self.ask and self.markets:
            said = self.markets[0].latest((), self._wait_s)
            self.error = said.error
        return tuple(sorted({r for market in self.markets for r in market.regions()}))

    def _completed(self, signal: Signal) -> Signal:
        """Specifications with what vendors, a type's name and the snapshot say beyond those of the catalog."""
        if signal.kind != SPECS:
            return signal
        known: dict[str, Any] = {}
        for region in self.cloud.snapshot_regions():
            embedded = self.cloud.snapshot(region).get(SPECS)
            known |= {} if embedded is None else embedded.data
        facts = self.cloud.facts_of
        data = {
            name: {
                **spec,
                **bandwidths(self.cloud.name, name),
                **facts(name),
                **known.get(name, {}),
            }
            for name, spec in signal.data.items()
        }
        return replace(signal, data=data)
