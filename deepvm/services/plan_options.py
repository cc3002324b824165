"""The options of ``recommend``, ``explain`` and ``sweep``."""
# They are those of the planner, and the sources of catalogs. The module is light: ``--help`` loads
# it. Base classes have no ``__init__``, which takes longer to generate than all else here.

from typing import TYPE_CHECKING, Any

from deepvm.catalog.price_sources import MAX_HISTORY_DAYS, SOURCES
from deepvm.core.options import BUDGET, OUTPUT, PRICES, RENTED, TRAINING, AmountOptions, option
from deepvm.errors import RequestError
from deepvm.planner.options import PlanOptions, RankOptions
from deepvm.records import MISSING, dataclass

if TYPE_CHECKING:
    from deepvm.catalog.market.build_catalog import MarketRequest

DEFAULT_CATALOG = "aws"
# The value of --mttp that asks the user's own jobs
HISTORY = "history"
# ``--model none`` counts eFLOPS
NO_MODEL = "none"


def catalog_option(help: str) -> Any:
    """The option ``--catalog``."""
    return option(DEFAULT_CATALOG, help, "NAME|FILE", group=PRICES, complete="complete_catalog")


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """How a command gets prices."""

    prices: str = option(
        "auto",
        "Live if possible, only live, or the snapshot.",
        group=PRICES,
        choices=("auto", "live", "snapshot"),
    )
    source: str = option(
        "auto",
        "Public catalog of prices to use; auto: where no cloud answers.",
        "NAME",
        choices=("auto", *SOURCES, "none"),
    )
    offline: bool = option(False, "Send no requests: use the cache or the snapshot.", group=PRICES)
    profile: str = option("", "AWS profile; only for live prices.", "NAME")


@dataclass(frozen=True, kw_only=True)
class MeasuredOptions(SourceOptions):
    """Adds the user's measurements."""

    tables: str = option(
        "auto", "Your measurements: the saved ones, none, or an exported FILE.", "auto|paper|FILE"
    )
    workload: str = option(
        "", "Use measurements of this workload; see 'deepvm tables list'.", "NAME"
    )


@dataclass(frozen=True, kw_only=True, init=False)
class CatalogOptions(MeasuredOptions):
    """Which catalogs to open."""

    catalog: str = catalog_option("A market, an embedded one, or your .json or .csv.")
    cloud: list[str] = option(
        [],
        "Market: aws, gcp, azure, nebius ... or all; repeat to compare.",
        "NAME",
        group=PRICES,
        complete="complete_cloud",
    )
    region: list[str] = option(
        [],
        "The cloud's region, or all; repeat to compare.",
        "NAME",
        "--region",
        "-r",
        group=PRICES,
        complete="complete_region",
    )
    zone: str = option(
        "", "Only this zone, by id (use1-az1) or name (us-east-1a).", "ZONE", group=PRICES
    )
    price_basis: str = option(
        "current",
        "Spot: current, p50, p95 or max of --days.",
        "NAME",
        group=PRICES,
        choices=("current", "p50", "p95", "max"),
    )
    days: str = option(
        "30", f"Days of price history for --price-basis, 1 to {MAX_HISTORY_DAYS}.", "N"
    )
    price_history: str = option(
        "",
        "A git clone of skypilot-catalog: its stored versions are the price history.",
        "FOLDER",
        "--history",
        key="price-history",  # DEEPVM_HISTORY is where jobs are written down
    )
    network: str | None = option(
        None, "Peak or sustained bandwidth; default: the catalog's.", choices=("peak", "baseline")
    )
    placement_scores: bool = option(False, "Ask AWS for spot placement scores (rate-limited).")
    reserved: str = option("", "Reserved VMs and capacity blocks, with price and end.", "FILE")
    savings_plan: list[str] = option(
        [], "Discount on on-demand prices: 28% or 'p5.*=28%'; repeatable.", "[GLOB=]SHARE"
    )

    @property
    def clouds(self) -> tuple[str, ...]:
        """The named clouds, each once, ``all`` as all of them; empty: that of the catalog."""
        if not self.cloud:
            return ()
        from deepvm.catalog.clouds import clouds_of

        return clouds_of(self.cloud)

    @property
    def regions(self) -> tuple[str, ...]:
        named = [word.strip() for text in self.region for word in text.split(",")]
        regions = tuple(dict.fromkeys(filter(None, named)))
        if "all" in regions and len(regions) > 1:
            allowed = "all without other regions, or the regions without all"
            raise RequestError("region", "all", allowed)
        return regions

    def market(self) -> "MarketRequest":
        """How to get prices."""
        from dataclasses import fields

        from deepvm.catalog.market.build_catalog import MarketRequest

        return MarketRequest(**{f.name: getattr(self, f.name) for f in fields(MarketRequest)})


@dataclass(frozen=True, kw_only=True, init=False)
class _BudgetOptions:
    # Without a docstring the library writes the signature there, which takes 2 ms
    """What the cluster may cost."""

    pw: str | None = option(
        MISSING, "The most to pay for the cluster, $/h.", "USD/H", "--pw", "--budget", group=BUDGET
    )


@dataclass(frozen=True, kw_only=True, init=False)
class PlanFlags(PlanOptions, CatalogOptions, AmountOptions, _BudgetOptions):
    """The options of every command that plans."""

    software: str = option(
        "eager",
        "Plain PyTorch, Hugging Face, torch.compile, or vendor-tuned.",
        choices=("eager", "transformers", "compiled", "tuned"),
    )
    placement_group: bool = option(False, "The VMs are in a cluster placement group.", group=RENTED)
    quota: str | None = option(
        None, "Account limits in vCPUs, or none; default: the catalog's.", "FILE|none", group=RENTED
    )
    job_file: str = option(
        "",
        "Simulation file of 'deepvm simulate': adds time and cost.",
        "FILE",
        "--job",
        group=TRAINING,
        key="job-file",  # DEEPVM_JOB is what a training job calls itself
    )
    simulate: str | None = None

    @property
    def has_job(self) -> bool:
        amounts = (self.work, self.tokens, self.samples, self.epochs)
        return bool(self.job_file) or any(amount is not None for amount in amounts)


@dataclass(frozen=True, kw_only=True)
class RankFlags(PlanFlags, RankOptions):
    """The options of ``recommend``, which ranks."""

    pw: str | None = option(
        None,
        "The most to pay, $/h; or give a total or a deadline.",
        "USD/H",
        "--pw",
        "--budget",
        group=BUDGET,
    )
    simulate: str | None = option(
        None, "Also simulate the job on the ranked clusters: median, p95.", "RUNS", group=OUTPUT
    )
