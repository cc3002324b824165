"""What the user asks for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypedDict, TypeVar

from deepvm.core.cluster.instances import Catalog, Quota, refuse_twice
from deepvm.core.spelling import one_of
from deepvm.core.units import Money, budget_micro_usd, parse_bytes, to_decimal
from deepvm.errors import RequestError

if TYPE_CHECKING:
    from typing import Unpack

    from deepvm.core.preemption.job import Job
    from deepvm.planner.job_forecast import Work


class Objective(str, Enum):
    """What the best cluster is best at."""

    THROUGHPUT = "throughput"
    """Maximise eFLOPS x n x K(n): the fastest training that the budget buys (DeepVM V-A)."""
    FLOPP = "flopp"
    """Maximise the printed objective Z, operations per dollar (DeepVM eq. 4, 8); kept for reproduction."""
    COST_PER_WORK = "cost-per-work"
    """Minimise price / throughput: the cheapest training, however long it takes."""
    MAKESPAN = "makespan"
    """Minimise the expected time of a job, preemptions included; needs the job."""
    TOTAL_COST = "total-cost"
    """Minimise its expected bill, preemptions included; needs the job."""


WORK_OBJECTIVES = (Objective.MAKESPAN, Objective.TOTAL_COST)


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
    """Which generations of types to consider."""

    CURRENT = "current"
    """Those that the provider calls current."""
    ANY = "any"
    """All."""
    AUTO = "auto"
    """All to train; to hold checkpoints the current ones, unless the catalog's rule is the paper's."""


class SolverName(str, Enum):
    """How the best cluster is found; both are exact."""

    ILP = "ilp"
    FRONTIER = "frontier"


MOST_NODES = 4096
"""The largest --max-nodes: keeps every intermediate price far below 2**63 micro-dollars."""

MOST_GPUS = 1024
"""The largest bound on the GPUs of one VM."""


@dataclass(frozen=True)
class Range:
    """Numbers from ``least`` to ``most``, inclusive; None is no bound."""

    least: int | None = None
    most: int | None = None

    def __contains__(self, number: float) -> bool:
        """Whether a number lies within the bounds."""
        return (self.least is None or number >= self.least) and (self.most is None or number <= self.most)

    @property
    def bounded(self) -> bool:
        """Whether there is any bound."""
        return self.least is not None or self.most is not None


ANY_NUMBER = Range()

_Choice = TypeVar("_Choice", bound=Enum)
_Given = str | int | None


@dataclass(frozen=True)
class PlanRequest:
    """A validated request.

    Attributes:
        budget: pricing willingness PW, $/h, >= 0.
        checkpoint_bytes: size f of one checkpoint. buffers: how many the memory node must hold, s (eq. 6).
        architectures: names from the registry to consider; empty for all.
        speedup: the kind of curve to use, None for the catalog's default.
        gpus: globs on GPU models. instance_types: globs on the types that train. exclude: globs on any type.
            memory_nodes: globs on the types that hold checkpoints. Empty means all (for ``exclude``: none).
        gpu_memory_bytes, gpu_total_memory_bytes, gpus_per_vm: what a training VM must have: memory of each GPU, of all
            its GPUs together, and how many.
        cpu_architecture: only these processors, None for all. generation: current types only, any, or, by itself, any
            to train and current ones to hold checkpoints.
        estimates: whether types whose eFLOPS are estimated may train. burstable: whether burstable types may hold
            checkpoints.
        max_nodes: the most VMs that train in one cluster.
        quotas: account limits; None for those of the catalog, empty for none.
        top: how many configurations to rank.
        time_limit_s: seconds after which the integer program settles for the best plan so far.
        work: what is to be trained, None when nobody says.
    """

    budget: Decimal
    checkpoint_bytes: int = 300_000_000
    buffers: int = 2
    objective: Objective = Objective.THROUGHPUT
    policy: PolicyName = PolicyName.DEEPVM
    architectures: tuple[str, ...] = ()
    speedup: SpeedupKind | None = None
    gpus: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    memory_nodes: tuple[str, ...] = ()
    gpu_memory_bytes: Range = ANY_NUMBER
    gpu_total_memory_bytes: Range = ANY_NUMBER
    gpus_per_vm: Range = ANY_NUMBER
    cpu_architecture: CpuArchitecture | None = None
    generation: Generation = Generation.AUTO
    estimates: bool = False
    burstable: bool = False
    max_nodes: int = 255
    quotas: tuple[Quota, ...] | None = None
    top: int = 3
    solver: SolverName = SolverName.ILP
    time_limit_s: float = 60.0
    work: Work | None = None

    @property
    def needs_work(self) -> bool:
        """Whether plans are compared by what becomes of the job."""
        return self.objective in WORK_OBJECTIVES

    @property
    def budget_micro_usd(self) -> int:
        """The budget in whole micro-dollars an hour."""
        return budget_micro_usd(self.budget)

    @property
    def memory_needed_bytes(self) -> int:
        """Memory that one memory node must have: f x s (DeepVM eq. 6)."""
        return self.checkpoint_bytes * self.buffers

    @classmethod
    def parse(
        cls,
        budget: Money,
        *,
        checkpoint_size: str | int = 300_000_000,
        buffers: int | str = 2,
        objective: str | None = None,
        policy: str = "deepvm",
        architecture: str | Sequence[str] = (),
        speedup: str | None = None,
        gpu: str | Sequence[str] = (),
        instance_type: str | Sequence[str] = (),
        exclude: str | Sequence[str] = (),
        memory_node: str | Sequence[str] = (),
        gpu_memory_min: str | int | None = None,
        gpu_memory_max: str | int | None = None,
        gpu_total_memory_min: str | int | None = None,
        gpu_total_memory_max: str | int | None = None,
        gpus_min: int | str | None = None,
        gpus_max: int | str | None = None,
        cpu_architecture: str | None = None,
        generation: str = "auto",
        estimates: bool = False,
        burstable: bool = False,
        max_nodes: int | str = 255,
        quotas: Iterable[Quota] | None = None,
        top: int | str = 3,
        solver: str = "ilp",
        time_limit_s: float | str = 60.0,
        **work: Unpack[WorkOptions],
    ) -> PlanRequest:
        """Read the values that people write.

        Args:
            budget: $/h, >= 0.
            checkpoint_size: bytes, or a size with a unit such as ``300MB`` or ``512MiB``.
            buffers: checkpoints that one memory node must hold, 1 to 1000.
            objective: ``throughput``, ``flopp``, ``cost-per-work``; with a job also ``makespan`` or ``total-cost``.
                None: ``makespan`` with a job, else ``throughput``.
            policy: ``deepvm``, ``noscale``, ``cost-first`` or ``performance-first``.
            architecture: one or several names of the registry, which the planner checks; none for all.
            speedup: ``hybrid``, ``ring`` or ``measured``; None for the catalog's default.
            gpu: glob(s) on GPU models.
            instance_type: glob(s) on the types that train.
            exclude: glob(s) on types that must not be used at all.
            memory_node: glob(s) on the types that hold checkpoints.
            gpu_memory_min: the least memory of each GPU, such as ``16GiB``.
            gpu_memory_max: the most.
            gpu_total_memory_min: the least memory of all GPUs of one VM.
            gpu_total_memory_max: the most.
            gpus_min: the fewest GPUs of one VM, 1 to 1024.
            gpus_max: the most.
            cpu_architecture: ``x86_64`` or ``arm64``; None for both.
            generation: ``current``, ``any``, or ``auto``: any to train, current ones to hold checkpoints.
            estimates: also consider types whose eFLOPS are estimated; their figures are marked.
            burstable: also consider burstable types as memory nodes.
            max_nodes: the most VMs that train, 1 to 4096.
            quotas: account limits; None for those of the catalog, empty for none.
            top: configurations to rank, 1 to 100.
            solver: ``ilp`` or ``frontier``.
            time_limit_s: seconds, above 0.
            **work: what is to be trained; see :class:`WorkOptions`.

        Numbers may also be given as text, as they come from a command line.

        Raises:
            RequestError: naming the argument, the value and what is allowed.
        """
        limit = float(to_decimal(time_limit_s, "time_limit_s", unit="seconds"))
        limits = None if quotas is None else tuple(quotas)
        refuse_twice("quotas", (f"{q.family} {q.market.value}" for q in limits or ()))
        wanted = Objective.THROUGHPUT if objective is None else _choice("objective", objective, Objective)
        checkpoint_bytes, trained = parse_bytes(checkpoint_size), None
        if any(value not in (None, "") for value in work.values()):
            from deepvm.planner.job_forecast import Work  # loads what only jobs need

            trained = Work.parse(**work, checkpoint_bytes=checkpoint_bytes)
            wanted = Objective.MAKESPAN if objective is None else wanted
        if trained is None and wanted in WORK_OBJECTIVES:
            raise RequestError(
                "objective", wanted.value, "this beside --job or --work, which say what is to be trained"
            )
        return cls(
            work=trained,
            budget=to_decimal(budget, "budget", zero=True, unit="$/h"),
            checkpoint_bytes=checkpoint_bytes,
            buffers=_whole("buffers", buffers, 1000),
            objective=wanted,
            policy=_choice("policy", policy, PolicyName),
            architectures=_words(architecture),
            speedup=None if speedup is None else _choice("speedup", speedup, SpeedupKind),
            gpus=_words(gpu),
            instance_types=_words(instance_type),
            exclude=_words(exclude),
            memory_nodes=_words(memory_node),
            gpu_memory_bytes=_range("gpu_memory", gpu_memory_min, gpu_memory_max, parse_bytes),
            gpu_total_memory_bytes=_range("gpu_total_memory", gpu_total_memory_min, gpu_total_memory_max, parse_bytes),
            gpus_per_vm=_range("gpus", gpus_min, gpus_max, _gpus),
            cpu_architecture=None
            if cpu_architecture is None
            else _choice("cpu_architecture", cpu_architecture, CpuArchitecture),
            generation=_choice("generation", generation, Generation),
            estimates=bool(estimates),
            burstable=bool(burstable),
            max_nodes=_whole("max_nodes", max_nodes, MOST_NODES),
            quotas=limits,
            top=_whole("top", top, 100),
            solver=_choice("solver", solver, SolverName),
            time_limit_s=limit,
        )


class MeasuredTables(Protocol):
    """What was measured on the user's own machines, as :func:`deepvm.load_tables` reads it."""

    def apply(self, catalog: Catalog, workload: str = "") -> Catalog:
        """The catalog with the measured figures in it."""


def with_tables(catalog: Catalog, tables: MeasuredTables | None) -> Catalog:
    """A catalog with measured figures in it, where there are any.

    Raises:
        RequestError: something else was given, such as the name of a file.
    """
    if tables is None:
        return catalog
    if not callable(getattr(tables, "apply", None)):
        raise RequestError("tables", tables, "measured tables, such as deepvm.load_tables(), or None")
    if not isinstance(catalog, Catalog):  # people pass its name
        raise RequestError("catalog", catalog, "a Catalog, such as deepvm.load_catalog('paper')")
    return tables.apply(catalog)


class WorkOptions(TypedDict, total=False):
    """What is to be trained, as people write it; see :mod:`deepvm.planner.job_forecast`.

    ``job``: a job, whose ``step_s`` is that of one VM. ``work``: in its place, hours on one VM. ``measured_on``: the
    type of that VM; the cheapest that may train unless given. ``mttp``: mean time to preemption of a VM, ``"3h"`` or
    seconds; ``interruption_rate``: in its place, the share taken away in a month, ``"10%"`` or 0.1, 0 for none.
    ``save_policy``: when the job saves, ``"adaptive"`` unless given. ``deadline``: the longest expected time, ``"12h"``
    or seconds. ``total_budget``: the highest expected bill, $.
    """

    job: Job | None
    work: float | str | None
    measured_on: str
    interruption_rate: str | float | None
    mttp: str | float | None
    save_policy: str | None
    deadline: str | float | None
    total_budget: Money | None


class PlanOptions(WorkOptions, total=False):
    """The options of :meth:`PlanRequest.parse`, for the functions that pass them on."""

    checkpoint_size: str | int
    buffers: int | str
    objective: str | None
    policy: str
    architecture: str | Sequence[str]
    speedup: str | None
    gpu: str | Sequence[str]
    instance_type: str | Sequence[str]
    exclude: str | Sequence[str]
    memory_node: str | Sequence[str]
    gpu_memory_min: str | int | None
    gpu_memory_max: str | int | None
    gpu_total_memory_min: str | int | None
    gpu_total_memory_max: str | int | None
    gpus_min: int | str | None
    gpus_max: int | str | None
    cpu_architecture: str | None
    generation: str
    estimates: bool
    burstable: bool
    max_nodes: int | str
    quotas: Iterable[Quota] | None
    top: int | str
    solver: str
    time_limit_s: float | str


def _words(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _range(option: str, least: _Given, most: _Given, read: Callable[[str | int, str], int]) -> Range:
    low, high = (
        None if value is None else read(value, f"{option}_{end}") for value, end in ((least, "min"), (most, "max"))
    )
    if low is not None and high is not None and low > high:
        raise RequestError(f"{option}_max", most, f"at least the minimum, {least}")
    return Range(low, high)


def _gpus(value: str | int, option: str) -> int:
    return _whole(option, value, MOST_GPUS)


def _whole(option: str, value: int | str, high: int) -> int:
    number = int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value.strip()) else value
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= high:
        raise RequestError(option, value, f"a whole number from 1 to {high}")
    return number


def _choice(option: str, value: str, kinds: type[_Choice]) -> _Choice:
    try:
        return kinds(value)
    except ValueError:
        raise RequestError(option, value, one_of(value, (str(k.value) for k in kinds))) from None
