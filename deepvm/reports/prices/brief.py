"""Which prices a command uses, in the one line that it prints when all is as usual."""

from __future__ import annotations

from collections.abc import Sequence

from deepvm.catalog.signals.signal import PRICES, base
from deepvm.core.cluster.instances import Catalog
from deepvm.core.spelling import listed


def brief_line(catalogs: Sequence[Catalog]) -> str:
    """Which prices are used, in a short line, where nothing is wrong with them but perhaps their age."""
    told = [c.provenance for c in catalogs]
    why = next((about.not_asked for about in told if about.not_asked), "")
    if not why:
        first, more, _ = next(text for about in told for text in about.usual).partition(":")
        return f"{first})" if more else first
    days = sorted({f"{o.observed_at.date()}" for about in told for o in about.origins if base(o.signal) in PRICES})
    between = " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))
    line = f"{why.removesuffix(' were found')}: {listed([c.region for c in catalogs], 3)} prices are of {between}"
    return f"{line}; see 'deepvm doctor'" if "credentials" in why else line
