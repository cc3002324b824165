"""Which prices a command uses, in the one line that it prints when all is as usual."""

from __future__ import annotations

from collections.abc import Sequence

from deepvm.catalog.clouds import cloud_of
from deepvm.catalog.price_sources import TITLES
from deepvm.catalog.signals.signal import PRICES, base
from deepvm.core.cluster.instances import Catalog
from deepvm.core.spelling import joined, listed
from deepvm.planner.regions import cloud_name


def brief_line(catalogs: Sequence[Catalog]) -> str:
    """Which prices are used, in a short line.

    It is for prices with which nothing is wrong but perhaps their age.
    """
    told = [c.provenance for c in catalogs]
    asked_for = (c for c in catalogs if c.provenance.not_asked)
    # What is said of a cloud that could have been asked comes before what is said of others.
    first_told = sorted(asked_for, key=lambda c: not cloud_of(c.name).has_api)
    why = ""
    if first_told:
        why = first_told[0].provenance.not_asked
    if not why:
        first, more, _ = next(text for about in told for text in about.usual).partition(":")
        if more:
            return f"{first})"
        return first
    prices = [o for about in told for o in about.origins if base(o.signal) in PRICES]
    days = sorted({f"{o.observed_at.date()}" for o in prices})
    later = "" if all(o.dated for o in prices) else " or later"
    between = " to ".join(dict.fromkeys([*days[:1], *days[-1:]])) + later
    several = len({cloud_name(c) for c in catalogs}) > 1
    places = [f"{cloud_name(c)} {c.region}" if several else c.region for c in catalogs]
    files = dict.fromkeys(o.source for about in told for o in about.origins if o.source in TITLES)
    source = f", from {joined(files)}" if files else ""
    # That a cloud without a way to ask it is not asked is no news.
    if all(not cloud_of(c.name).has_api for c in catalogs):
        reason = ""
    else:
        reason = f"{why.replace(' were found', '')}: "
    line = f"{reason}{listed(places, 3)} prices are of {between}{source}"
    if "credentials" in reason:
        return f"{line}; see 'deepvm doctor'"
    return line
