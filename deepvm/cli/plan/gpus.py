"""``deepvm gpus``: what can be rented, at which price, and how fast it trains a model."""

from __future__ import annotations

from typing import Annotated

from deepvm.cli.help.completion import complete_catalog, complete_cloud, complete_gpu
from deepvm.cli.output import Output, print_as
from deepvm.cli.parameters import opt, takes_flags
from deepvm.cli.plan.options import Software, SourceFlags, Tables, own_tables
from deepvm.cli.workload_options import WorkloadFlags
from deepvm.core.training.usual_model import USUAL_MODEL
from deepvm.documents.build import document_of


@takes_flags
def gpus(
    flags: WorkloadFlags,
    catalog: Annotated[
        str,
        opt(
            "A cloud's market, an embedded catalog, or a file.",
            "NAME|FILE",
            autocompletion=complete_catalog,
        ),
    ] = "aws",
    cloud: Annotated[
        str, opt("A cloud's market: aws, gcp ...", "NAME", autocompletion=complete_cloud)
    ] = "",
    gpu: Annotated[str, opt("Only these GPU models.", "GLOB", autocompletion=complete_gpu)] = "*",
    software: Software = "eager",
    offline: Annotated[bool, opt("Send no requests: use the cache or the snapshot.", None)] = False,
    tables: Tables = "auto",
    output: Output = "table",
) -> None:
    """List GPUs with memory, prices, and how fast one VM trains a model.

    The most work for a dollar comes first.

    Example: deepvm gpus --model llama-8b --method lora
    """
    from deepvm.cli.plan.open_catalogs import market_of
    from deepvm.documents.outputs import performance
    from deepvm.reports.text import print_text
    from deepvm.services.gpus import gpus as rentable

    loaded = SourceFlags(offline=offline).load(market_of(cloud, catalog))
    found = rentable(
        loaded, gpu, software=software, tables=own_tables(tables), **flags.given(USUAL_MODEL)
    )
    assumed = not flags.model and flags.params is None
    print_as(
        output,
        lambda: print_text("gpus", also="-o csv", gpus=found, assumed=assumed),
        lambda: document_of(performance.Gpus, found),
    )
