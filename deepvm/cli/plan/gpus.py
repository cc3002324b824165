"""``deepvm gpus``: what can be rented, at which price, and how fast it trains a model."""

from __future__ import annotations

from typing import Annotated

from deepvm.cli.help.completion import complete_catalog, complete_gpu
from deepvm.cli.output import TableJsonYamlCsv, print_as
from deepvm.cli.parameters import opt, takes_flags
from deepvm.cli.plan.options import USUAL_MODEL, SourceFlags, Tables, own_tables
from deepvm.cli.workload_options import WorkloadFlags


@takes_flags
def gpus(
    flags: WorkloadFlags,
    catalog: Annotated[
        str, opt("A cloud's market, an embedded catalog, or a file.", "NAME|FILE", autocompletion=complete_catalog)
    ] = "aws",
    gpu: Annotated[str, opt("Only these GPU models.", "GLOB", autocompletion=complete_gpu)] = "*",
    offline: Annotated[bool, opt("Send no requests: use the cache or the snapshot.", None)] = False,
    tables: Tables = "auto",
    output: TableJsonYamlCsv = "table",
) -> None:
    """List GPUs with memory, prices, and how fast one VM trains a model; the most work for a dollar comes first.

    Example: deepvm gpus --model llama-8b --method lora
    """
    from fnmatch import fnmatchcase

    from deepvm.catalog.published.performance import PublishedPerformance
    from deepvm.core.meanings import meant_gpu, none_of
    from deepvm.core.training.speed import Training
    from deepvm.errors import RequestError
    from deepvm.reports.performance import gpus as report

    loaded, own, speeds = SourceFlags(offline=offline).load(catalog), own_tables(tables), PublishedPerformance()
    if own is not None:
        speeds = own.speeds(speeds, loaded.by_name)
    training = Training(flags.trained(USUAL_MODEL), speeds)
    found = report.rows_of(loaded, training)
    rows = [r for r in found if fnmatchcase(r.name.casefold(), gpu.casefold())]
    if not rows:
        names = sorted({r.name for r in found})
        raise RequestError("gpu", gpu, none_of(gpu, names, meant_gpu(gpu, names)))
    print_as(
        output,
        lambda: report.print_gpus(rows, training),
        lambda: report.document(rows, training),
        lambda: report.csv_rows(rows),
    )
