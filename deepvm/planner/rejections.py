"""Which types a request leaves out, and why, in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from deepvm.core.cluster.cluster import Rejection
from deepvm.core.cluster.instances import (
    Catalog,
    Gpu,
    InstanceType,
    Market,
    Quota,
    find_quota,
    quota_limit,
)
from deepvm.core.cluster.memory_nodes import MemoryNodeRule
from deepvm.core.meanings import gpu_of_type, meant_gpu, meant_type, not_rented
from deepvm.core.spelling import examples
from deepvm.core.units import GIB
from deepvm.errors import RequestError
from deepvm.planner.request import ANY_NUMBER, Generation, PlanRequest, Range
from deepvm.planner.workload.laws import law_of

UNLIMITED = 2**31  # stands for "no quota" in a column of counts


def quota_count(quotas: Iterable[Quota], instance: InstanceType, market: Market) -> int:
    """How many VMs of a type a quota allows; ``UNLIMITED`` without one."""
    limit = quota_limit(quotas, instance.quota_family, market)
    return UNLIMITED if limit is None else limit // instance.vcpus


def quota_too_small(
    quotas: Iterable[Quota], instance: InstanceType, market: Market, count: int = 1
) -> str:
    """What a quota allows, what VMs need and, if the quota is known, the value to request."""
    quota = find_quota(quotas, instance.quota_family, market)
    assert quota is not None
    if instance.reserved is not None:
        return (
            f"{count} x {instance.name} are more than the {instance.reserved.count} that the"
            " pool has"
        )
    needed = count * instance.vcpus
    has = f"the quota is {quota.vcpus}" + (
        f", of which {quota.in_use} are in use" if quota.in_use else ""
    )
    text = (
        f"{count} x {instance.name} would need {needed} {market.value} vCPUs of"
        f" {instance.quota_family}; {has}"
    )
    if not quota.code:
        return text
    return f"{text}; ask for at least {needed + quota.in_use} of {quota.label}"


def matches(name: str, globs: Iterable[str]) -> bool:
    """Whether a name is one of the globs (it may contain ``[``) or matches one (``g4dn.*``)."""
    return any(name == g or fnmatchcase(name, g) for g in globs)


def refuse_unmatched_globs(request: PlanRequest, catalog: Catalog) -> None:
    """Raise a RequestError for a glob that matches no type."""
    gpu_names = [i.name for i in catalog if i.gpu is not None]
    cpu_names = [i.name for i in catalog if i.gpu is None]
    for option, globs, names in (
        ("gpu", request.gpus, sorted({i.gpu.name for i in catalog if i.gpu})),
        ("instance_type", request.instance_types, gpu_names),
        ("exclude", request.exclude, gpu_names + cpu_names),
        ("memory_node", request.memory_nodes, cpu_names),
    ):
        # GPU models match in any case ("a10g"), here and in training_rejection.
        fold = str.casefold if option == "gpu" else str
        for glob in globs:
            if not any(matches(fold(n), (fold(glob),)) for n in names):
                raise RequestError(option, glob, _allowed(option, glob, names, catalog))


def _allowed(option: str, glob: str, names: Sequence[str], catalog: Catalog) -> str:
    """What an error says about a glob that matches nothing: why, and what was probably meant."""
    text = "a name or glob that matches a type"
    if option == "gpu":
        why = not_rented(glob, names)
        return (
            f"{text}; {why}"
            if why
            else text + examples(glob, names, meant_gpu(glob, names, "--gpu-memory-min"))
        )
    why = why_absent(catalog, glob, training=option == "instance_type")
    gpu = gpu_of_type(glob) if option == "instance_type" else ""
    meant = f"--gpu {gpu}" if gpu else meant_type(glob, names, glob=True)
    return text + (f" ({why})" if why else "") + examples(glob, names, meant)


def why_absent(catalog: Catalog, glob: str, *, training: bool = False) -> str:
    """Why a catalog has no such type (``training``: none that trains); empty if unknown."""
    for pattern, why in catalog.absent.items():
        if fnmatchcase(glob, pattern) or matches(
            pattern.partition("*")[0].rstrip("."), (glob.partition(".")[0],)
        ):
            return why
    there = [i for i in catalog if training and i.gpu is None and matches(i.name, (glob,))]
    return f"{there[0].name}: {there[0].unusable or 'it has no GPU'}" if there else ""


def training_rejection(instance: InstanceType, request: PlanRequest) -> Rejection | None:
    """Why a GPU type may not train in any architecture, or None."""
    name = instance.name
    gpu = instance.gpu
    assert gpu is not None
    excluded = _excluded(instance, request, "instance-type", request.instance_types)
    models = tuple(g.casefold() for g in request.gpus)
    if models and not matches(gpu.name.casefold(), models):
        excluded = f"its GPU is none of --gpu {', '.join(request.gpus)}"
    excluded = excluded or _filtered(gpu, request)
    if excluded:
        return Rejection(name, "excluded", excluded)
    if instance.unusable:
        return Rejection(name, "unusable", instance.unusable)
    if request.training is not None and (lacks := _without_wheels(instance, gpu, request)):
        return Rejection(
            name,
            "no-wheels",
            f"{lacks}; if you have built PyTorch for it, allow it with --gpu {gpu.name}",
        )
    measure = "measure it on such a VM with 'deepvm profile eflops --save'"
    if instance.eflops is None:
        if request.training is not None:
            return Rejection(name, "speed-unknown", instance.eflops_source)
        nobody = instance.eflops_source or "nobody has measured its eFLOPS"
        return Rejection(name, "unprofiled", f"{nobody}; {measure}")
    if instance.eflops_basis and not request.estimates:
        allow = (
            f"allow the estimate of {instance.eflops:g} ({instance.eflops_basis}) with --estimates"
        )
        return Rejection(
            name, "unprofiled", f"nobody has measured its eFLOPS; {measure}, or {allow}"
        )
    return None


def _without_wheels(instance: InstanceType, gpu: Gpu, request: PlanRequest) -> str:
    """Why PyTorch as installed does not run there; empty if it does, or the user named it."""
    from deepvm.core.training.hardware import WITHOUT_WHEELS

    own_names = {instance.name, instance.type_name}
    named = own_names & set(request.instance_types) or gpu.name.casefold() in {
        g.casefold() for g in request.gpus
    }
    measured = any(law.known.measured for law in map(law_of, instance.speedups) if law is not None)
    return "" if named or measured else WITHOUT_WHEELS.get(gpu.name, "")


def _goes_with(instance: InstanceType, globs: Iterable[str]) -> bool:
    """Whether a type is meant: a reserved pool by its own name or by its type's."""
    globs = tuple(globs)
    return matches(instance.name, globs) or matches(instance.type_name, globs)


def _excluded(
    instance: InstanceType, request: PlanRequest, option: str, wanted: Sequence[str]
) -> str:
    """Which option leaves out a type in either role; empty when none does."""
    name = instance.name
    processors = request.cpu_architecture
    if matches(name, request.exclude):
        return f"left out by --exclude {next(g for g in request.exclude if matches(name, (g,)))}"
    if wanted and not _goes_with(instance, wanted):
        return f"it is none of --{option} {', '.join(wanted)}"
    if request.generation is Generation.CURRENT and not instance.current_generation:
        return "it is of a previous generation, and --generation is current"
    if processors is not None and instance.cpu_architecture != processors.value:
        return (
            f"its processors are {instance.cpu_architecture or 'unknown'}, not those of --cpu-arch"
            f" {processors.value}"
        )
    return ""


def _filtered(gpu: Gpu, request: PlanRequest) -> str:
    """Which filter leaves GPUs out, empty when none does; an unknown figure passes no filter."""
    if gpu.count not in request.gpus_per_vm:
        return f"it has {gpu.count} GPUs, wanted {_shown(request.gpus_per_vm, str)}"
    each = None if gpu.memory_gib is None else int(gpu.memory_gib * GIB)
    for what, size, allowed in (
        ("each GPU has", each, request.gpu_memory_bytes),
        (
            "its GPUs together have",
            None if each is None else each * gpu.count,
            request.gpu_total_memory_bytes,
        ),
    ):
        if allowed != ANY_NUMBER and (size is None or size not in allowed):
            has = "an unknown amount" if size is None else f"{size / GIB:.4g} GiB"
            return f"{what} {has}, wanted {_shown(allowed, lambda b: f'{b / GIB:.4g} GiB')}"
    return ""


def _shown(bounds: Range, show: Callable[[int], str]) -> str:
    ends = (("at least", bounds.least), ("at most", bounds.most))
    return " and ".join(f"{which} {show(end)}" for which, end in ends if end is not None)


def memory_rejection(
    instance: InstanceType, request: PlanRequest, quotas: Sequence[Quota], rule: MemoryNodeRule
) -> Rejection | None:
    """Why a CPU type cannot be a memory node, or None."""
    name = instance.name
    excluded = _excluded(instance, request, "memory-node", request.memory_nodes)
    if excluded:
        return Rejection(name, "excluded", excluded)
    if instance.unusable:
        return Rejection(name, "unusable", instance.unusable)
    if name not in request.memory_nodes and (why := _not_by_default(instance, request, rule)):
        reason, detail = why
        return Rejection(name, reason, f"{detail} by name with --memory-node")
    if instance.on_demand_usd_per_hour is None:
        return Rejection(name, "no-on-demand-price", "memory nodes are bought on demand")
    if instance.memory_node_gbps(rule) is None:
        return Rejection(name, "network-unknown", "its network bandwidth is not known")
    least = rule.least_nodes(instance.memory_bytes or 0, request.checkpoint_bytes, request.buffers)
    if least is None:
        return Rejection(name, "memory", too_little_memory(instance, request, rule))
    if quota_count(quotas, instance, Market.ON_DEMAND) < least:
        said = quota_too_small(quotas, instance, Market.ON_DEMAND, least)
        held = f"; so many hold {request.held} together (eq. 6)" if least > 1 else ""
        return Rejection(name, "quota", said + held)
    return None


def too_little_memory(instance: InstanceType, request: PlanRequest, rule: MemoryNodeRule) -> str:
    """What a memory node has, and what checkpoints need."""
    room = rule.room_bytes(instance.memory_bytes or 0)
    has = "unknown" if instance.memory_gib is None else f"{instance.memory_gib:g} GiB"
    if room < (instance.memory_bytes or 0):
        has += (
            f", of which {room / GIB:.3g} GiB can hold checkpoints beside the system and the node"
        )
    together = ""
    if rule.most_nodes is not None and room:
        share = rule.share_bytes(
            instance.memory_bytes or 0, request.checkpoint_bytes, request.buffers
        )
        together = (
            f"; {rule.most_nodes} nodes, the most that share a version, hold"
            f" {rule.most_nodes * share / GIB:.3g} GiB"
        )
    return (
        f"memory {has}{together}, needed {request.held} = {request.memory_needed_bytes / GIB:.3g}"
        " GiB (eq. 6)"
    )


def _not_by_default(
    instance: InstanceType, request: PlanRequest, rule: MemoryNodeRule
) -> tuple[str, str] | None:
    """Why a type that could hold checkpoints must be named to be used (reason, detail)."""
    if instance.burstable and not request.burstable:
        return (
            "burstable",
            "it runs at full speed only while it has credits; allow it with --burstable, or",
        )
    if rule.current and not instance.current_generation and request.generation is Generation.AUTO:
        return (
            "previous-generation",
            "it is of a previous generation; allow it with --generation any, or",
        )
    if instance.vcpus < rule.least_vcpus:
        needs = f"a node that receives while it writes needs {rule.least_vcpus}"
        return "vcpus", f"it has {instance.vcpus} vCPU, and {needs}; allow it"
    return None
