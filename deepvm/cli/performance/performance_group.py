"""``deepvm performance`` and ``gpus``: predict steps, list models and GPUs, check predictions."""

import typer

from deepvm.cli.output import Output, print_as, print_named, say, text
from deepvm.cli.parameters import group, takes_flags
from deepvm.cli.plan.options import load
from deepvm.core.options import USUAL_MODEL, WorkloadOptions, again, option, workload_keywords
from deepvm.records import MISSING, dataclass
from deepvm.services.plan_options import PlanFlags, SourceOptions, catalog_option

app = group("Predict how fast GPUs train a model, with intervals, and check such predictions.")


@dataclass(frozen=True, kw_only=True)
class _PredictFlags(WorkloadOptions):
    gpu: str = option(MISSING, "GPU model, such as H100.", "NAME", complete="complete_accelerator")
    gpus: str = option("1", "How many of them, in all.", "N")
    nodes: str | None = option(None, "In how many VMs; default: as they are mostly rented.", "N")
    gpu_memory: str | None = option(None, "Which of several with this name, such as 40GiB.", "SIZE")
    software: str = again(PlanFlags, "software")
    placement_group: bool = again(PlanFlags, "placement_group")
    tables: str = again(PlanFlags, "tables")


@app.command(short_help="Predict the throughput of a number of GPUs.")
@takes_flags
def predict(flags: _PredictFlags, output: Output = "table") -> None:
    """Predict throughput, step time and MFU, each with an 80 % interval, its source and warnings.

    Your measurements of this model on this GPU count; --tables paper ignores them.

    Example: deepvm performance predict --model llama-8b --method fsdp --gpu H100 --gpus 64
    """
    from deepvm.catalog.published.performance import predict as predicted
    from deepvm.reports.performance import predictions as report
    from deepvm.services.open_catalogs import own_tables

    found = predicted(
        flags.gpu,
        flags.gpus,
        flags.nodes,
        gpu_memory=flags.gpu_memory,
        software=flags.software,
        placement_group=flags.placement_group,
        tables=own_tables(flags.tables),
        **workload_keywords(flags),
    )
    print_as(output, lambda: report.print_prediction(found), lambda: report.document(found))
    if not found.fits[0]:
        say(f"Does not fit: {found.needs}")
        raise typer.Exit(3)


@app.command(short_help="Compare predictions with published runs, each left out.")
def check(output: Output = "table") -> None:
    """Predict each published run from the others.

    Reports the errors, and how often the interval contains the measured value.

    Example: deepvm performance check
    """
    from deepvm.catalog.published.rows import check_published
    from deepvm.reports.performance.predictions import check_rows

    found = check_published()
    print_named(
        output,
        text("performance_check", check=found),
        "performance-check",
        found,
        lambda: check_rows(found),
    )


@app.command("models", short_help="List the models that can be named.")
def models_of(output: Output = "table") -> None:
    """List the presets: parameters, samples, operations, where the figures come from.

    Example: deepvm performance models
    """
    from deepvm.catalog.published.workloads import presets

    found = list({model.name: model for model in presets().values()}.values())
    print_named(output, text("performance_models", models=found), "models", {"models": found})


@dataclass(frozen=True, kw_only=True)
class _GpuFlags(WorkloadOptions):
    catalog: str = catalog_option("A cloud's market, an embedded catalog, or a file.")
    cloud: str = option("", "A cloud's market: aws, gcp ...", "NAME", complete="complete_cloud")
    gpu: str = option("*", "Only these GPU models.", "GLOB", complete="complete_gpu")
    software: str = again(PlanFlags, "software")
    offline: bool = again(PlanFlags, "offline")
    tables: str = again(PlanFlags, "tables")


@takes_flags
def gpus(flags: _GpuFlags, output: Output = "table") -> None:
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
