"""What users ask for, validated."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from deepvm.core.bill.extras import Extras, ExtrasOptions
from deepvm.core.cluster.instances import Catalog, Quota, refuse_twice
from deepvm.core.spelling import one_of
from deepvm.core.units import Money, budget_micro_usd, format_bytes, parse_bytes, to_decimal
from deepvm.errors import RequestError

if TYPE_CHECKING:
    from typing import Unpack

    from deepvm.core.preemption.job import Job
    from deepvm.core.training.speed import Training
    from deepvm.planner.job_forecast import Work


class Objective(str, Enum):
    """What the best cluster is best at."""

    # Maximise eFLOPS x n x K(n), the fastest training that the budget buys (DeepVM V-A)
    THROUGHPUT = "throughput"
    # Maximise the printed Z, operations per dollar (DeepVM eq. 4, 8); kept for reproduction
    FLOPP = "flopp"
    # Minimise price / throughput: the cheapest training, however long it takes
    COST_PER_WORK = "cost-per-work"
    MAKESPAN = "makespan"  # minimise the expected time of a job, preemptions included
    TOTAL_COST = "total-cost"  # minimise its expected bill


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


MOST_NODES = 4096  # keeps every intermediate price far below 2**63 micro-dollars
MOST_GPUS = 1024


@dataclass(frozen=True)
class Range:
    """Whole numbers from ``least`` to ``most``, inclusive; None is no bound."""

    least: int | None = None
    most: int | None = None

    def __contains__(self, number: int) -> bool:
        """Whether a number lies within the bounds."""
        return (self.least is None or number >= self.least) and (
            self.most is None or number <= self.most
        )


ANY_NUMBER = Range()


@dataclass(frozen=True)
class PlanRequest:
    """A validated request; :meth:`parse` reads one.

    Attributes:
        budget: pricing willingness PW, $/h, >= 0.
        checkpoint_bytes: size f of one checkpoint. buffers: how many memory nodes must hold, s (eq.
            6).
        architectures: names from the registry; empty for all.
        speedup: kind of curve, None for the catalog's default. gpus, instance_types, memory_nodes:
        globs on GPU models, types that train, types that hold checkpoints; empty for all. exclude:
        globs on any type. gpu_memory_bytes, gpu_total_memory_bytes, gpus_per_vm: of a training VM:
        memory of each GPU, of all, and GPUs.
        cpu_architecture: None for all. estimates: whether types with estimated eFLOPS may train.
            burstable: whether burstable types may hold checkpoints.
        max_nodes: the most VMs that train in one cluster.
        quotas: account limits; None for those of the catalog, empty for none.
        top: how many clusters to rank. time_limit_s: of the integer program.
        work: how much is to be trained, if known. training: what is trained, if known.
        rank: None for machines where a model is trained, else plans.
        extrapolate: whether clusters may come first that are beyond 1.5 x what was ever measured,
            or whose batch is larger than is known to train well.
        life_s: with ``training``, the mean life of a spot VM that the user knows, infinite for no
            preemptions.
        pools_end: whether reserved pools have no more VMs than they have; not where limits are
            looked for.
        extras: disks, traffic and what else costs money besides VMs; with any of it, the budget is
            for all.
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
    training: Training | None = None
    life_s: float | None = None
    rank: Rank | None = None
    extrapolate: bool = False
    extras: Extras = Extras()
    pools_end: bool = True

    @property
    def needs_work(self) -> bool:
        """Whether the objective needs a job."""
        return self.objective in WORK_OBJECTIVES

    @property
    def has_objective(self) -> bool:
        """Whether the policy has an objective, unlike the baselines."""
        return self.policy in (PolicyName.DEEPVM, PolicyName.NOSCALE)

    @property
    def ignores_scaling(self) -> bool:
        """Whether the policy ignores K(n), as all but DeepVM's own do (V-C1)."""
        return self.policy is not PolicyName.DEEPVM

    @property
    def ranks_machines(self) -> bool:
        """Whether ranked clusters differ in what trains.

        Those of the baselines are ranked by their own rule alone.
        """
        asked = self.training is not None if self.rank is None else self.rank is Rank.MACHINES
        return asked and self.has_objective

    @property
    def plans_of_a_size(self) -> int:
        """How many of the ranked clusters may differ in their memory nodes alone."""
        return 1 if self.ranks_machines else self.top

    @property
    def weighs_doubt(self) -> bool:
        """Whether plans are ordered by :mod:`deepvm.planner.ranking`, and not to the last digit of their value."""
        return self.ranks_machines or (self.training is not None and self.has_objective)

    def quotas_of(self, catalog: Catalog) -> tuple[Quota, ...]:
        """The account limits that apply: the request's, else the catalog's.

        And those of reserved pools.
        """
        limits = catalog.quotas if self.quotas is None else self.quotas
        return (*limits, *(catalog.pool_quotas if self.pools_end else ()))

    def curves_of(self, catalog: Catalog) -> str:
        """The kind of curve for types without a default of their own: the request's, else the catalog's."""
        return self.speedup.value if self.speedup else catalog.default_speedup

    @property
    def budget_micro_usd(self) -> int:
        """The budget in whole micro-dollars an hour."""
        return budget_micro_usd(self.budget)

    @property
    def memory_needed_bytes(self) -> int:
        """Memory that checkpoints need: f x s (DeepVM eq. 6), of one memory node or of those that share versions."""
        return self.checkpoint_bytes * self.buffers

    @property
    def held(self) -> str:
        """What memory nodes hold, such as ``2 x 300 MB``."""
        return f"{self.buffers} x {format_bytes(self.checkpoint_bytes)}"

    @property
    def in_all(self) -> str:
        """Behind a price that is compared with the budget: whether it is of more than VMs."""
        return " in all" if self.extras.counted else ""

    @property
    def within_limits(self) -> str:
        """What follows "the cheapest cluster" if the job has limits."""
        return (
            " that keeps to the job's limits"
            if self.work is not None and self.work.constrained
            else ""
        )

    @classmethod
    def parse(cls, budget: Money, **options: Unpack[PlanOptions]) -> PlanRequest:
        """Read a budget, $/h, >= 0, and :class:`PlanOptions`; numbers may be text.

        Raises a RequestError.
        """
        given = dict[str, Any](options)
        training: Training | None = given.get("training")
        work_options = {
            name: given.pop(name) for name in WorkOptions.__annotations__ if name in given
        }
        extras = {name: given.pop(name) for name in ExtrasOptions.__annotations__ if name in given}
        found: dict[str, Any] = {"budget": to_decimal(budget, "budget", zero=True, unit="$/h")}
        found["extras"] = Extras.parse(**extras)
        if training is not None:
            if not hasattr(training, "workload"):
                allowed = "what deepvm.workload returns, such as deepvm.workload(model='llama-8b')"
                raise RequestError("training", training, allowed)
            found["checkpoint_bytes"] = training.workload.saved_bytes
            if (speedup := given.get("speedup")) is not None:
                raise RequestError(
                    "speedup", speedup, "none with a model: its step time decides how it scales"
                )
        for attribute, (option, read) in _RANGES.items():
            least, most = given.pop(f"{option}_min", None), given.pop(f"{option}_max", None)
            found[attribute] = _range(option, least, most, read)
        for option, value in given.items():
            if option not in _READERS:
                raise TypeError(f"unexpected keyword argument {option!r}")
            attribute, read = _READERS[option]
            if value is not None or option not in _NONE_IS_DEFAULT:
                found[attribute] = read(value, option)
        request = cls(**found)
        if found.get("objective") is not None and not request.has_objective:
            allowed = f"none with the policy {request.policy.value}, which has a rule of its own"
            raise RequestError("objective", request.objective.value, allowed)
        trained = {name: value for name, value in work_options.items() if value not in (None, "")}
        if training is not None:
            from deepvm.planner.job_forecast import known_life_s

            life = known_life_s(trained.get("mttp"), trained.get("interruption_rate"))
            request = replace(request, life_s=life)
            trained = {
                name: value
                for name, value in trained.items()
                if name not in ("mttp", "interruption_rate")
            }
        amount = training is not None and training.workload.samples is not None
        if not trained and not amount and not request.needs_work:
            return request
        if not amount and not trained.keys() & {"job", "work"}:
            option, value = next(iter(trained.items()), ("objective", request.objective.value))
            allowed = (
                "only together with --job, --work, --tokens, --samples or --epochs, which say how"
                " much is trained"
            )
            raise RequestError(option, value, allowed)
        from deepvm.planner.job_forecast import Work  # slow to import, and only needed for jobs

        work = Work.parse(**trained, checkpoint_bytes=request.checkpoint_bytes, training=training)
        if training is not None:
            return replace(request, work=work)
        return replace(request, work=work, objective=found.get("objective", Objective.MAKESPAN))


class MeasuredTables(Protocol):
    """Measurements of the user's own machines, as :func:`deepvm.load_tables` reads them."""

    def apply(self, catalog: Catalog, workload: str = "") -> Catalog:
        """The catalog with the measured figures."""


def with_tables(catalog: Catalog, tables: MeasuredTables | None) -> Catalog:
    """A catalog with any measured figures; raises a RequestError for other objects."""
    if not isinstance(catalog, Catalog):
        raise RequestError("catalog", catalog, "a Catalog, such as deepvm.load_catalog('paper')")
    if tables is None:
        return catalog
    if not callable(getattr(tables, "apply", None)):
        raise RequestError(
            "tables", tables, "measured tables, such as deepvm.load_tables(), or None"
        )
    return tables.apply(catalog)


class WorkOptions(TypedDict, total=False):
    """What is to be trained; see :mod:`deepvm.planner.job_forecast`.

    ``job``: a job, whose ``step_s`` is that of one VM. ``work``: instead, hours on one VM.
    ``measured_on``: the type of that VM, by default the cheapest that may train. ``mttp``: mean
    time to preemption of a VM, ``"3h"`` or seconds;
    ``interruption_rate``: instead, the share preempted in a month, ``"10%"`` or 0.1, 0 for none.
    ``save_policy``: by default ``"adaptive"``. ``deadline``: the longest expected time, ``"12h"``
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


class PlanOptions(WorkOptions, ExtrasOptions, total=False):
    """The options of :func:`deepvm.recommend`, where they are described with their defaults."""

    training: Training | None
    checkpoint_size: str | int | None
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
    rank: str | None
    extrapolate: bool
    solver: str
    time_limit_s: float | str


_Reader = Callable[[Any, str], Any]  # takes a value, and the option's name for the error


def _whole(most: int) -> _Reader:
    def read(value: Any, option: str) -> int:
        number = (
            int(value)
            if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value.strip())
            else value
        )
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
            raise RequestError(option, value, f"a whole number from 1 to {most}")
        return number

    return read


def _choice(kinds: type[Enum]) -> _Reader:
    def read(value: Any, option: str) -> Enum:
        try:
            return kinds(value)
        except ValueError:
            raise RequestError(
                option, value, one_of(value, (str(k.value) for k in kinds))
            ) from None

    return read


def _words(value: str | Sequence[str], option: str) -> tuple[str, ...]:
    """Names or globs, also several in one text: ``g5.*,p5.*``.

    A comma in brackets is part of a glob.
    """
    texts = [value] if isinstance(value, str) else value
    return tuple(word.strip() for text in texts for word in re.split(r",(?![^\[]*\])", text))


def _quotas(value: Iterable[Quota], option: str) -> tuple[Quota, ...]:
    quotas = tuple(value)
    refuse_twice(option, (f"{q.family} {q.market.value}" for q in quotas))
    return quotas


def _range(option: str, least: Any, most: Any, read: _Reader) -> Range:
    low = None if least is None else read(least, f"{option}_min")
    high = None if most is None else read(most, f"{option}_max")
    if low is not None and high is not None and low > high:
        raise RequestError(f"{option}_max", most, f"at least the minimum, {least}")
    return Range(low, high)


_RANGES: Mapping[str, tuple[str, _Reader]] = {
    "gpu_memory_bytes": ("gpu_memory", parse_bytes),
    "gpu_total_memory_bytes": ("gpu_total_memory", parse_bytes),
    "gpus_per_vm": ("gpus", _whole(MOST_GPUS)),
}
_READERS: Mapping[str, tuple[str, _Reader]] = {
    "training": ("training", lambda value, option: value),
    "checkpoint_size": ("checkpoint_bytes", parse_bytes),
    "buffers": ("buffers", _whole(1000)),
    "objective": ("objective", _choice(Objective)),
    "policy": ("policy", _choice(PolicyName)),
    "architecture": ("architectures", _words),
    "speedup": ("speedup", _choice(SpeedupKind)),
    "gpu": ("gpus", _words),
    "instance_type": ("instance_types", _words),
    "exclude": ("exclude", _words),
    "memory_node": ("memory_nodes", _words),
    "cpu_architecture": ("cpu_architecture", _choice(CpuArchitecture)),
    "generation": ("generation", _choice(Generation)),
    "estimates": ("estimates", lambda value, option: bool(value)),
    "burstable": ("burstable", lambda value, option: bool(value)),
    "max_nodes": ("max_nodes", _whole(MOST_NODES)),
    "quotas": ("quotas", _quotas),
    "top": ("top", _whole(100)),
    "rank": ("rank", _choice(Rank)),
    "extrapolate": ("extrapolate", lambda value, option: bool(value)),
    "solver": ("solver", _choice(SolverName)),
    "time_limit_s": (
        "time_limit_s",
        lambda value, option: float(to_decimal(value, option, unit="seconds")),
    ),
}
_NONE_IS_DEFAULT = (
    "training",
    "rank",
    "checkpoint_size",
    "objective",
    "speedup",
    "cpu_architecture",
    "quotas",
)
