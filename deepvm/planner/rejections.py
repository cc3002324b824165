"""Which types a request leaves out, and the sentence that says why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from deepvm.core.cluster.cluster import Rejection
from deepvm.core.cluster.instances import Catalog, InstanceType, Market, Quota, find_quota, quota_limit
from deepvm.core.cluster.memory_nodes import MemoryNodeRule
from deepvm.core.spelling import examples
from deepvm.core.units import GIB, format_bytes
from deepvm.errors import RequestError
from deepvm.planner.request import ANY_NUMBER, Generation, PlanRequest, Range

UNLIMITED = 2**31
"""Stands for "no quota" in a column of counts."""


def quota_count(quotas: Iterable[Quota], instance: InstanceType, market: Market) -> int:
    """How many VMs of a type a quota allows; ``UNLIMITED`` without one."""
    limit = quota_limit(quotas, instance.quota_family, market)
    return UNLIMITED if limit is None else limit // instance.vcpus


def quota_too_small(quotas: Iterable[Quota], instance: InstanceType, market: Market, count: int = 1) -> str:
    """What a quota allows, what some VMs need and, where the provider's quota is known, the value to ask for."""
    quota = find_quota(quotas, instance.quota_family, market)
    assert quota is not None
    needed = count * instance.vcpus
    has = f"the quota is {quota.vcpus}" + (f", of which {quota.in_use} are in use" if quota.in_use else "")
    text = f"{count} x {instance.name} would need {needed} {market.value} vCPUs of {instance.quota_family}; {has}"
    if not quota.code:
        return text
    return f"{text}; ask for at least {needed + quota.in_use} of {quota.label}"


def matches(name: str, globs: Iterable[str]) -> bool:
    """Whether a name is one of the globs (it may hold ``[`` itself) or matches one (``g4dn.*``)."""
    return any(name == g or fnmatchcase(name, g) for g in globs)


def refuse_idle_globs(request: PlanRequest, catalog: Catalog) -> None:
    """Refuse a glob that matches no type at all: it is a typing error, or means a type that is not offered.

    Raises:
        RequestError: naming the option, the glob and what would match, or why such types are absent.
    """
    gpu_names = [i.name for i in catalog if i.gpu is not None]
    cpu_names = [i.name for i in catalog if i.gpu is None]
    models = sorted({i.gpu.name for i in catalog if i.gpu})
    for option, globs, names in (
        ("gpu", request.gpus, models),
        ("instance_type", request.instance_types, gpu_names),
        ("exclude", request.exclude, gpu_names + cpu_names),
        ("memory_node", request.memory_nodes, cpu_names),
    ):
        # People write GPU models in any case ("a10g"); both sides are folded, here and where the types are chosen.
        fold = str.casefold if option == "gpu" else str
        for glob in globs:
            if not any(matches(fold(n), (fold(glob),)) for n in names):
                why = "" if option == "gpu" else why_absent(catalog, glob, training=option == "instance_type")
                allowed = f"a name or glob that matches a type{f' ({why})' if why else ''}{examples(glob, names)}"
                raise RequestError(option, glob, allowed)


def why_absent(catalog: Catalog, glob: str, *, training: bool = False) -> str:
    """Why a catalog has no such type to train on or at all, in words; empty when nobody knows.

    Args:
        catalog: the types.
        glob: the name or glob that was asked for.
        training: whether types that are there but cannot train are meant as well.
    """
    for pattern, why in catalog.absent.items():
        if fnmatchcase(glob, pattern) or matches(pattern.partition("*")[0].rstrip("."), (glob.partition(".")[0],)):
            return why
    there = [i for i in catalog if training and i.gpu is None and matches(i.name, (glob,))]
    return f"{there[0].name}: {there[0].unusable or 'it has no GPU'}" if there else ""


def training_rejection(instance: InstanceType, request: PlanRequest) -> Rejection | None:
    """Why a GPU type may not train whatever the architecture, or None."""
    assert instance.gpu is not None
    excluded = _excluded(instance.name, request.exclude, "instance-type", request.instance_types)
    models = tuple(g.casefold() for g in request.gpus)
    if models and not matches(instance.gpu.name.casefold(), models):
        excluded = f"its GPU is none of --gpu {', '.join(request.gpus)}"
    excluded = excluded or _filtered(instance, request)
    if excluded:
        return Rejection(instance.name, "excluded", excluded)
    if instance.unusable:
        return Rejection(instance.name, "unusable", instance.unusable)
    if instance.eflops is None or (instance.eflops_basis and not request.estimates):
        return Rejection(instance.name, "unprofiled", _unprofiled(instance))
    return None


def _excluded(name: str, exclude: Sequence[str], option: str, wanted: Sequence[str]) -> str:
    """Which argument leaves a type out, empty when none does."""
    if matches(name, exclude):
        return f"left out by --exclude {next(g for g in exclude if matches(name, (g,)))}"
    return f"it is none of --{option} {', '.join(wanted)}" if wanted and not matches(name, wanted) else ""


def _filtered(instance: InstanceType, request: PlanRequest) -> str:
    """Which filter leaves a type out, empty when none does; what nobody knows of a type cannot pass a filter."""
    if request.generation is Generation.CURRENT and not instance.current_generation:
        return "it is of a previous generation, and --generation is current"
    wanted = request.cpu_architecture
    if wanted is not None and instance.cpu_architecture != wanted.value:
        return f"its processors are {instance.cpu_architecture or 'unknown'}, not those of --cpu-arch {wanted.value}"
    gpu = instance.gpu
    if gpu is None:
        return ""
    if gpu.count not in request.gpus_per_vm:
        return f"it has {gpu.count} GPUs, wanted {_shown(request.gpus_per_vm, str)}"
    each = None if gpu.memory_gib is None else int(gpu.memory_gib * GIB)
    for what, size, allowed in (
        ("each GPU has", each, request.gpu_memory_bytes),
        ("its GPUs together have", None if each is None else each * gpu.count, request.gpu_total_memory_bytes),
    ):
        if allowed != ANY_NUMBER and (size is None or size not in allowed):
            has = "an unknown amount" if size is None else f"{size / GIB:.4g} GiB"
            return f"{what} {has}, wanted {_shown(allowed, lambda b: f'{b / GIB:.4g} GiB')}"
    return ""


def _shown(bounds: Range, show: Callable[[int], str]) -> str:
    low = [] if bounds.least is None else [f"at least {show(bounds.least)}"]
    high = [] if bounds.most is None else [f"at most {show(bounds.most)}"]
    return " and ".join(low + high)


def _unprofiled(instance: InstanceType) -> str:
    measure = "measure it on such a VM with 'deepvm profile eflops --save'"
    if instance.eflops is None:
        return f"{instance.eflops_source or 'nobody has measured its eFLOPS'}; {measure}"
    return (
        f"nobody has measured its eFLOPS; {measure}, or allow the estimate of {instance.eflops:g} "
        f"({instance.eflops_basis}) with --estimates"
    )


def memory_rejection(
    instance: InstanceType, request: PlanRequest, quotas: Sequence[Quota], rule: MemoryNodeRule
) -> Rejection | None:
    """Why a CPU type cannot be a memory node, or None."""
    name = instance.name
    excluded = _excluded(name, request.exclude, "memory-node", request.memory_nodes) or _filtered(instance, request)
    if excluded:
        return Rejection(name, "excluded", excluded)
    if instance.unusable:
        return Rejection(name, "unusable", instance.unusable)
    not_by_default = None if name in request.memory_nodes else _not_by_default(instance, request, rule)
    if not_by_default is not None:
        return not_by_default
    if instance.on_demand_usd_per_hour is None:
        return Rejection(name, "no-on-demand-price", "memory nodes are bought on demand")
    if instance.memory_node_gbps(rule) is None:
        return Rejection(name, "network-unknown", "its network bandwidth is not known")
    room = rule.room_bytes(instance.memory_bytes or 0)
    if room < request.memory_needed_bytes:
        has = "unknown" if instance.memory_gib is None else f"{instance.memory_gib:g} GiB"
        if room < (instance.memory_bytes or 0):
            has += f", of which {room / GIB:.3g} GiB can hold checkpoints beside the system and the node"
        needed = f"{request.buffers} x {format_bytes(request.checkpoint_bytes)}"
        return Rejection(
            name, "memory", f"memory {has}, needed {needed} = {request.memory_needed_bytes / GIB:.3g} GiB (eq. 6)"
        )
    if quota_count(quotas, instance, Market.ON_DEMAND) == 0:
        return Rejection(name, "quota", quota_too_small(quotas, instance, Market.ON_DEMAND))
    return None


def _not_by_default(instance: InstanceType, request: PlanRequest, rule: MemoryNodeRule) -> Rejection | None:
    """Why a type that could hold checkpoints is not chosen unless it is named, or None."""
    named = "by name with --memory-node"
    if instance.burstable and not request.burstable:
        why = f"it runs at full speed only while it has credits; allow it with --burstable, or {named}"
        return Rejection(instance.name, "burstable", why)
    if rule.current and not instance.current_generation and request.generation is Generation.AUTO:
        why = f"it is of a previous generation; allow it with --generation any, or {named}"
        return Rejection(instance.name, "previous-generation", why)
    if instance.vcpus < rule.least_vcpus:
        why = (
            f"it has {instance.vcpus} vCPU, and a node that receives while it writes needs {rule.least_vcpus}; "
            f"allow it {named}"
        )
        return Rejection(instance.name, "vcpus", why)
    return None
