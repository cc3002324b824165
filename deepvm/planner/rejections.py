"""Which types a request leaves out, and why, in a sentence."""

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from deepvm.core.cluster.cluster import Rejection
from deepvm.core.cluster.instances import (
    Catalog,
    InstanceType,
    Market,
    Quota,
    find_quota,
    quota_limit,
)
from deepvm.core.cluster.memory_nodes import MemoryNodeRule
from deepvm.core.meanings import meant_gpu, not_rented
from deepvm.core.spelling import examples
from deepvm.core.units import GIB
from deepvm.errors import RequestError
from deepvm.planner.columns import law_of
from deepvm.planner.request import Generation, PlanRequest

UNLIMITED = 2**31  # stands for "no quota" in a column of counts


def quota_count(quotas: Iterable[Quota], instance: InstanceType, market: Market) -> int:
    """How many VMs of a type a quota allows; ``UNLIMITED`` without one."""
    limit = quota_limit(quotas, instance.quota_family, market)
    if limit is None:
        return UNLIMITED
    return limit // instance.vcpus


def quota_too_small(
    quotas: Iterable[Quota], instance: InstanceType, market: Market, count: int = 1
) -> str:
    """What a quota allows, what VMs need, and the value to request."""
    quota = find_quota(quotas, instance.quota_family, market)
    assert quota is not None
    vms = f"{count} x {instance.name}"
    if instance.reserved is not None:
        return f"{vms} are more than the {instance.reserved.count} that the pool has"
    needed = count * instance.vcpus
    text = (
        f"{vms} would need {needed} {market.value} vCPUs of {instance.quota_family}; the quota is"
        f" {quota.vcpus}"
    )
    if quota.in_use:
        text += f", of which {quota.in_use} are in use"
    if quota.code:
        text += f"; ask for at least {needed + quota.in_use} of {quota.label}"
    return text


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
        # GPU models match in any case ("a10g"), here and in training_reasons.
        fold = str.casefold if option == "gpu" else str
        for glob in globs:
            if not any(matches(fold(n), (fold(glob),)) for n in names):
                raise RequestError(option, glob, _allowed(option, glob, names, catalog))


def _allowed(option: str, glob: str, names: Sequence[str], catalog: Catalog) -> str:
    text = "a name or glob that matches a type"
    if option == "gpu":
        if why := not_rented(glob, names):
            return f"{text}; {why}"
        return text + examples(glob, names, meant_gpu(glob, names, "--gpu-memory-min"))
    if why := why_absent(catalog, glob, training=option == "instance_type"):
        text += f" ({why})"
    return text + examples(glob, names)


def why_absent(catalog: Catalog, glob: str, *, training: bool = False) -> str:
    """Why a catalog has no such type (``training``: none that trains); empty if unknown."""
    for pattern, why in catalog.absent.items():
        if fnmatchcase(glob, pattern) or matches(
            pattern.partition("*")[0].rstrip("."), (glob.partition(".")[0],)
        ):
            return why
    cpu_types = [i for i in catalog if training and i.gpu is None and matches(i.name, (glob,))]
    if cpu_types:
        return f"{cpu_types[0].name}: {cpu_types[0].unusable or 'it has no GPU'}"
    return ""


def first_rejection(instance: InstanceType, reasons: Iterable[tuple[str, str]]) -> Rejection | None:
    """A rejection for the first reason with a detail; None without any."""
    return next((Rejection(instance.name, why, detail) for why, detail in reasons if detail), None)


def training_reasons(instance: InstanceType, request: PlanRequest) -> Iterator[tuple[str, str]]:
    """Why a GPU type may not train in any architecture; what does not apply has no detail."""
    gpu = instance.gpu
    assert gpu is not None
    yield "excluded", _excluded(instance, request, "instance-type", request.instance_types)
    models = tuple(g.casefold() for g in request.gpus)
    if models and not matches(gpu.name.casefold(), models):
        yield "excluded", f"its GPU is none of --gpu {', '.join(request.gpus)}"
    yield "excluded", request.refusal(instance)
    yield "unusable", instance.unusable
    measure = "measure it on such a VM with 'deepvm profile eflops --save'"
    if request.training is not None:
        from deepvm.core.training.roofline import WITHOUT_WHEELS

        lacks = WITHOUT_WHEELS.get(gpu.name)
        names = {instance.name, instance.type_name}
        named = names & set(request.instance_types) or gpu.name.casefold() in models
        laws = filter(None, map(law_of, instance.speedups))
        if lacks and not named and not any(law.known.measured for law in laws):
            build = f"if you have built PyTorch for it, allow it with --gpu {gpu.name}"
            yield "no-wheels", f"{lacks}; {build}"
        if instance.eflops is None:
            yield "speed-unknown", instance.eflops_source
    elif instance.eflops is None:
        unknown = instance.eflops_source or "its eFLOPS have not been measured"
        yield "unprofiled", f"{unknown}; {measure}"
    elif instance.eflops_basis and not request.estimates:
        estimate = f"{instance.eflops:g} ({instance.eflops_basis})"
        yield (
            "unprofiled",
            f"its eFLOPS have not been measured; {measure}, or allow the estimate of {estimate}"
            " with --estimates",
        )


def _excluded(
    instance: InstanceType, request: PlanRequest, option: str, wanted: Sequence[str]
) -> str:
    name = instance.name
    processors = request.cpu_architecture
    if matches(name, request.exclude):
        return f"left out by --exclude {next(g for g in request.exclude if matches(name, (g,)))}"
    # A reserved pool is meant by its own name or by its type's.
    if wanted and not (matches(name, wanted) or matches(instance.type_name, wanted)):
        return f"it is none of --{option} {', '.join(wanted)}"
    if request.generation is Generation.CURRENT and not instance.current_generation:
        return "it is of a previous generation, and --generation is current"
    if processors is not None and instance.cpu_architecture != processors.value:
        return (
            f"its processors are {instance.cpu_architecture or 'unknown'}, not those of --cpu-arch"
            f" {processors.value}"
        )
    return ""


def memory_reasons(
    instance: InstanceType, request: PlanRequest, quotas: Sequence[Quota], rule: MemoryNodeRule
) -> Iterator[tuple[str, str]]:
    """Why a CPU type cannot be a memory node; what does not apply has no detail."""
    yield "excluded", _excluded(instance, request, "memory-node", request.memory_nodes)
    yield "unusable", instance.unusable
    named = "by name with --memory-node"
    previous = rule.current and not instance.current_generation
    if instance.name in request.memory_nodes:  # allows any type
        pass
    elif instance.burstable and not request.burstable:
        limited = "it runs at full speed only while it has credits"
        yield "burstable", f"{limited}; allow it with --burstable, or {named}"
    elif previous and request.generation is Generation.AUTO:
        of_previous = "it is of a previous generation"
        yield "previous-generation", f"{of_previous}; allow it with --generation any, or {named}"
    elif instance.vcpus < rule.least_vcpus:
        needs = f"a node that receives while it writes needs {rule.least_vcpus}"
        yield "vcpus", f"it has {instance.vcpus} vCPU, and {needs}; allow it {named}"
    if instance.on_demand_usd_per_hour is None:
        yield "no-on-demand-price", "memory nodes are bought on demand"
    if instance.memory_node_gbps(rule) is None:
        yield "network-unknown", "its network bandwidth is not known"
    least = rule.least_nodes(instance.memory_bytes or 0, request.checkpoint_bytes, request.buffers)
    if least is None:
        yield "memory", too_little_memory(instance, request, rule)
    elif quota_count(quotas, instance, Market.ON_DEMAND) < least:
        detail = quota_too_small(quotas, instance, Market.ON_DEMAND, least)
        if least > 1:
            detail += f"; so many hold {request.held} together (eq. 6)"
        yield "quota", detail


def too_little_memory(instance: InstanceType, request: PlanRequest, rule: MemoryNodeRule) -> str:
    """What a memory node has, and what checkpoints need."""
    memory = instance.memory_bytes or 0
    usable = rule.room_bytes(memory)
    has = "unknown"
    if instance.memory_gib is not None:
        has = f"{instance.memory_gib:g} GiB"
    if usable < memory:
        has += f", of which {usable / GIB:.3g} GiB can hold checkpoints"
    if rule.most_nodes is not None and usable:
        share = rule.share_bytes(memory, request.checkpoint_bytes, request.buffers)
        total = f"{rule.most_nodes * share / GIB:.3g} GiB"
        has += f"; {rule.most_nodes} nodes, the most, hold {total}"
    needed = f"{request.held} = {request.memory_needed_bytes / GIB:.3g} GiB (eq. 6)"
    return f"memory {has}, needed {needed}"
