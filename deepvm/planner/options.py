"""The options of the planner, each declared once.

This module is light: ``--help`` loads it.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from deepvm.core.options import (
    BUDGET,
    OUTPUT,
    RENTED,
    TRAINING,
    option,
    seconds,
    size,
    whole,
    words,
)
from deepvm.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deepvm.core.cluster.instances import Quota
    from deepvm.core.preemption.job import Job
    from deepvm.core.training.speed import Training

MOST_NODES = 4096  # keeps every intermediate price far below 2**63 micro-dollars
MOST_GPUS = 1024


class Objective(str, Enum):
    """What the best cluster maximizes or minimizes."""

    # Maximise eFLOPS x n x K(n), the fastest training that the budget buys (DeepVM V-A)
    THROUGHPUT = "throughput"
    # Maximise the printed Z, operations per dollar (DeepVM eq. 4, 8); kept for reproduction
    FLOPP = "flopp"
    # Minimise price / throughput: the cheapest training, however long it takes
    COST_PER_WORK = "cost-per-work"
    MAKESPAN = "makespan"  # minimize the expected time of a job, preemptions included
    TOTAL_COST = "total-cost"  # minimize its expected bill


class PolicyName(str, Enum):
    """How clusters are chosen: DeepVM, or one of the baselines of section V-C1."""

    DEEPVM = "deepvm"
    NOSCALE = "noscale"
    COST_FIRST = "cost-first"
    PERFORMANCE_FIRST = "performance-first"


class SpeedupKind(str, Enum):
    """Which speed-up curve to use; see :mod:`deepvm.core.cluster.speedup`."""

    HYBRID = "hybrid"
    RING = "ring"
    MEASURED = "measured"


class CpuArchitecture(str, Enum):
    """The processors that a user's image runs on."""

    X86_64 = "x86_64"
    ARM64 = "arm64"


class Generation(str, Enum):
    """Which generations of types to consider, by what the provider calls current."""

    CURRENT = "current"
    ANY = "any"
    # Any to train; to hold checkpoints current ones, unless the catalog's rule is the paper's
    AUTO = "auto"


class Rank(str, Enum):
    """What the ranked clusters differ in."""

    MACHINES = "machines"  # in what trains; each with its best plan
    PLANS = "plans"  # in anything, as Table VII of the paper prints them


class SolverName(str, Enum):
    """How the best cluster is found; both are exact."""

    ILP = "ilp"
    FRONTIER = "frontier"


_globs = partial(option, [], metavar="GLOB", group=RENTED, read=words, complete="complete_type")
_size = partial(option, None, metavar="SIZE", read=size)
_switch = partial(option, False, read=lambda value, name: bool(value))
_work = partial(option, None, part="work")
_extra = partial(option, None, part="extras")


@dataclass(frozen=True, kw_only=True, init=False)
class PlanOptions:
    """The options of every command that plans; numbers may be text.

    ``training``: what :func:`deepvm.workload` returns; None counts eFLOPS. ``job``: a job, whose
    ``step_s`` is that of one VM. ``quotas``: account limits; None for those of the catalog, empty
    for none.
    """

    training: Training | None = None
    job: Job | None = None
    quotas: Iterable[Quota] | None = None
    rank: Any = option(
        None,
        "Rows differ in what trains, or in anything; default: machines with a model.",
        choices=Rank,
    )
    extrapolate: Any = _switch("Clusters or batches larger than ever checked may come first.")
    checkpoint_size: Any = _size(
        "Size of a checkpoint; default: the model's, else 300MB.",
        into="checkpoint_bytes",
        group=TRAINING,
    )
    buffers: Any = option(2, "Checkpoints that a memory node must hold.", "N", read=whole(1000))
    objective: Any = option(
        None,
        "throughput, flopp, cost-per-work, makespan or total-cost; see the guide.",
        "NAME",
        group=BUDGET,
        choices=Objective,
    )
    policy: Any = option(
        PolicyName.DEEPVM,
        "DeepVM, or a baseline of the paper (section V-C1); the last two take no --objective.",
        choices=PolicyName,
    )
    architecture: Any = _globs(
        "Only this architecture, such as tiering; repeatable.",
        metavar="NAME",
        into="architectures",
        complete="complete_architecture",
    )
    speedup: Any = option(
        None,
        "Scaling model: the paper's, ring all-reduce, or your measured points; default: the"
        " catalog's.",
        choices=SpeedupKind,
    )
    estimates: Any = _switch("Include types with estimated, not measured, eFLOPS; marked.")
    gpu: Any = _globs("Only these GPU models; repeatable.", into="gpus", complete="complete_gpu")
    gpus_min: Any = option(
        None, "Minimum GPUs per VM.", "N", read=whole(MOST_GPUS), into="gpus_per_vm"
    )
    gpus_max: Any = option(
        None, "Maximum GPUs per VM.", "N", read=whole(MOST_GPUS), into="gpus_per_vm"
    )
    gpu_memory_min: Any = _size(
        "Minimum memory per GPU, such as 16GiB.", into="gpu_memory_bytes", group=RENTED
    )
    gpu_memory_max: Any = _size("Maximum memory per GPU.", into="gpu_memory_bytes")
    gpu_total_memory_min: Any = _size(
        "Minimum memory of all GPUs of a VM.", into="gpu_total_memory_bytes"
    )
    gpu_total_memory_max: Any = _size(
        "Maximum memory of all GPUs of a VM.", into="gpu_total_memory_bytes"
    )
    instance_type: Any = _globs(
        "Only these types train, such as 'g4dn.*'; repeatable.", into="instance_types"
    )
    exclude: Any = _globs("Never these types; repeatable.")
    cpu_architecture: Any = option(
        None,
        "Only types with this processor architecture.",
        None,
        "--cpu-arch",
        choices=CpuArchitecture,
    )
    generation: Any = option(
        Generation.AUTO,
        "Type generations; auto: previous ones train, but hold no checkpoints.",
        choices=Generation,
    )
    memory_node: Any = _globs(
        "Only these types as memory nodes; repeatable.",
        into="memory_nodes",
        complete="complete_cpu_type",
    )
    burstable: Any = _switch("Allow burstable memory nodes (t3, ...): full speed only for minutes.")
    max_nodes: Any = option(
        255, "Maximum number of training VMs.", "N", group=RENTED, read=whole(MOST_NODES)
    )
    work: Any = _work(
        "Instead of --job: hours on one VM, or a time such as 90min.", "HOURS", group=TRAINING
    )
    measured_on: Any = option(
        "",
        "Type that --work or step_s is for; default: cheapest usable.",
        "TYPE",
        part="work",
        complete="complete_type",
    )
    mttp: Any = _work("Mean time to preemption: 3h, or history.", "TIME", group=TRAINING)
    interruption_rate: Any = _work(
        "Spot VMs preempted per month, such as 10%; default: the job's mttp_s or AWS's.", "SHARE"
    )
    save_policy: Any = _work(
        "Save policy, as in 'deepvm simulate'; default: adaptive.",
        "NAME",
        complete="complete_save_policy",
    )
    deadline: Any = _work("Maximum expected time of the job, such as 12h.", "TIME", group=BUDGET)
    total_budget: Any = _work("Maximum expected cost of the job, $.", "USD", group=BUDGET)


@dataclass(frozen=True, kw_only=True)
class RankOptions(PlanOptions):
    """The options of ``recommend``, which ranks."""

    top: Any = option(3, "Configurations to rank.", "N", group=OUTPUT, read=whole(100))
    solver: Any = option(
        SolverName.ILP, "Integer program (HiGHS), or enumeration: same answer.", choices=SolverName
    )
    time_limit_s: Any = option(
        60.0, "Time limit of the integer program.", "SECONDS", "--time-limit", read=seconds
    )
    disk: Any = _extra("Disk of each VM, such as 200GB: adds its cost.", "SIZE")
    disk_type: Any = _extra("Kind of disk, such as gp3; default: the cloud's usual.", "NAME")
    egress: Any = _extra("Traffic to the internet in all: adds its cost.", "SIZE")
    bucket: Any = _extra("Size of what a bucket stores: adds its cost.", "SIZE")
    nat: Any = option(False, "VMs without public addresses, behind a NAT gateway.", part="extras")
    exclude_cost: Any = option(
        [],
        # Names of deepvm.core.bill.COSTS, which would load five modules to show a help text.
        "Costs not to count: disk, addresses, nat, egress, bucket, boot or all; repeatable.",
        "NAME,...",
        part="extras",
    )
