"""``deepvm gpus``: what can be rented, at which price, and how fast it trains a model."""

from __future__ import annotations

from dataclasses import dataclass

from deepvm.cli.output import Output, print_named, text
from deepvm.cli.parameters import takes_flags
from deepvm.cli.plan.options import load
from deepvm.core.options import USUAL_MODEL, WorkloadOptions, again, option, workload_keywords
from deepvm.services.plan_options import PlanFlags, SourceOptions, catalog_option


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class GpuFlags(WorkloadOptions):
    """The options of ``gpus``."""

    catalog: str = catalog_option("A cloud's market, an embedded catalog, or a file.")
    cloud: str = option("", "A cloud's market: aws, gcp ...", "NAME", complete="complete_cloud")
    gpu: str = option("*", "Only these GPU models.", "GLOB", complete="complete_gpu")
    software: str = again(PlanFlags, "software")
    offline: bool = again(PlanFlags, "offline")
    tables: str = again(PlanFlags, "tables")


@takes_flags
def gpus(flags: GpuFlags, output: Output = "table") -> None:
    """List GPUs with memory, prices, and how fast one VM trains a model.

    The most work for a dollar comes first.

    Example: deepvm gpus --model llama-8b --method lora
    """
    from deepvm.services.gpus import gpus as rentable
    from deepvm.services.open_catalogs import market_of, own_tables

    market = market_of(flags.cloud, flags.catalog)
    found = rentable(
        load(market, SourceOptions(offline=flags.offline)),
        flags.gpu,
        software=flags.software,
        tables=own_tables(flags.tables),
        **workload_keywords(flags, USUAL_MODEL),
    )
    assumed = not flags.names_a_model
    table = text("gpus", also="-o csv", gpus=found, assumed=assumed)
    print_named(output, table, "gpus", found)
