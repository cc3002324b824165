"""What a new account may rent: documented limits, where the user's own are not known."""

from collections import Counter
from functools import lru_cache
from typing import Any

from deepvm.catalog.clouds import REGISTRY
from deepvm.core.cluster.cluster import Cluster
from deepvm.core.cluster.instances import Catalog
from deepvm.io.user_dirs import read_data
from deepvm.planner.regions import AccountSource, Comparison, NewAccount, RankedPlan, cloud_name


def new_account(found: Comparison) -> NewAccount | None:
    """Why a new account may not rent the first plan, and the best one that it may.

    None where it may, and where the user's own limits are known.
    """
    request = found.answers[0].request
    plans = [
        RankedPlan(answer, r)
        for answer in found.answers
        for r in (*answer.configurations, *(a.recommendation for a in answer.alternatives))
        if answer.catalog.region and not request.quotas_of(answer.catalog)
    ]
    first = found.answers[0].configurations[:1]
    if request.quotas is not None or not plans or plans[0].recommendation not in first:
        return None
    reason = lacking(plans[0].recommendation.cluster, plans[0].answer.catalog)
    cloud = cloud_name(plans[0].answer.catalog)
    if reason == "" or cloud not in REGISTRY:
        return None
    allowed = (p for p in plans if lacking(p.recommendation.cluster, p.answer.catalog) == "")
    plan = next(allowed, None)
    other = next(c for c, limits in _limits().items() if "usd_per_hour" in limits)
    if plan is not None:
        other = cloud_name(plan.answer.catalog)
    sources = tuple(
        AccountSource(name, **about)
        for name in dict.fromkeys((cloud, other))
        for about in _limits().get(name, {"sources": ()})["sources"]
    )
    reason = reason or "what a new account has is not documented"
    return NewAccount(reason, plan, other, _limits()[other].get("usd_per_hour"), sources)


def lacking(cluster: Cluster, catalog: Catalog) -> str | None:
    """What a new account lacks for a cluster; empty: nothing; None: unknown."""
    limits = _limits().get(cloud_name(catalog))
    if limits is None:
        return None
    if "usd_per_hour" in limits:
        most = limits["usd_per_hour"]
        if cluster.usd_per_hour > most:
            return f"a new account may spend ${most}/h"
        return ""
    needed = Counter[tuple[str, str]]()
    gpus = 0
    for group in cluster.groups:
        if not group.instance.reserved:
            needed[group.instance.quota_family, group.market.value] += (
                group.count * group.instance.vcpus
            )
            gpus += group.count * (group.instance.gpu.count if group.instance.gpu else 0)
    if "gpus" in limits:
        return f"a new account has {limits['gpus']} GPUs" if gpus > limits["gpus"] else ""
    known = limits["vcpus"]
    for (family, market), vcpus in needed.items():
        most = known.get(family, {}).get(market)
        if most is not None and vcpus > most:
            return f"a new account has {most} vCPUs of {family} ({market})"
    return "" if all(family in known for family, _ in needed) else None


@lru_cache
def _limits() -> dict[str, Any]:
    clouds: dict[str, Any] = read_data("clouds/new_accounts.json")["clouds"]
    return clouds
