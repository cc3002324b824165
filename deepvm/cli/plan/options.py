"""Options that several commands share, declared once, and how they become a request."""

# No `from __future__ import annotations` here: the types of the fields below are the declarations that typer reads, and
# as texts they would have to be evaluated once more in every run.

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from deepvm.cli.option_dataclass import field_name
from deepvm.cli.output import note

if TYPE_CHECKING:
    from deepvm.catalog.market.build_catalog import MarketRequest
    from deepvm.core.cluster.instances import Catalog
    from deepvm.core.preemption.job import Job
    from deepvm.planner.request import PlanOptions

DEFAULT_CATALOG = "aws"

MOST_DAYS = 90
"""Days of spot prices that AWS keeps."""


def _complete_catalog(incomplete: str) -> list[str]:
    from deepvm.catalog.store import catalog_names

    return [n for n in ("aws", *catalog_names()) if n.startswith(incomplete)]


def complete_type(incomplete: str) -> list[str]:
    """Types of the default catalog that begin so, for the shell."""
    from deepvm.catalog.store import load_catalog

    return [i.name for i in load_catalog(DEFAULT_CATALOG, offline=True) if i.name.startswith(incomplete)]


def _complete_architecture(incomplete: str) -> list[str]:
    from deepvm.planner.architectures import REGISTRY

    return [n for n in REGISTRY if n.startswith(incomplete)]


ObjectiveName = Annotated[
    Literal["throughput", "flopp", "cost-per-work", "makespan", "total-cost"] | None,
    typer.Option(help="What the best cluster is best at; throughput unless given, with --job or --work makespan."),
]
Policy = Annotated[
    Literal["deepvm", "noscale", "cost-first", "performance-first"],
    typer.Option(help="DeepVM, or a baseline of the paper (section V-C1); the last two have no objective."),
]
Speedup = Annotated[
    Literal["hybrid", "ring", "measured"] | None,
    typer.Option(help="Speed-up curve to use in place of the catalog's default."),
]
CpuArch = Annotated[
    Literal["x86_64", "arm64"] | None, typer.Option(help="Only types with these processors. All unless given.")
]
Generation = Annotated[
    Literal["current", "any", "auto"],
    typer.Option(
        help="Whether types that AWS calls previous generation may be used; auto: to train, not to hold checkpoints."
    ),
]
Solver = Annotated[
    Literal["ilp", "frontier"],
    typer.Option(help="Integer program (HiGHS), or exact enumeration: the same answer."),
]
Prices = Annotated[
    Literal["auto", "live", "snapshot"],
    typer.Option(help="From AWS where that is possible, only from AWS, or those that came with deepvm."),
]
Offline = Annotated[
    bool, typer.Option(show_default=False, help="Never ask the network: use what is kept on this machine.")
]
AwsProfile = Annotated[str, typer.Option(help="AWS profile; has no effect on embedded catalogs and files.")]
PriceBasis = Literal["current", "p50", "p95", "max"]
Network = Literal["peak", "baseline"]
Tables = Annotated[
    str,
    typer.Option(
        metavar="auto|paper|FILE",
        help="Figures measured on your own machines: those that you saved, none, or an exported FILE.",
    ),
]
Workload = Annotated[
    str,
    typer.Option(metavar="NAME", help="Of the measured figures, those of this workload; see 'deepvm tables list'."),
]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PlanFlags:
    """The options of every command that plans.

    Each field is one option, called after the field, in the order of ``--help``; files and the environment may set each
    of them, see :mod:`deepvm.cli.settings`. Numbers and sizes stay the text that was given: the planner reads them, and
    its errors name the option.
    """

    pw: Annotated[str, typer.Option(metavar="USD/H", help="Pricing willingness: the most to pay for the cluster, $/h.")]
    catalog: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            autocompletion=_complete_catalog,
            help="AWS's market; paper or simulated; or a .json or .csv file of your own. See 'deepvm catalog list'.",
        ),
    ] = DEFAULT_CATALOG
    prices: Prices = "auto"
    offline: Offline = False
    region: Annotated[
        list[str],
        typer.Option(
            "--region", "-r", metavar="NAME", help="The region whose prices to use, or all; may be repeated to compare."
        ),
    ] = field(default_factory=list)
    zone: Annotated[
        str, typer.Option(metavar="ZONE", help="Only this zone, by its id (use1-az1) or its name (us-east-1a).")
    ] = ""
    price_basis: Annotated[
        PriceBasis, typer.Option(help="Spot prices: those of now, or a quantile of the last --days.")
    ] = "current"
    days: Annotated[
        str, typer.Option(metavar="N", help=f"Days of price history behind --price-basis, 1 to {MOST_DAYS}.")
    ] = "30"
    network: Annotated[
        Network | None,
        typer.Option(help="Bandwidth at its peak, or what can be sustained. The catalog's unless given."),
    ] = None
    profile: AwsProfile = ""
    tables: Tables = "auto"
    workload: Workload = ""
    placement_scores: Annotated[
        bool,
        typer.Option(
            show_default=False, help="Ask AWS how likely it has room for the cluster; it limits such questions a day."
        ),
    ] = False
    checkpoint_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Size of one checkpoint: 300MB, 0.3GB, 512MiB.")
    ] = "300MB"
    buffers: Annotated[str, typer.Option(metavar="N", help="Checkpoints that a memory node must hold.")] = "2"
    objective: ObjectiveName = None
    policy: Policy = "deepvm"
    architecture: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            autocompletion=_complete_architecture,
            help="Only this one, such as tiering; may be repeated. All unless given.",
        ),
    ] = field(default_factory=list)
    speedup: Speedup = None
    estimates: Annotated[
        bool,
        typer.Option(show_default=False, help="Also use types whose eFLOPS are estimated, not measured; marked."),
    ] = False
    gpu: Annotated[list[str], typer.Option(metavar="GLOB", help="Only these GPU models; may be repeated.")] = field(
        default_factory=list
    )
    gpus_min: Annotated[str | None, typer.Option(metavar="N", help="The fewest GPUs of a VM that trains.")] = None
    gpus_max: Annotated[str | None, typer.Option(metavar="N", help="The most GPUs of a VM that trains.")] = None
    gpu_memory_min: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The least memory of each GPU, such as 16GiB.")
    ] = None
    gpu_memory_max: Annotated[str | None, typer.Option(metavar="SIZE", help="The most memory of each GPU.")] = None
    gpu_total_memory_min: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The least memory of all GPUs of a VM together.")
    ] = None
    gpu_total_memory_max: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The most memory of all GPUs of a VM together.")
    ] = None
    instance_type: Annotated[
        list[str],
        typer.Option(
            metavar="GLOB",
            autocompletion=complete_type,
            help="Only these types train, such as 'g4dn.*'; may be repeated.",
        ),
    ] = field(default_factory=list)
    exclude: Annotated[
        list[str],
        typer.Option(metavar="GLOB", autocompletion=complete_type, help="Never use these types; may be repeated."),
    ] = field(default_factory=list)
    cpu_arch: CpuArch = None
    generation: Generation = "auto"
    memory_node: Annotated[
        list[str],
        typer.Option(
            metavar="GLOB",
            autocompletion=complete_type,
            help="Only these types hold checkpoints; may be repeated.",
        ),
    ] = field(default_factory=list)
    burstable: Annotated[
        bool,
        typer.Option(
            show_default=False, help="Burstable types, such as t3, may hold checkpoints; their speed lasts for minutes."
        ),
    ] = False
    max_nodes: Annotated[str, typer.Option(metavar="N", help="The most VMs that train in one cluster.")] = "255"
    quota: Annotated[
        str | None,
        typer.Option(metavar="FILE|none", help="Account limits in vCPUs, or none; the catalog's unless given."),
    ] = None

    # Not called "job": DEEPVM_JOB is what a training job calls itself.
    job_file: Annotated[
        str,
        typer.Option(
            "--job",
            metavar="FILE",
            help="What to train, as for 'deepvm simulate': adds its expected time and cost under preemption.",
        ),
    ] = ""
    work: Annotated[
        str | None,
        typer.Option(metavar="HOURS", help="In place of --job: hours on one VM, or a time: 90min."),
    ] = None
    measured_on: Annotated[
        str,
        typer.Option(
            metavar="TYPE",
            autocompletion=complete_type,
            help="The type of that VM, and of the job's step_s; the cheapest that may train unless given.",
        ),
    ] = ""
    mttp: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Mean time to preemption of a spot VM, such as 3h; see --interruption-rate."),
    ] = None
    interruption_rate: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="Share of spot VMs taken away in a month, such as 10%; the job's mttp_s or AWS's bands unless given.",
        ),
    ] = None
    save_policy: Annotated[
        str | None, typer.Option(metavar="NAME", help="When the job saves, as for 'deepvm simulate': adaptive.")
    ] = None
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="The longest expected time of the job, such as 12h.")
    ] = None
    total_budget: Annotated[
        str | None, typer.Option(metavar="USD", help="The most that the job is expected to cost in all, $.")
    ] = None

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions that were named, each once; empty when none was.

        Raises:
            RequestError: all regions and one of them.
        """
        from deepvm.errors import RequestError

        regions = tuple(dict.fromkeys(r for r in self.region if r))
        if "all" in regions and len(regions) > 1:
            raise RequestError("region", "all", "all without other regions, or the regions without all")
        return regions

    def market(self) -> "MarketRequest":
        """How to get prices.

        Raises:
            RequestError: --days is no whole number from 1 to 90, or --prices live together with --offline.
        """
        from deepvm.catalog.market.build_catalog import MarketRequest

        return MarketRequest(
            prices=self.prices,
            offline=self.offline,
            profile=self.profile,
            zone=self.zone,
            price_basis=self.price_basis,
            days=self.days,
            network=self.network,
        )

    def planner_options(self, catalog: "Catalog") -> "PlanOptions":
        """Keyword arguments for the planner.

        Args:
            catalog: what was opened; a file of quotas is compared with it.

        Raises:
            DataError: the file of quotas cannot be read.
        """
        from deepvm.cli.plan.quotas import open_quotas
        from deepvm.planner.request import PlanOptions

        own = {f.name for f in fields(self)}
        options = {a: getattr(self, name) for a in PlanOptions.__annotations__ if (name := field_name(a)) in own}
        options |= {"quotas": open_quotas(self.quota, catalog), "job": open_job(self.job_file)}
        return cast("PlanOptions", options)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RankFlags(PlanFlags):
    """The options of ``recommend``, which ranks."""

    top: Annotated[str, typer.Option(metavar="N", help="How many configurations to rank.")] = "3"
    solver: Solver = "ilp"
    time_limit: Annotated[str, typer.Option(metavar="SECONDS", help="Stop the integer program after this time.")] = "60"
    simulate: Annotated[
        str | None,
        typer.Option(metavar="RUNS", help="Also simulate the job on the ranked clusters: median and 95 %."),
    ] = None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SweepFlags(PlanFlags):
    """The options of ``sweep``, which takes several budgets and several policies."""

    pw: Annotated[
        str, typer.Option(metavar="LOW:HIGH:STEP", help="Budgets in $/h: 0:10:0.1, or a comma-separated list.")
    ]
    # The same option, but here it may be repeated.
    policy: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="Only deepvm, noscale, cost-first or performance-first; may be repeated. All unless given.",
        ),
    ] = field(default_factory=list)  # type: ignore[assignment]

    simulate: Annotated[
        str | None,
        typer.Option(metavar="RUNS", help="Also simulate the job on the best clusters: 5, 50 and 95 % of the runs."),
    ] = None

    def planner_options(self, catalog: "Catalog") -> "PlanOptions":
        """As of :class:`PlanFlags`, without a policy: the sweep is told all of them apart."""
        options = super().planner_options(catalog)
        del options["policy"]
        return options


def open_job(path: str) -> "Job | None":
    """What is to be trained, None when no file says."""
    if not path:
        return None
    from pathlib import Path

    from deepvm.simulator.jobfile import read_job

    job = read_job(Path(path))
    if job.spot_usd_per_hour or job.on_demand_usd_per_hour:
        note(f"{path}: its prices are not used, the catalog's are")
    return job
