"""A request to the planner: options are read, checked and joined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

from deepvm.core.cluster.instances import Catalog, Gpu, InstanceType, Quota, refuse_twice
from deepvm.core.extras import Extras
from deepvm.core.options import option_of
from deepvm.core.units import GIB, Money, budget_micro_usd, format_bytes, parse_seconds, to_decimal
from deepvm.errors import RequestError
from deepvm.planner.options import CpuArchitecture as CpuArchitecture
from deepvm.planner.options import Generation as Generation
from deepvm.planner.options import Objective as Objective
from deepvm.planner.options import PlanOptions, RankOptions
from deepvm.planner.options import PolicyName as PolicyName
from deepvm.planner.options import Rank as Rank
from deepvm.planner.options import SolverName as SolverName
from deepvm.planner.options import SpeedupKind as SpeedupKind

if TYPE_CHECKING:
    from deepvm.core.training.speed import Training
    from deepvm.core.training.workload import Workload
    from deepvm.planner.job_forecast import Work

WORK_OBJECTIVES = (Objective.MAKESPAN, Objective.TOTAL_COST)


@dataclass(frozen=True)
class Range:
    """Whole numbers from ``least`` to ``most``, inclusive; None is no bound."""

    least: int | None = None
    most: int | None = None

    def __contains__(self, number: int) -> bool:
        return (self.least is None or number >= self.least) and (
            self.most is None or number <= self.most
        )


ANY_NUMBER = Range()


@dataclass(frozen=True)
class Filter:
    """A figure of training types that a range restricts; None is an unknown one.

    ``sentence`` says what a type has, with ``{}`` for the figure as ``words`` writes it.
    """

    sentence: str
    figure: Callable[[Any], int | None]
    words: Callable[[int], str] = str

    def refusal(self, instance: InstanceType, wanted: Range) -> str:
        """Why a range leaves a type out, empty if it does not; unknown figures are in no range."""
        number = self.figure(instance)
        if wanted == ANY_NUMBER or (number is not None and number in wanted):
            return ""
        has = "an unknown amount" if number is None else self.words(number)
        ends = (("at least", wanted.least), ("at most", wanted.most))
        bounds = (f"{which} {self.words(end)}" for which, end in ends if end is not None)
        return f"{self.sentence.format(has)}, wanted {' and '.join(bounds)}"


def _filter(*about: Any) -> Any:
    """A range that types which train must be in; ``about`` as :class:`Filter`."""
    return field(default=ANY_NUMBER, metadata={"filter": Filter(*about)})


def _gpu_bytes(gpu: Gpu, count: int = 1) -> int | None:
    if gpu.memory_gib is None:
        return None
    return int(gpu.memory_gib * GIB) * count


def _gib(size: int) -> str:
    return f"{size / GIB:.4g} GiB"


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
        extrapolate: whether clusters may come first that are beyond 1.5 x the largest measured one,
            or whose batch is larger than is known to train well.
        life_s: with ``training``, the mean life of a spot VM that the user knows, infinite for no
            preemptions.
        pools_end: whether the sizes of reserved pools count as quotas; False to search beyond them.
        extras: disks, traffic and other costs besides VMs; with any of them, the budget is for all.
    """

    budget: Decimal
    checkpoint_bytes: int = 300_000_000
    buffers: int = PlanOptions.buffers
    objective: Objective = Objective.THROUGHPUT
    policy: PolicyName = PlanOptions.policy
    architectures: tuple[str, ...] = ()
    speedup: SpeedupKind | None = None
    gpus: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    memory_nodes: tuple[str, ...] = ()
    gpus_per_vm: Range = _filter("it has {} GPUs", lambda vm: vm.gpu.count)
    gpu_memory_bytes: Range = _filter("each GPU has {}", lambda vm: _gpu_bytes(vm.gpu), _gib)
    gpu_total_memory_bytes: Range = _filter(
        "its GPUs together have {}", lambda vm: _gpu_bytes(vm.gpu, vm.gpu.count), _gib
    )
    cpu_architecture: CpuArchitecture | None = None
    generation: Generation = PlanOptions.generation
    estimates: bool = False
    burstable: bool = False
    max_nodes: int = PlanOptions.max_nodes
    quotas: tuple[Quota, ...] | None = None
    top: int = RankOptions.top
    solver: SolverName = RankOptions.solver
    time_limit_s: float = RankOptions.time_limit_s
    work: Work | None = None
    training: Training | None = None
    life_s: float | None = None
    rank: Rank | None = None
    extrapolate: bool = False
    extras: Extras = Extras()
    pools_end: bool = True

    @property
    def workload(self) -> Workload | None:
        """What is trained, where that is a model."""
        if self.training is None:
            return None
        return self.training.workload

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
        if self.rank is None:
            asked = self.training is not None
        else:
            asked = self.rank is Rank.MACHINES
        return asked and self.has_objective

    @property
    def plans_of_a_size(self) -> int:
        """How many of the ranked clusters may differ in their memory nodes alone."""
        if self.ranks_machines:
            return 1
        return self.top

    @property
    def weighs_doubt(self) -> bool:
        """Whether :mod:`deepvm.planner.ranking` orders plans, and not the last digit of a value."""
        return self.ranks_machines or (self.training is not None and self.has_objective)

    def refusal(self, instance: InstanceType) -> str:
        """Which filter leaves out a type that trains, in words; empty when none does."""
        refusals = (one.refusal(instance, getattr(self, name)) for name, one in _FILTERS.items())
        return next(filter(None, refusals), "")

    def quotas_of(self, catalog: Catalog) -> tuple[Quota, ...]:
        """The account limits that apply: the request's, else the catalog's.

        And those of reserved pools.
        """
        if self.quotas is None:
            limits = catalog.quotas
        else:
            limits = self.quotas
        return (*limits, *(catalog.pool_quotas if self.pools_end else ()))

    def curves_of(self, catalog: Catalog) -> str:
        """The kind of curve for types without a default of their own.

        It is the request's, else the catalog's.
        """
        if self.speedup:
            return self.speedup.value
        return catalog.default_speedup

    @property
    def budget_micro_usd(self) -> int:
        return budget_micro_usd(self.budget)

    @property
    def memory_needed_bytes(self) -> int:
        """Memory that checkpoints need: f x s (DeepVM eq. 6).

        It is that of one memory node or of those that share versions.
        """
        return self.checkpoint_bytes * self.buffers

    @property
    def held(self) -> str:
        """What memory nodes hold, such as ``2 x 300 MB``."""
        return f"{self.buffers} x {format_bytes(self.checkpoint_bytes)}"

    @property
    def in_all(self) -> str:
        """`` in all`` after a price that includes more than VMs; else empty."""
        if self.extras.counted:
            return " in all"
        return ""

    @classmethod
    def parse(cls, budget: Money, options: PlanOptions | None = None, **given: Any) -> PlanRequest:
        """Read a budget, $/h, >= 0, and options: a record of them, or by keyword.

        Raises a RequestError.
        """
        if options is None:
            options = RankOptions(**given)
        training = options.training
        if training is not None and not hasattr(training, "workload"):
            allowed = "what deepvm.workload returns, such as deepvm.workload(model='llama-8b')"
            raise RequestError("training", training, allowed)
        parts = _values_of(options)
        values = parts[""]
        values["budget"] = to_decimal(budget, "budget", zero=True, unit="$/h")
        values["extras"] = Extras.parse(**parts["extras"])
        if options.quotas is not None:
            values["quotas"] = tuple(options.quotas)
            refuse_twice("quotas", (f"{q.family} {q.market.value}" for q in values["quotas"]))
        if training is not None:
            values["training"] = training
            values.setdefault("checkpoint_bytes", training.workload.saved_bytes)
            if options.speedup is not None:
                allowed = "none with a model: its step time decides how it scales"
                raise RequestError("speedup", options.speedup, allowed)
        request = cls(**values)
        if options.objective is not None and not request.has_objective:
            allowed = f"none with the policy {request.policy.value}, which has a rule of its own"
            raise RequestError("objective", request.objective.value, allowed)
        return _with_work(request, options, parts["work"])


_FILTERS: dict[str, Filter] = {
    f.name: f.metadata["filter"] for f in fields(PlanRequest) if "filter" in f.metadata
}


def _values_of(options: PlanOptions) -> dict[str, dict[str, Any]]:
    """The values of the options that are set, by the part that reads them; "": the request."""
    parts: dict[str, dict[str, Any]] = {"": {}, "work": {}, "extras": {}}
    for one in fields(options):
        about = option_of(one)
        value = getattr(options, one.name)
        if about is None or (value is None and one.default is None):
            continue
        values = parts[about.part]
        if about.part and value not in (None, ""):
            values[one.name] = value
        if about.read is None:
            continue
        name = about.into or one.name
        read = about.read(value, one.name)
        if one.name.endswith("_min"):
            values[name] = Range(least=read)
        elif one.name.endswith("_max"):
            least = values.get(name, ANY_NUMBER).least
            if least is not None and least > read:
                lowest = getattr(options, f"{one.name.removesuffix('_max')}_min")
                raise RequestError(one.name, value, f"at least the minimum, {lowest}")
            values[name] = Range(least, read)
        else:
            values[name] = read
    return parts


def _with_work(request: PlanRequest, options: PlanOptions, given: dict[str, Any]) -> PlanRequest:
    """The request with its work, if any is given. Raises a RequestError."""
    training = request.training
    if options.job is not None:
        given = {"job": options.job, **given}

    def taken_life_s() -> float | None:
        return known_life_s(given.pop("mttp", None), given.pop("interruption_rate", None))

    if training is not None:
        request = replace(request, life_s=taken_life_s())
    amount = training is not None and training.workload.samples is not None
    if not given and not amount and not request.needs_work:
        return request
    if not amount and not given.keys() & {"job", "work"}:
        option, value = next(iter(given.items()), ("objective", request.objective.value))
        allowed = (
            "only together with --job, --work, --tokens, --samples or --epochs, which say how"
            " much is trained"
        )
        raise RequestError(option, value, allowed)
    from deepvm.planner.job_forecast import Work  # slow to import, and only needed for jobs

    life_s = taken_life_s()
    work = Work.parse(
        **given, life_s=life_s, checkpoint_bytes=request.checkpoint_bytes, training=training
    )
    if training is None and options.objective is None:
        request = replace(request, objective=Objective.MAKESPAN)
    return replace(request, work=work)


def known_life_s(mttp: str | float | None, interruption_rate: str | float | None) -> float | None:
    """Mean life of a spot VM known to the user, s (infinite: no losses); None if not given.

    Raises a RequestError for both figures together, and for one that cannot be.
    """
    if mttp is not None and interruption_rate is not None:
        raise RequestError(
            "interruption_rate", interruption_rate, "either --mttp or --interruption-rate"
        )
    if mttp is not None:
        return parse_seconds(mttp, "mttp")
    if interruption_rate is None:
        return None
    from deepvm.core.lifetimes import mean_life_s

    return mean_life_s(_share(interruption_rate))


def _share(value: str | float) -> float:
    allowed = (
        "the share of VMs that is preempted in a month, from 0 and below 100 %, such as 10% or 0.1"
    )
    text = str(value).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise RequestError("interruption_rate", value, allowed) from None
    if isinstance(value, bool) or not 0 <= share < 1:
        raise RequestError("interruption_rate", value, allowed)
    return share


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
