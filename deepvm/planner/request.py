"""A request to the planner: options are read, checked and joined."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

from deepvm.core.cluster.instances import Catalog, InstanceType, Quota, refuse_twice
from deepvm.core.extras import Extras
from deepvm.core.options import option_of
from deepvm.core.units import (
    GIB,
    MICRO_USD,
    MOST_USD,
    Money,
    budget_micro_usd,
    format_bytes,
    parse_seconds,
    to_decimal,
)
from deepvm.errors import OptionMismatchError, RequestError
from deepvm.planner.options import CpuArchitecture as CpuArchitecture
from deepvm.planner.options import Generation as Generation
from deepvm.planner.options import Objective as Objective
from deepvm.planner.options import PlanOptions, RankOptions
from deepvm.planner.options import PolicyName as PolicyName
from deepvm.planner.options import Rank as Rank
from deepvm.planner.options import SolverName as SolverName
from deepvm.planner.options import SpeedupKind as SpeedupKind
from deepvm.records import dataclass, fields, replace

if TYPE_CHECKING:
    from deepvm.core.training.speed import Training
    from deepvm.core.training.workload import Workload
    from deepvm.planner.job_forecast import Work

BUDGET_OR_LIMIT = (
    "an amount in $/h, such as deepvm recommend 3; or a --total-budget or a --deadline, with how"
    " much is trained"
)
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


def _gpu_bytes(vm: Any) -> int:
    """Memory of each GPU; 0, which is in no range, if unknown."""
    return int((vm.gpu.memory_gib or 0) * GIB)


def _gib(size: int) -> str:
    return f"{size / GIB:.4g} GiB"


# Figures of training types that ranges restrict: what a type has, the figure, and how to write it
_FILTERS: dict[str, tuple[str, Callable[[Any], int], Callable[[int], str]]] = {
    "gpus_per_vm": ("it has {} GPUs", lambda vm: vm.gpu.count, str),
    "gpu_memory_bytes": ("each GPU has {}", _gpu_bytes, _gib),
    "gpu_total_memory_bytes": (
        "its GPUs together have {}",
        lambda vm: _gpu_bytes(vm) * vm.gpu.count,
        _gib,
    ),
}


@dataclass(frozen=True)
class PlanRequest:
    """A validated request; :meth:`parse` reads one."""

    budget: Decimal  # pricing willingness PW, $/h; if derived, what the first plan costs
    checkpoint_bytes: int = 300_000_000  # f (eq. 6)
    buffers: int = PlanOptions.buffers  # s (eq. 6)
    objective: Objective = Objective.THROUGHPUT
    policy: PolicyName = PlanOptions.policy
    architectures: tuple[str, ...] = ()  # names from the registry; empty for all
    speedup: SpeedupKind | None = None  # None for the catalog's default
    gpus: tuple[str, ...] = ()  # globs on GPU models; empty for all
    instance_types: tuple[str, ...] = ()  # globs on types that train
    exclude: tuple[str, ...] = ()
    memory_nodes: tuple[str, ...] = ()  # globs on types that hold checkpoints
    gpus_per_vm: Range = ANY_NUMBER
    gpu_memory_bytes: Range = ANY_NUMBER
    gpu_total_memory_bytes: Range = ANY_NUMBER
    cpu_architecture: CpuArchitecture | None = None
    generation: Generation = PlanOptions.generation
    estimates: bool = False  # types with estimated eFLOPS may train
    burstable: bool = False
    max_nodes: int = PlanOptions.max_nodes  # VMs that train
    quotas: tuple[Quota, ...] | None = None  # None for those of the catalog, empty for none
    top: int = RankOptions.top
    solver: SolverName = RankOptions.solver
    time_limit_s: float = RankOptions.time_limit_s
    work: Work | None = None
    training: Training | None = None
    life_s: float | None = None  # mean lifetime of a spot VM that the user knows, with training
    rank: Rank | None = None  # None for machines where a model is trained, else plans
    extrapolate: bool = False  # sizes and batches larger than ever checked may come first
    extras: Extras = Extras()  # costs besides VMs; with any of them, the budget is for all
    pools_end: bool = True  # whether sizes of reserved pools count as quotas
    derives_budget: bool = False  # only the job's total budget and deadline limit the price

    @property
    def workload(self) -> Workload | None:
        if self.training is None:
            return None
        return self.training.workload

    @property
    def needs_work(self) -> bool:
        return self.objective in WORK_OBJECTIVES

    @property
    def has_objective(self) -> bool:
        """Whether the policy has an objective, unlike the baselines."""
        return self.policy in (PolicyName.DEEPVM, PolicyName.NOSCALE)

    @property
    def ranks_machines(self) -> bool:
        """Whether ranked clusters differ in what trains; those of the baselines do not."""
        if self.rank is None:
            asked = self.training is not None
        else:
            asked = self.rank is Rank.MACHINES
        return asked and self.has_objective

    @property
    def plans_of_a_size(self) -> int:
        if self.ranks_machines:
            return 1
        return self.top

    @property
    def weighs_doubt(self) -> bool:
        """Whether :mod:`deepvm.planner.ranking` orders plans, and not the last digit of a value."""
        return self.ranks_machines or (self.training is not None and self.has_objective)

    def refusal(self, instance: InstanceType) -> str:
        """Which filter leaves out a type that trains, in words; empty when none does."""
        for name, (sentence, figure, words) in _FILTERS.items():
            wanted = getattr(self, name)
            if wanted == ANY_NUMBER:
                continue
            number = figure(instance)
            if number not in wanted or not number:
                has = "an unknown amount"
                if number:
                    has = words(number)
                ends = (("at least", wanted.least), ("at most", wanted.most))
                bounds = (f"{which} {words(end)}" for which, end in ends if end is not None)
                return f"{sentence.format(has)}, wanted {' and '.join(bounds)}"
        return ""

    def quotas_of(self, catalog: Catalog) -> tuple[Quota, ...]:
        """The account limits that apply, and those of reserved pools."""
        if self.quotas is None:
            limits = catalog.quotas
        else:
            limits = self.quotas
        if self.pools_end:
            limits = (*limits, *catalog.pool_quotas)  # a caller's list stays as it is
        return limits

    def curves_of(self, catalog: Catalog) -> str:
        """The kind of curve for types without a default of their own."""
        if self.speedup:
            return self.speedup.value
        return catalog.default_speedup

    @property
    def budget_micro_usd(self) -> int:
        """The highest price to consider, micro-dollars/h."""
        if self.derives_budget:
            return MOST_USD * MICRO_USD
        return budget_micro_usd(self.budget)

    @property
    def memory_needed_bytes(self) -> int:
        """Memory that checkpoints need, of one memory node or several: f x s (DeepVM eq. 6)."""
        return self.checkpoint_bytes * self.buffers

    @property
    def held(self) -> str:
        return f"{self.buffers} x {format_bytes(self.checkpoint_bytes)}"

    @property
    def in_all(self) -> str:
        """`` in all`` after a price that includes more than VMs; else empty."""
        if self.extras.counted:
            return " in all"
        return ""

    @classmethod
    def parse(
        cls, budget: Money | None, options: PlanOptions | None = None, **given: Any
    ) -> PlanRequest:
        """Read a budget, $/h, and options, as a record or by keyword. Raises a RequestError.

        ``budget`` None: only the job's total budget and deadline limit the price. With a deadline
        the lowest bill is asked for then, unless ``objective`` says otherwise.
        """
        if options is None:
            options = RankOptions(**given)
        training = options.training
        if training is not None and not hasattr(training, "workload"):
            allowed = "what deepvm.workload returns, such as deepvm.workload(model='llama-8b')"
            raise RequestError("training", training, allowed)
        parts = _values_of(options)
        values = parts[""]
        if budget is None:
            if options.deadline is None and options.total_budget is None:
                raise RequestError("budget", None, BUDGET_OR_LIMIT)
            values |= {"budget": Decimal(0), "derives_budget": True}
            if options.objective is None and options.deadline is not None:
                values["objective"] = Objective.TOTAL_COST
        else:
            values["budget"] = to_decimal(budget, "budget", zero=True, unit="$/h")
        values["extras"] = Extras.parse(**parts["extras"])
        if options.quotas is not None:
            values["quotas"] = tuple(options.quotas)
            refuse_twice("quotas", (f"{q.family} {q.market.value}" for q in values["quotas"]))
        if training is not None:
            values["training"] = training
            values.setdefault("checkpoint_bytes", training.workload.saved_bytes)
            if options.speedup is not None:
                reason = "does not go with a model: its step time decides how it scales"
                raise OptionMismatchError("speedup", options.speedup, reason)
        request = cls(**values)
        if options.objective is not None and not request.has_objective:
            reason = f"does not go with the policy {request.policy.value}, which has its own rule"
            raise OptionMismatchError("objective", request.objective.value, reason)
        return _with_work(request, options, parts["work"])


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
    training = request.training
    if options.job is not None:
        given = {"job": options.job, **given}
    life_s = None
    if training is not None or given.keys() & {"job", "work"}:
        life_s = known_life_s(given.pop("mttp", None), given.pop("interruption_rate", None))
    if training is not None:
        request = replace(request, life_s=life_s)
        life_s = None
    amount = training is not None and training.workload.samples is not None
    if not given and not amount and not request.needs_work:
        return request
    if not amount and not given.keys() & {"job", "work"}:
        option, value = next(iter(given.items()), ("objective", request.objective.value))
        reason = f"{value} needs an amount to train: --tokens, --samples, --epochs, --work or --job"
        cure = "--model vit-b --epochs 90 --dataset-size 1.28M"
        raise OptionMismatchError(option, value, reason, cure)
    from deepvm.planner.job_forecast import Work  # slow to import, and only needed for jobs

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
        raise OptionMismatchError.with_other("interruption_rate", interruption_rate, "--mttp")
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
