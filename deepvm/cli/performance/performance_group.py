"""``deepvm performance``: predict steps, list models, check predictions against what was published."""

from __future__ import annotations

from typing import Annotated

import typer

from deepvm.cli.help.completion import complete_accelerator
from deepvm.cli.output import TableJsonYaml, TableJsonYamlCsv, print_as, say
from deepvm.cli.parameters import group, opt, switch, takes_flags
from deepvm.cli.plan.options import Tables, own_tables
from deepvm.cli.workload_options import WorkloadFlags
from deepvm.errors import RequestError

app = group("Predict how fast GPUs train a model, with intervals, and check such predictions.")

_Software = Annotated[str, opt("Plain PyTorch (eager), torch.compile, or vendor-tuned.", "eager|compiled|tuned")]


@app.command(short_help="Predict the throughput of a number of GPUs.")
@takes_flags
def predict(
    flags: WorkloadFlags,
    gpu: Annotated[str, opt("GPU model, such as H100.", "NAME", autocompletion=complete_accelerator)],
    gpus: Annotated[str, opt("How many of them, in all.", "N")] = "1",
    nodes: Annotated[str | None, opt("In how many VMs; default: as they are mostly rented.", "N")] = None,
    gpu_memory: Annotated[str | None, opt("Which of several with this name, such as 40GiB.", "SIZE")] = None,
    software: _Software = "eager",
    placement_group: Annotated[bool, switch("The VMs are in a cluster placement group.")] = False,
    tables: Tables = "auto",
    output: TableJsonYaml = "table",
) -> None:
    """Predict throughput, step time and MFU, each with an 80 % interval, its source and its doubts.

    What you have measured of this model on this GPU counts; --tables paper ignores it.

    Example: deepvm performance predict --model llama-8b --method fsdp --gpu H100 --gpus 64
    """
    from deepvm.catalog.published.hardware import accelerators, find_accelerator
    from deepvm.catalog.published.performance import SOFTWARE, PublishedPerformance
    from deepvm.core.meanings import meant_gpu, none_of
    from deepvm.core.spelling import one_of
    from deepvm.core.units import GIB, parse_bytes
    from deepvm.reports.performance import predictions as report

    if software not in SOFTWARE:
        raise RequestError("software", software, one_of(software, SOFTWARE))
    workload, count = flags.trained(), _whole(gpus, "gpus")
    memory = None if gpu_memory is None else parse_bytes(gpu_memory, "gpu_memory") / GIB
    accelerator = find_accelerator(gpu, memory)
    if accelerator is None:
        names = list(dict.fromkeys(known.name for known in accelerators()))
        raise RequestError("gpu", gpu, none_of(gpu, names, meant_gpu(gpu, names, "--gpu-memory")))
    own, source = own_tables(tables), PublishedPerformance(software, placement_group)
    if own is not None:
        source = own.speeds(source, {})
    found = source.cluster(accelerator, workload, count, None if nodes is None else _whole(nodes, "nodes"))
    print_as(output, lambda: report.print_prediction(found), lambda: report.document(found))
    if not found.fits[0]:
        say(f"Does not fit: {found.needs}")
        raise typer.Exit(3)


@app.command(short_help="Compare predictions with published runs, each left out.")
def check(output: TableJsonYamlCsv = "table") -> None:
    """Predict each published run from the others, and count how far off that is and how often the interval holds.

    Example: deepvm performance check
    """
    from deepvm.catalog.published.check import check_published
    from deepvm.reports.performance import checks as report

    found = check_published()
    print_as(output, lambda: report.print_check(found), lambda: report.document(found), lambda: report.csv_rows(found))


@app.command("models", short_help="List the models that can be named.")
def models_of(output: TableJsonYamlCsv = "table") -> None:
    """List the presets: parameters, samples, operations, where the figures come from.

    Example: deepvm performance models
    """
    from deepvm.catalog.published.models import presets
    from deepvm.reports.performance import models as report

    found = list({model.name: model for model in presets().values()}.values())
    print_as(output, lambda: report.print_models(found), lambda: report.document(found), lambda: report.csv_rows(found))


def _whole(value: str, option: str) -> int:
    from deepvm.core.units import to_whole

    number = int(value) if value.isascii() and value.isdigit() and len(value) < 9 else value
    return to_whole(number, option, "a whole number from 1 to 100000", least=1, most=100_000)
