"""Sentences about where figures come from, how old they are, and what to be careful with."""

from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime

import numpy as np

from deepvm.catalog.clouds import cloud_of
from deepvm.catalog.price_sources import TITLES
from deepvm.catalog.signals.signal import PRICES, age, base
from deepvm.core.cluster.cluster import Cluster, Recommendation
from deepvm.core.cluster.instances import Catalog, Market, Quota, find_quota
from deepvm.core.cluster.provenance import PLAIN, UNPUBLISHED, Origin
from deepvm.core.spelling import joined, listed
from deepvm.planner.recommend import Recommendations
from deepvm.planner.regions import cloud_name
from deepvm.records import dataclass
from deepvm.reports.pages import sentences

ODD_START = 0.1  # Curves whose S(1) is further from 1 are doubtful for few VMs
STALE_DAYS = 30  # Spot prices older than this get a note that they are old


def price_origins(catalog: Catalog) -> list[Origin]:
    """Where the prices of a catalog come from."""
    return [o for o in catalog.provenance.origins if base(o.signal) in PRICES]


def brief_line(catalogs: Sequence[Catalog]) -> str:
    """Which prices are used, in a short line."""
    not_asked = [c for c in catalogs if c.provenance.not_asked]
    if not not_asked:
        line, more, _ = next(t for c in catalogs for t in c.provenance.usual).partition(":")
        if more:
            return f"{line})"
        return line
    prices = [origin for catalog in catalogs for origin in price_origins(catalog)]
    days = sorted({f"{o.observed_at.date()}" for o in prices})
    between = " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))
    if not all(origin.dated for origin in prices):
        between += " or later"
    several = len({cloud_name(c) for c in catalogs}) > 1
    names = listed([c.name if several else c.region for c in catalogs], 3)
    line = f"{names} prices are of {between}"
    origins = (origin for catalog in catalogs for origin in catalog.provenance.origins)
    files = dict.fromkeys(o.source for o in origins if o.source in TITLES)
    if files:
        part = "" if all(o.source in TITLES for o in prices) else "in part "
        line += f", {part}from {joined(files)}"
    # A cloud without an API is never asked: a reason would be noise in each answer.
    reasons = [c.provenance.not_asked for c in not_asked if cloud_of(c.name).has_api]
    if reasons:
        line = f"{reasons[0].replace(' were found', '')}: {line}"
    if "credentials" in line:
        return f"{line}; see 'deepvm doctor'"
    return line


def source_line(catalog: Catalog, now: datetime) -> str:
    """Where the prices come from, how old they are, and what to do about it."""
    prices = price_origins(catalog)
    as_of = catalog.provenance.prices_as_of
    text: str = sentences("sources.j2").prices(
        catalog,
        [(o.source if o.source in TITLES else "", o, known_age(o, now)) for o in prices],
        all(o.kind in ("live", "cache") or (now - o.observed_at).days < 1 for o in prices),
        as_of and _days_old(as_of, now),
        as_of and (now.date() - as_of).days > STALE_DAYS,
        cloud_of(catalog.name).has_api,
        refresh_command(catalog),
    )
    return text


def refresh_command(catalog: Catalog) -> str:
    """What renews a market's prices."""
    cloud = cloud_of(catalog.name)
    if not cloud.has_api:
        return f"deepvm catalog refresh --cloud {cloud.name}"
    return f"deepvm catalog refresh --region {catalog.region}"


def source_lines(catalog: Catalog, now: datetime) -> list[str]:
    """Where the prices come from, and which other figures were measured here."""
    return [source_line(catalog, now), *measured_lines(catalog)]


def measured_lines(catalog: Catalog) -> list[str]:
    """Which figures were measured on the user's own machines, or are of a named file, and when."""
    if not catalog.provenance.measured:
        return []
    return [sentences("sources.j2").measured(catalog.provenance, listed)]


def known_age(origin: Origin, now: datetime) -> str:
    """``3 min old``, ``of 2026-08-10, 111 days old``."""
    if origin.kind == "embedded":
        return f"of {origin.observed_at.date()}, {_days_old(origin.observed_at.date(), now)}"
    return f"{age(origin.observed_at, now, origin.dated)} old"


def _days_old(day: date, now: datetime) -> str:
    days = (now.date() - day).days
    if days < 0:
        return "which is in the future"
    if days < 365:
        return f"{days} days old"
    return f"{days / 365.25:.1f} years old"


@dataclass(frozen=True)
class QuotaNeed:
    """A quota that a cluster counts against, None and "" for what is unknown."""

    family: str
    market: Market
    vcpus: int
    quota: Quota | None
    code: str
    title: str


def quota_needs(cluster: Cluster, catalog: Catalog) -> list[QuotaNeed]:
    """VCPUs that a cluster needs by quota family and market."""
    needed: Counter[tuple[str, Market]] = Counter()
    for group in cluster.groups:
        needed[group.instance.quota_family, group.market] += group.count * group.instance.vcpus
    names = cloud_of(catalog.name).quota_names
    needs = []
    for kind, vcpus in needed.items():
        quota = find_quota(catalog.quotas, *kind)
        code, title = names.get(kind, ("", ""))
        if quota:
            code = quota.code or code
        needs.append(QuotaNeed(*kind, vcpus, quota, code, title))
    return needs


def doubts(answer: Recommendations) -> list[str]:
    """What should make a reader careful with the figures."""
    warnings = [_of_its_type(w, r) for r in answer.configurations for w in r.warnings]
    warnings += answer.catalog.provenance.doubts
    for r in answer.configurations if answer.catalog.memory_nodes.sustained else ():
        if r.cluster.memory and r.cluster.memory.instance.network_baseline_gbps is None:
            node = r.cluster.memory.instance
            used = f"{node.network_gbps:g} Gbit/s, used here, may be a peak"
            warnings.append(f"the sustained bandwidth of {node.name} is unknown: {used}")
    for r in [*answer.configurations, *(a.recommendation for a in answer.alternatives)]:
        gpu = r.cluster.gpu
        start = speedup_of_one(r)
        if r.prediction is None and abs(start - 1) > ODD_START:
            text = f"the {r.speedup_kind} curve of {gpu.name} gives S(1) = {start:.2f} instead of 1"
            text += ", so it misjudges small clusters"
            if better := [k for k in ("ring", "measured") if gpu.curve(k)]:
                text += f"; '--speedup {better[0]}' does not"
            warnings.append(text)
    return _grouped(list(dict.fromkeys(warnings)))


def speedup_of_one(r: Recommendation) -> float:
    """S(1) of a plan's VMs: 0 where one does not hold the model."""
    curve = r.cluster.gpu.curve(r.speedup_kind)
    if curve:
        return float(curve.speedup(np.array([1.0]))[0])
    return 1.0


def _of_its_type(warning: str, r: Recommendation) -> str:
    name = r.cluster.gpu.name
    if r.prediction is None or name in warning or warning.startswith((UNPUBLISHED, PLAIN)):
        return warning
    return f"{name}: {warning}"


def _grouped(warnings: list[str]) -> list[str]:
    heads: dict[tuple[str, str], list[str]] = {}
    for doubt in warnings:
        head, on, rest = doubt.partition(" on ")
        if doubt.startswith(UNPUBLISHED) and on:
            gpu, _, tail = rest.partition(" in ")
            heads.setdefault((head, tail), []).append(gpu)
    merged = [f"{head} on {joined(gpus, 'or')} in {tail}" for (head, tail), gpus in heads.items()]
    return merged + [d for d in warnings if not d.startswith(UNPUBLISHED)]
