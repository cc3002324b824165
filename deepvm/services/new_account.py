"""What a new account may rent: documented limits, where the user's own are not known."""

import math
from collections import Counter
from functools import partial

from deepvm.catalog.clouds import REGISTRY
from deepvm.core.cluster.cluster import Cluster
from deepvm.core.cluster.instances import Catalog
from deepvm.core.json_types import JsonDict
from deepvm.io.user_dirs import read_data
from deepvm.planner.regions import AccountSource, Comparison, NewAccount, RankedPlan, cloud_name

# A plan that is slower than this is no help, and neither is another cloud's one VM for many GPUs
_MAX_TIMES_SLOWER = 20.0
_GPUS_OF_A_VM = 8


def new_account(found: Comparison) -> NewAccount | None:
    """Why a new account may not rent the first plan, and the best one that it may.

    None where it may, and where the user's own limits are known.
    """
    answer = found.answers[0]
    request = answer.request
    cloud = cloud_name(answer.catalog)
    if request.quotas is not None or not answer.configurations or cloud not in REGISTRY:
        return None
    first = answer.configurations[0]
    limits = read_data("clouds/new_accounts.json")["clouds"]
    lacks = partial(lacking, limits)
    reason = lacks(first.cluster, answer.catalog)
    if reason == "" or request.quotas_of(answer.catalog):
        return None
    plan = next(
        (
            RankedPlan(a, r)
            for a in found.answers
            if not request.quotas_of(a.catalog)
            for r in (*a.configurations, *(other.recommendation for other in a.alternatives))
            if lacks(r.cluster, a.catalog) == ""
            and r.throughput * _MAX_TIMES_SLOWER >= first.throughput
        ),
        None,
    )
    other = ""
    if plan is not None:
        other = cloud_name(plan.answer.catalog)
    elif first.cluster.gpus <= _GPUS_OF_A_VM and len(found.answers) == 1:
        other = next(name for name, about in limits.items() if "usd_per_hour" in about)
    sources = tuple(
        AccountSource(name, **about)
        for name in dict.fromkeys((cloud, other))
        if name in limits
        for about in limits[name]["sources"]
    )
    reason = reason or "what a new account has is not documented"
    return NewAccount(reason, plan, other, limits.get(other, {}).get("usd_per_hour"), sources)


def lacking(clouds: JsonDict, cluster: Cluster, catalog: Catalog) -> str | None:
    """What a new account lacks for a cluster; empty: nothing; None: unknown."""
    limits = clouds.get(cloud_name(catalog))
    if limits is None:
        return None
    if cluster.usd_per_hour > limits.get("usd_per_hour", math.inf):
        return f"a new account may spend ${limits['usd_per_hour']}/h"
    if not cluster.gpu.reserved and cluster.gpus > limits.get("gpus", math.inf):
        return f"a new account has {limits['gpus']} GPUs"
    if "vcpus" not in limits:
        return ""
    needed = Counter[tuple[str, str]]()
    for group in cluster.groups:
        if not group.instance.reserved:
            vcpus = group.count * group.instance.vcpus
            needed[group.instance.quota_family, group.market.value] += vcpus
    known = limits["vcpus"]
    lacks = [
        f"{known[family][market]} vCPUs of {family} ({market})"
        for (family, market), vcpus in needed.items()
        if family in known and vcpus > known[family][market]
    ]
    if lacks:
        return f"a new account has {' and '.join(lacks)}"
    return None if any(family not in known for family, _ in needed) else ""
