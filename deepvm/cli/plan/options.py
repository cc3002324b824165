"""Options that several commands share, declared once, and what they stand for: a request, measurements, quotas."""

# No `from __future__ import annotations` here: the types of the fields below are the declarations
# that typer reads, and as texts they would have to be evaluated once more in every run.

import json
import os
import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from deepvm.catalog.price_sources import SOURCES
from deepvm.cli.help import completion as complete
from deepvm.cli.output import note
from deepvm.cli.parameters import field_name, opt, switch
from deepvm.cli.workload_options import WorkloadFlags
from deepvm.core.training.usual_model import USUAL_MODEL
from deepvm.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deepvm.catalog.market.build_catalog import MarketRequest
    from deepvm.catalog.measured.tables import Tables as MeasuredTables
    from deepvm.catalog.store import MarketOptions
    from deepvm.core.cluster.instances import Catalog, Quota
    from deepvm.core.preemption.job import Job
    from deepvm.core.training.speed import Training
    from deepvm.planner.request import PlanOptions

    SourceName = str
else:
    SourceName = Literal[("auto", *SOURCES, "none")]

DEFAULT_CATALOG = "aws"
HISTORY = "history"
"""The value of --mttp that asks the user's own jobs."""
NO_MODEL = "none"
"""``--model none`` counts eFLOPS."""
_AMOUNTS = ("seq", "batch_per_gpu", "global_batch", "tokens", "samples", "epochs", "dataset_size")
_OF_A_MODEL: "Mapping[str, object]" = {
    **dict.fromkeys((*_AMOUNTS, "activation_checkpointing")),
    "method": "auto",
    "precision": "auto",
    "software": "eager",
    "placement_group": False,
}
"""Options that say something of a model, and what each is unless given."""

MOST_DAYS = 90  # of spot prices that AWS keeps; help texts load no catalog, MarketRequest checks
# Or nothing, in place of a file
_VCPUS = re.compile(r"([0-9][0-9,_ ]*(e[0-9]+)?(vcpus?|cpus?)?)?", re.IGNORECASE)

A_CATALOG = "AWS's market, an embedded catalog, or a .json or .csv file."


def of_type(help: str, metavar: str = "GLOB") -> Any:
    """An option that names instance types."""
    return opt(help, metavar, autocompletion=complete.complete_type)


def many() -> Any:
    """The default of a repeatable option: none."""
    return field(default_factory=list)


Prices = Annotated[
    Literal["auto", "live", "snapshot"], opt("Live if possible, only live, or the snapshot.")
]
Offline = Annotated[bool, switch("Send no requests: use the cache or the snapshot.")]
Source = Annotated[
    SourceName,
    opt("Public catalog of prices to use; auto: where no cloud answers.", "NAME"),
]
PriceHistory = Annotated[
    str,
    opt(
        "A git clone of skypilot-catalog: its stored versions are the price history.",
        "FOLDER",
        "--history",
    ),
]
AwsProfile = Annotated[str, opt("AWS profile; only for live prices.", "NAME")]
Software = Annotated[
    Literal["eager", "transformers", "compiled", "tuned"],
    opt("Plain PyTorch, Hugging Face, torch.compile, or vendor-tuned."),
]
Tables = Annotated[
    str, opt("Your measurements: the saved ones, none, or an exported FILE.", "auto|paper|FILE")
]
Policies = Annotated[
    list[str],
    opt(
        "Only this policy of 'recommend'; repeatable; default: all.",
        "NAME",
        autocompletion=complete.complete_policy,
    ),
]
Workload = Annotated[
    str, opt("Use measurements of this workload; see 'deepvm tables list'.", "NAME")
]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PlanFlags(WorkloadFlags):
    """The options of every command that plans.

    Each field is an option, in the order of ``--help``; files and the environment may set it, see
    :mod:`deepvm.cli.settings`. Numbers and sizes stay text: the planner reads them, and its errors
    name the option.
    """

    pw: Annotated[str, opt("The most to pay for the cluster, $/h.", "USD/H", "--pw", "--budget")]
    catalog: Annotated[
        str,
        opt(
            "A market, an embedded one, or your .json or .csv.",
            "NAME|FILE",
            autocompletion=complete.complete_catalog,
        ),
    ] = DEFAULT_CATALOG
    cloud: Annotated[
        list[str],
        opt(
            "Market: aws, gcp, azure, nebius ... or all; repeat to compare.",
            "NAME",
            autocompletion=complete.complete_cloud,
        ),
    ] = many()
    prices: Prices = "auto"
    source: Source = "auto"
    offline: Offline = False
    region: Annotated[
        list[str],
        opt(
            "The cloud's region, or all; repeat to compare.",
            "NAME",
            "--region",
            "-r",
            autocompletion=complete.complete_region,
        ),
    ] = many()
    zone: Annotated[str, opt("Only this zone, by id (use1-az1) or name (us-east-1a).", "ZONE")] = ""
    price_basis: Annotated[
        Literal["current", "p50", "p95", "max"],
        opt("Spot prices: current, p50, p95 or max of --days.", "NAME"),
    ] = "current"
    days: Annotated[
        str, opt(f"Days of price history for --price-basis, 1 to {MOST_DAYS}.", "N")
    ] = "30"
    # Not called "history": DEEPVM_HISTORY is where jobs are written down.
    price_history: PriceHistory = ""
    network: Annotated[
        Literal["peak", "baseline"] | None,
        opt("Peak or sustained bandwidth; default: the catalog's."),
    ] = None
    profile: AwsProfile = ""
    tables: Tables = "auto"
    workload: Workload = ""
    placement_scores: Annotated[
        bool, switch("Ask AWS for spot placement scores (rate-limited).")
    ] = False
    tokens: Annotated[
        str | None, opt("Tokens to train on, such as 2B: adds time and bill.", "COUNT")
    ] = None
    samples: Annotated[str | None, opt("Instead: samples to train on, such as 50M.", "COUNT")] = (
        None
    )
    epochs: Annotated[
        str | None, opt("Instead: passes over a data set, with --dataset-size.", "N")
    ] = None
    dataset_size: Annotated[
        str | None, opt("Its samples; of a language model its tokens.", "COUNT")
    ] = None
    software: Software = "eager"
    placement_group: Annotated[bool, switch("The VMs are in a cluster placement group.")] = False
    rank: Annotated[
        Literal["machines", "plans"] | None,
        opt("Rows differ in what trains, or in anything; default: machines with a model."),
    ] = None
    extrapolate: Annotated[
        bool, switch("Clusters or batches larger than ever checked may come first.")
    ] = False
    checkpoint_size: Annotated[
        str | None, opt("Size of a checkpoint; default: the model's, else 300MB.", "SIZE")
    ] = None
    buffers: Annotated[str, opt("Checkpoints that a memory node must hold.", "N")] = "2"
    objective: Annotated[
        Literal["throughput", "flopp", "cost-per-work", "makespan", "total-cost"] | None,
        opt(
            "throughput, flopp, cost-per-work, makespan or total-cost; see the guide.",
            "NAME",
        ),
    ] = None
    policy: Annotated[
        Literal["deepvm", "noscale", "cost-first", "performance-first"],
        opt("DeepVM, or a baseline of the paper (section V-C1); the last two take no --objective."),
    ] = "deepvm"
    architecture: Annotated[
        list[str],
        opt(
            "Only this architecture, such as tiering; repeatable.",
            "NAME",
            autocompletion=complete.complete_architecture,
        ),
    ] = many()
    speedup: Annotated[
        Literal["hybrid", "ring", "measured"] | None,
        opt(
            "Scaling model: the paper's, ring all-reduce, or your measured points; default: the"
            " catalog's."
        ),
    ] = None
    estimates: Annotated[
        bool, switch("Include types with estimated, not measured, eFLOPS; marked.")
    ] = False
    gpu: Annotated[
        list[str],
        opt("Only these GPU models; repeatable.", "GLOB", autocompletion=complete.complete_gpu),
    ] = many()
    gpus_min: Annotated[str | None, opt("Minimum GPUs per VM.", "N")] = None
    gpus_max: Annotated[str | None, opt("Maximum GPUs per VM.", "N")] = None
    gpu_memory_min: Annotated[str | None, opt("Minimum memory per GPU, such as 16GiB.", "SIZE")] = (
        None
    )
    gpu_memory_max: Annotated[str | None, opt("Maximum memory per GPU.", "SIZE")] = None
    gpu_total_memory_min: Annotated[
        str | None, opt("Minimum memory of all GPUs of a VM.", "SIZE")
    ] = None
    gpu_total_memory_max: Annotated[
        str | None, opt("Maximum memory of all GPUs of a VM.", "SIZE")
    ] = None
    instance_type: Annotated[
        list[str], of_type("Only these types train, such as 'g4dn.*'; repeatable.")
    ] = many()
    exclude: Annotated[list[str], of_type("Never these types; repeatable.")] = many()
    cpu_arch: Annotated[
        Literal["x86_64", "arm64"] | None, opt("Only types with this processor architecture.")
    ] = None
    generation: Annotated[
        Literal["current", "any", "auto"],
        opt("Type generations; auto: previous ones train, but hold no checkpoints."),
    ] = "auto"
    memory_node: Annotated[
        list[str],
        opt(
            "Only these types as memory nodes; repeatable.",
            "GLOB",
            autocompletion=complete.complete_cpu_type,
        ),
    ] = many()
    burstable: Annotated[
        bool, switch("Allow burstable memory nodes (t3, ...): full speed only for minutes.")
    ] = False
    max_nodes: Annotated[str, opt("Maximum number of training VMs.", "N")] = "255"
    quota: Annotated[
        str | None, opt("Account limits in vCPUs, or none; default: the catalog's.", "FILE|none")
    ] = None

    # Not called "job": training jobs use DEEPVM_JOB for their own name.
    job_file: Annotated[
        str, opt("Job file, see 'deepvm simulate': adds expected time and cost.", "FILE", "--job")
    ] = ""
    work: Annotated[
        str | None, opt("Instead of --job: hours on one VM, or a time such as 90min.", "HOURS")
    ] = None
    measured_on: Annotated[
        str, of_type("Type that --work or step_s is for; default: cheapest usable.", "TYPE")
    ] = ""
    mttp: Annotated[str | None, opt("Mean time to preemption: 3h, or history.", "TIME")] = None
    interruption_rate: Annotated[
        str | None,
        opt(
            "Spot VMs preempted per month, such as 10%; default: the job's mttp_s or AWS's.",
            "SHARE",
        ),
    ] = None
    save_policy: Annotated[
        str | None,
        opt(
            "Save policy, as in 'deepvm simulate'; default: adaptive.",
            "NAME",
            autocompletion=complete.complete_save_policy,
        ),
    ] = None
    deadline: Annotated[
        str | None, opt("Maximum expected time of the job, such as 12h.", "TIME")
    ] = None
    total_budget: Annotated[str | None, opt("Maximum expected cost of the job, $.", "USD")] = None

    reserved: Annotated[
        str, opt("Reserved VMs and capacity blocks, with price and end.", "FILE")
    ] = ""
    savings_plan: Annotated[
        list[str],
        opt("Discount on on-demand prices: 28% or 'p5.*=28%'; repeatable.", "[GLOB=]SHARE"),
    ] = many()

    @property
    def clouds(self) -> tuple[str, ...]:
        """The named clouds, each once, ``all`` as all of them; empty: that of the catalog.

        Raises RequestError.
        """
        if not self.cloud:
            return ()
        from deepvm.catalog.clouds import clouds_of

        return clouds_of(self.cloud)

    @property
    def regions(self) -> tuple[str, ...]:
        """The named regions, each once. Raises RequestError: ``all`` and another one."""
        regions = tuple(
            dict.fromkeys(
                r for text in self.region for word in text.split(",") if (r := word.strip())
            )
        )
        if "all" in regions and len(regions) > 1:
            raise RequestError(
                "region", "all", "all without other regions, or the regions without all"
            )
        return regions

    def market(self) -> "MarketRequest":
        """How to get prices.

        Raises RequestError: --days is not 1 to 90, or --prices live with --offline.
        """
        from deepvm.catalog.market.build_catalog import MarketRequest

        names = (
            "prices",
            "offline",
            "profile",
            "zone",
            "price_basis",
            "days",
            "network",
            "source",
            "price_history",
        )
        return MarketRequest(**{name: getattr(self, name) for name in names})

    def planner_options(self, catalog: "Catalog") -> "PlanOptions":
        """Keyword arguments for the planner; a file of quotas is compared with the catalog.

        Raises DataError.
        """
        from deepvm.planner.request import PlanOptions

        options = self._values_of(PlanOptions.__annotations__)
        if self.mttp == HISTORY:  # it is in the catalog
            if self.interruption_rate is not None:
                raise RequestError(
                    "interruption_rate",
                    self.interruption_rate,
                    "either --mttp or --interruption-rate",
                )
            options |= {"mttp": None}
        options |= {
            "quotas": open_quotas(self.quota, catalog),
            "job": self._job(),
            "training": self.training(catalog),
        }
        return cast("PlanOptions", options)

    def check(self) -> None:
        """Raise what is wrong whatever the prices are, so that nobody waits for them first: RequestError, DataError."""
        from deepvm.core.units import parse_seconds, to_decimal
        from deepvm.planner.request import PlanOptions, PlanRequest, WorkOptions

        # What needs a catalog, and what means something only beside it.
        later = {*WorkOptions.__annotations__, "training", "quotas", "objective"}
        plain = self._values_of(a for a in PlanOptions.__annotations__ if a not in later)
        PlanRequest.parse(**{"budget": self.pw, **plain})
        if self._names_a_model and self.model.casefold() != NO_MODEL:
            self.trained()
        if self.deadline is not None:
            parse_seconds(self.deadline, "deadline")
        if self.total_budget is not None:
            to_decimal(self.total_budget, "total_budget")
        if self.mttp not in (None, HISTORY) or self.interruption_rate is not None:
            from deepvm.planner.job_forecast import known_life_s

            known_life_s(self.mttp, self.interruption_rate)
        if (simulate := getattr(self, "simulate", None)) is not None:
            from deepvm.services.simulated_ranking import read_runs

            read_runs(simulate, job=self.has_job)
        if self.savings_plan:
            from deepvm.core.cluster.commitments import read_savings_plan

            for text in self.savings_plan:
                read_savings_plan(text)
        if self.reserved:
            from deepvm.documents.inputs.reserved import load_reserved

            load_reserved(self.reserved)

    def _values_of(self, names: "Iterable[str]") -> "dict[str, Any]":
        """The values of options by the planner's names for them, of those that this command has."""
        own = {f.name for f in fields(self)}
        return {name: getattr(self, mine) for name in names if (mine := field_name(name)) in own}

    def training(self, catalog: "Catalog") -> "Training | None":
        """What is trained and how fast; None where eFLOPS are counted.

        Raises RequestError, CatalogFormatError.
        """
        if self.model.casefold() == NO_MODEL or not (
            self._names_a_model or self._takes_the_usual_model(catalog)
        ):
            if given := next(
                (n for n, usual in _OF_A_MODEL.items() if getattr(self, n) != usual), ""
            ):
                raise RequestError(
                    given, getattr(self, given), "only together with --model or --params"
                )
            return None
        if self.estimates:
            note(
                "--estimates has no effect where a model is trained: its speed is predicted for"
                " every type"
            )
        from deepvm.catalog.published.performance import PublishedPerformance
        from deepvm.core.training.speed import Training

        published = PublishedPerformance(self.software, self.placement_group)
        own = own_tables(self.tables)
        speeds = published if own is None else own.speeds(published, catalog.by_name)
        return Training(self.trained(USUAL_MODEL), speeds)

    def with_measurements(self, catalogs: "Sequence[Catalog]") -> "tuple[Catalog, ...]":
        """The catalogs with the user's steps of the model that is trained, or with eFLOPS and curves where these count.

        Without a named model: steps of the usual one, if there are any. Raises DataError,
        RequestError.
        """
        found, counts_eflops = (
            own_tables(self.tables, self.workload),
            self.model.casefold() == NO_MODEL,
        )
        if (
            found is None
            or counts_eflops
            or not (self._names_a_model or self._takes_the_usual_model(catalogs[0]))
        ):
            return measured(catalogs, self.tables, self.workload)
        workload = self.trained(USUAL_MODEL)
        applied = [found.apply_steps(c, workload, self.software) for c in catalogs]
        if self._names_a_model or any(_of_steps(c) for c in applied):
            if self.workload:
                note(
                    f"--workload {self.workload} has no effect where a model is trained: its own"
                    " steps count"
                )
            return _noted(catalogs, applied, self.tables, found.path)
        return measured(catalogs, self.tables, self.workload)

    @property
    def _names_a_model(self) -> bool:
        return bool(self.model) or self.params is not None

    def _takes_the_usual_model(self, catalog: "Catalog") -> bool:
        """Whether a model is assumed: on real VMs of which eFLOPS are not known, unless the user counts in them."""
        from deepvm.core.cluster.memory_nodes import PAPER_NODES

        in_eflops = (
            self.job_file,
            self.work,
            self.speedup,
            self.estimates,
            self.measured_on,
            self.workload,
        )
        in_figures = catalog.provenance.measured and not _of_steps(catalog)
        if catalog.memory_nodes is PAPER_NODES or any(in_eflops) or in_figures:
            return False
        return any(
            i.gpu is not None and (i.eflops is None or bool(i.eflops_basis)) for i in catalog
        )

    @property
    def has_job(self) -> bool:
        """Whether it is said how much is trained."""
        amounts = (self.work, self.tokens, self.samples, self.epochs)
        return bool(self.job_file) or any(amount is not None for amount in amounts)

    def _job(self) -> "Job | None":
        if not self.job_file:
            return None
        from deepvm.simulator.jobfile import read_job

        job = read_job(Path(self.job_file))
        if job.spot_usd_per_hour or job.on_demand_usd_per_hour:
            note(f"{self.job_file}: its prices are not used, the catalog's are")
        return job


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RankFlags(PlanFlags):
    """The options of ``recommend``, which ranks."""

    top: Annotated[str, opt("Configurations to rank.", "N")] = "3"
    solver: Annotated[
        Literal["ilp", "frontier"], opt("Integer program (HiGHS), or enumeration: same answer.")
    ] = "ilp"
    time_limit: Annotated[str, opt("Time limit of the integer program.", "SECONDS")] = "60"
    simulate: Annotated[
        str | None, opt("Also simulate the job on the ranked clusters: median, p95.", "RUNS")
    ] = None
    disk: Annotated[str | None, opt("Disk of each VM, such as 200GB: adds its cost.", "SIZE")] = (
        None
    )
    disk_type: Annotated[
        str | None, opt("Kind of disk, such as gp3; default: the cloud's usual.", "NAME")
    ] = None
    egress: Annotated[str | None, opt("Traffic to the internet in all: adds its cost.", "SIZE")] = (
        None
    )
    bucket: Annotated[str | None, opt("What a bucket keeps meanwhile: adds its cost.", "SIZE")] = (
        None
    )
    nat: Annotated[bool, switch("VMs without public addresses, behind a NAT gateway.")] = False
    exclude_cost: Annotated[
        # Names of deepvm.core.bill.extras.COSTS, which would load five modules to show a help text.
        list[str],
        opt(
            "Costs not to count: disk, addresses, nat, egress, bucket, boot or all; repeatable.",
            "NAME,...",
        ),
    ] = many()


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SweepFlags(PlanFlags):
    """The options of ``sweep``, which takes several budgets and several policies."""

    pw: Annotated[str, opt("Budgets in $/h: 0:10:0.1, or a comma-separated list.", "LOW:HIGH:STEP")]
    # The same option, but here it may be repeated.
    policy: Policies = many()  # type: ignore[assignment]
    simulate: Annotated[
        str | None, opt("Also simulate the best clusters: p5, p50, p95.", "RUNS")
    ] = None

    def check(self) -> None:
        """As :meth:`PlanFlags.check`, with any budget and any policy: the sweep takes several."""
        RankFlags(
            **{**self._values_of(f.name for f in fields(RankFlags)), "pw": "0", "policy": "deepvm"}
        ).check()

    def planner_options(self, catalog: "Catalog") -> "PlanOptions":
        """As :meth:`PlanFlags.planner_options`, without a policy: the sweep takes several."""
        options = super().planner_options(catalog)
        del options["policy"]
        return options


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SourceFlags:
    """How a command that only reads catalogs gets AWS's prices."""

    prices: Prices = "auto"
    source: Source = "auto"
    offline: Offline = False
    profile: AwsProfile = ""

    def load(self, name: str) -> "Catalog":
        """A catalog, with notes about where AWS's prices come from.

        Raises DataError, CloudError.
        """
        from deepvm.catalog.store import load_catalog

        options = {
            "prices": self.prices,
            "offline": self.offline,
            "profile": self.profile,
            "source": self.source,
        }
        catalog = load_catalog(name, **cast("MarketOptions", options))
        say_notes([catalog])
        return catalog


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ShowFlags(SourceFlags):
    """Adds the user's measurements, for a command that shows what the planner uses."""

    tables: Tables = "auto"
    workload: Workload = ""

    def load(self, name: str) -> "Catalog":
        """As :meth:`SourceFlags.load`, with the user's measurements. Raises RequestError, too."""
        return measured((super().load(name),), self.tables, self.workload)[0]


def say_notes(catalogs: "Sequence[Catalog]", *, details: bool = False) -> None:
    """Notes about where catalogs come from.

    What is usual takes one short line, unless details are wanted.
    """
    abouts = [c.provenance for c in catalogs]
    usual = dict.fromkeys(text for about in abouts for text in about.usual)
    for text in dict.fromkeys(
        n for about in abouts for n in about.notes if details or n not in usual
    ):
        note(text)
    if usual and not details:
        from deepvm.reports.prices.brief import brief_line

        note(brief_line(catalogs))


def own_tables(tables: str, workload: str = "") -> "MeasuredTables | None":
    """The measurements that ``--tables`` names.

    None where there are none, and none are asked for by ``workload``.
    """
    if tables == "auto" and not workload:
        from deepvm.catalog.measured.storage import default_folder, nothing_measured

        folder = default_folder(os.environ)
        if folder is None or nothing_measured(folder):  # the tables' modules are slow to load
            return None
    from deepvm.catalog.measured.tables import open_tables

    found = open_tables(tables)
    return found if found or workload else None


def measured(catalogs: "Sequence[Catalog]", tables: str, workload: str) -> "tuple[Catalog, ...]":
    """Catalogs with the user's measurements; notes about those that cannot be used.

    Raises DataError, RequestError.
    """
    found = own_tables(tables, workload)
    if found is None:
        if workload:
            note(f"--workload {workload} has no effect beside --tables paper")
        return tuple(catalogs)
    return _noted(
        catalogs, [found.apply(c, workload, among=catalogs) for c in catalogs], tables, found.path
    )


def _noted(
    catalogs: "Sequence[Catalog]", applied: "Sequence[Catalog]", tables: str, path: str
) -> "tuple[Catalog, ...]":
    """Catalogs with measurements, with notes about those that cannot be used."""
    said = {text for catalog in catalogs for text in catalog.provenance.notes}
    for text in dict.fromkeys(t for c in applied for t in c.provenance.notes if t not in said):
        note(text)
    if tables == "auto":
        return tuple(applied)
    # Measurements that are not the user's own name their file.
    named = (replace(c, provenance=replace(c.provenance, measured_file=path)) for c in applied)
    return tuple(
        new if new.provenance.measured else old for new, old in zip(named, applied, strict=True)
    )


def _of_steps(catalog: "Catalog") -> bool:
    return any(m.kind == "steps" for m in catalog.provenance.measured)


def open_quotas(name: str | None, catalog: "Catalog") -> "tuple[Quota, ...] | None":
    """The account limits that ``--quota`` names: None for the catalog's own, none at all for ``none``, else a file's.

    Raises DataError, or RequestError for a number of vCPUs, which lacks family and market.
    """
    if name is None:
        return None
    if name.lower() == "none":
        return ()
    from deepvm.catalog.store import load_quotas

    if _VCPUS.fullmatch(name.strip()) and not os.path.exists(name):
        vcpus = int(name) if name.isascii() and name.isdigit() and len(name) < 9 else 64
        family = next((i.quota_family for i in catalog if i.gpu is not None), "G and VT")
        row = {"family": family, "market": "spot", "vcpus": vcpus}
        example = json.dumps({"schema_version": "deepvm.quotas/1", "quotas": [row]})
        raise RequestError(
            "quota", name, f"none, or a JSON file of limits by family and market, such as {example}"
        )
    quotas = load_quotas(name)
    families = sorted({i.quota_family for i in catalog})
    for family in dict.fromkeys(q.family for q in quotas if q.family not in families):
        note(
            f"{name}: no type of catalog {catalog.name} counts against {family!r}, only"
            f" {', '.join(families)}"
        )
    return quotas
