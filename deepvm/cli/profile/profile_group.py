"""``deepvm profile``: measure machines one way or all ways, and fit what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer

from deepvm.cli.long_runs import cleaning_up, filling
from deepvm.cli.output import Output, draw, note, plot_of, print_as, say, text
from deepvm.cli.parameters import arg, flag, group, opt, takes_flags
from deepvm.cli.profile.measure import FORCE_SPREAD, SAVE, eflops, saturation, scaling
from deepvm.errors import RequestError
from deepvm.services.profile.options import CampaignOptions, StepsOptions

app = group("Measure eFLOPS, speed-up curves and network saturation on your own machines.")

# Lines of their own for the list of commands: the first sentences of the docstrings do not fit and
# would be cut.
app.command("eflops", short_help="Measure the training speed of this machine.")(eflops)
app.command("scaling", short_help="Measure how much faster n VMs train than one.")(scaling)
app.command("saturation", short_help="Measure how many VMs may push to one memory node.")(
    saturation
)


_LAW = opt("speedup", "What to fit: S(n), or how long a step takes.")
_PREDICT = opt(
    None,
    "Predict a step, or those of a CSV; repeatable. With --law step-time.",
    "nodes=8,gpus=32,batch=200",
)


@app.command(short_help="Fit speed-up curves or the step-time law to measurements.")
@takes_flags
def fit(
    options: StepsOptions,
    points: str = arg(
        "POINTS", "CSV with n,speedup or n,seconds, or JSON of 'profile scaling'; see below."
    ),
    law: Literal["speedup", "step-time"] = _LAW,
    up_to: int | None = opt(
        None, "Largest n to extrapolate to; default: the largest measured. With --law speedup.", "N"
    ),
    predict: list[str] | None = _PREDICT,
    plot: str = plot_of("measurements and fit, with a band"),
    output: Output = "table",
) -> None:
    """Fit and rank logistic, Amdahl, USL and alpha-beta (ring) curves.

    They come with a band and what to measure next. An n may be measured several times; seconds are
    those of the same work on n VMs.

    --law step-time takes a CSV with nodes,gpus,local_batch,step_time_s (VMs, GPUs of all of them,
    samples on each GPU, seconds; other columns are ignored) and predicts steps of other clusters
    and batches, with 80 % intervals. A CSV for --predict has nodes,gpus,local_batch. JSON of
    'profile scaling' with several batches is read as well. --save keeps the law and the steps, by
    which recommend plans this model on this type.

    Example: deepvm profile fit points.csv --up-to 32 --plot fit.png

    Example: deepvm profile fit steps.csv --law step-time --predict nodes=8,gpus=32,batch=200
    """
    if law == "step-time":
        _only_with("speedup", law, up_to=up_to)
        _fit_step_time(points, predict or [], plot, output, options)
        return
    from deepvm.profiling.fit.speedup_fit import fit_curve, next_step
    from deepvm.profiling.fit.speedup_points import read_points
    from deepvm.reports.profiling.measurements import fit_figure
    from deepvm.reports.text import print_text
    from deepvm.services.profile.saving import steps_workload

    asked = " ".join(predict) if predict else None
    _only_with("step-time", law, predict=asked, save=options.save or None)
    steps_workload(options)
    fitted = fit_curve(read_points(points), up_to=up_to)
    name = Path(points).name
    print_as(
        output,
        lambda: print_text("speedup_fit", fit=fitted, name=name, next_step=next_step(fitted)),
        fitted.document,
    )
    draw(plot, lambda: fit_figure(fitted, name=name))


def _only_with(needed: str, law: str, **options: object) -> None:
    for option, value in options.items():
        if value is not None:
            raise RequestError(
                option, value, f"only with --law {needed}; with --law {law} leave it out"
            )


def _fit_step_time(
    points: str, predict: list[str], plot: str, output: str, options: StepsOptions
) -> None:
    from deepvm.core.training.roofline import REACH
    from deepvm.profiling.fit.scaling_document import read_scaling_steps
    from deepvm.profiling.fit.step_fit import fit_step_time
    from deepvm.profiling.fit.step_points import asked_of, read_steps
    from deepvm.reports.pictures import short
    from deepvm.reports.profiling.measurements import step_figure
    from deepvm.services.profile.saving import save_law, steps_workload

    workload = steps_workload(options)
    asked = asked_of(predict)
    path = Path(points)
    if path.suffix.lower() == ".json":
        steps = read_scaling_steps(path)
    else:
        steps = read_steps(path)
    fitted = fit_step_time(steps, asked)
    name = path.name
    table = text("step_fit", fit=fitted, name=short(name), reach=REACH)
    print_as(output, table, fitted.document)
    draw(plot, lambda: step_figure(fitted, name=name))
    if workload is not None:
        save_law(fitted, workload, options.software or "eager", options.instance_type, say)


@app.command("all", short_help="Measure all of it, into one file to copy back.")
@takes_flags
def everything(
    options: CampaignOptions,
    out: str = opt("", "Keeps each result; the same command resumes an interrupted one.", "DIR"),
    save: bool = SAVE,
    force_spread: bool = FORCE_SPREAD,
    dry_run: bool = flag("--dry-run", "Check the options and show what would be measured."),
    output: Output = "table",
) -> None:
    """Measure eFLOPS on the first host, the speed-up of all, and the receiver's saturation.

    Without hosts, only eFLOPS of this machine. JSON is one document for 'deepvm tables import' on
    another machine. A failing part does not stop the others: exit code 1 when one is missing. When
    interrupted, prints what it has.

    Example: deepvm profile all --hosts-file hosts --instance-type g4dn.xlarge --receiver 10.0.0.9
    --receiver-type c4.xlarge --out here --save
    """
    from deepvm.catalog.measured.tables import Tables
    from deepvm.reports.profiling.measured import csv_rows
    from deepvm.services.profile.campaign import Campaign

    folder = Path(out) if out else None
    if dry_run:
        campaign = Campaign(options, folder if folder and folder.is_dir() else None, say, save)
        say(f"this would measure {', '.join(campaign.titles)}")
        return
    if folder:
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            allowed = f"a folder, or the name of a new one ({error.strerror or error})"
            raise RequestError("out", out, allowed) from None
    with cleaning_up(), filling(folder, "profile all"):
        campaign = Campaign(options, folder, say, save)
        try:
            campaign.measure()
        finally:  # also when it is interrupted, what was measured is printed and saved
            tables = Tables().merged(campaign.entries)
            if campaign.entries or output != "table":
                print_as(
                    output,
                    text("tables_list", tables=tables, reasons=None),
                    tables.as_document,
                    lambda: csv_rows(tables),
                )
            if save:
                campaign.save(force_spread=force_spread)
    for problem in campaign.failed:
        note(problem)
    if campaign.failed:
        raise typer.Exit(1)
