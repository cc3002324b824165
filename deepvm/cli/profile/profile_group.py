"""``deepvm profile``: measure machines one way or all ways, and fit what was measured."""

import sys
from pathlib import Path
from typing import Literal

import typer

from deepvm.cli.long_runs import cleaning_up, filling
from deepvm.cli.output import Output, draw, note, plot_of, print_as, say, text
from deepvm.cli.parameters import arg, flag, group, opt, shared, takes_flags
from deepvm.core.options import field_named
from deepvm.errors import DataError, DeepVMError, OptionMismatchError, RequestError
from deepvm.services.profile.options import (
    ALL,
    CampaignOptions,
    EflopsOptions,
    SaturationOptions,
    ScalingOptions,
    StepsOptions,
)

app = group("Measure eFLOPS, speed-up curves and network saturation on your own machines.")
VERBOSE = flag("--verbose", "Show the output of the hosts.", "-v")
SAVE = shared(field_named(EflopsOptions, "save"))
FORCE_SPREAD = shared(field_named(EflopsOptions, "force_spread"))
FORCE_LOCAL = shared(field_named(ScalingOptions, "force_local"))


# Lines of their own for the list of commands: the first sentences of the docstrings do not fit and
# would be cut.
@app.command("eflops", short_help="Measure the training speed of this machine.")
@takes_flags
def eflops(options: EflopsOptions, output: Output = "table") -> None:
    """Measure eFLOPS: train on this machine's GPUs, or its CPU, and count operations per second.

    After a warm-up, the median of timed windows, and their spread. For several models, JSON is a
    list.

    Example: deepvm profile eflops --model resnet18 --batch 128 -o json
    """
    from deepvm.services.profile import campaign
    from deepvm.services.profile.saving import entry_from, save

    measured = []
    failure: DeepVMError | None = None
    models = campaign.check_eflops(options)
    try:
        with cleaning_up():
            for model in models:
                measured.append(campaign.eflops(options, model, say))
    except DeepVMError as error:
        failure = error  # what was measured before is still printed
    if measured:
        documents = [one.document() for one in measured]
        several = len(options.model) > 1 or ALL in options.model
        document = documents if several else documents[0]
        print_as(output, text("eflops", found=measured), lambda: document)
        if options.save:
            own_type = options.instance_type
            entries = [entry_from(d, say, instance_type=own_type) for d in documents]
            save(entries, say, force_spread=options.force_spread)
    if failure is not None:
        raise failure


@app.command("scaling", short_help="Measure how much faster n VMs train than one.")
@takes_flags
def scaling(options: ScalingOptions, verbose: bool = VERBOSE, output: Output = "table") -> None:
    """Train for some seconds on 1, 2, 4, ... VMs through torchrun and compare the speeds.

    The largest cluster comes first; a host that fails is left out of the rest. Exit code 1 when
    sizes are missing. Steps of several batches give a law by which recommend plans.

    Example: deepvm profile scaling --hosts-file hosts --batch 128,64 --out curve.json
    """
    from deepvm.services.profile import campaign
    from deepvm.services.profile.saving import entry_from, save

    file = None
    if options.out:
        file = Path(options.out)
    with cleaning_up(), filling(file, "profile scaling"):
        curve = campaign.scaling(options, say, say if verbose else None)
    print_as(output, text("scaling", curve=curve), curve.document)
    if options.save:
        entry = entry_from(curve.document(), say, instance_type=options.instance_type)
        save([entry], say, force_local=options.force_local)
    if curve.unwritten:
        sys.stdout.flush()
        raise DataError(f"{curve.unwritten}; the curve is printed above")
    if curve.missing:
        advice = "With --out FILE the same command would resume with what is missing."
        if file:
            advice = f"The same command repeats only the failed runs: {file} has the others."
        say(f"No time for n = {', '.join(map(str, curve.missing))}. {advice}")
        raise typer.Exit(1)


@app.command("saturation", short_help="Measure how many VMs may push to one memory node.")
@takes_flags
def saturation(
    options: SaturationOptions,
    plot: str = plot_of("t(n) and the saturation point"),
    save: bool = SAVE,
    force_local: bool = FORCE_LOCAL,
    verbose: bool = VERBOSE,
    output: Output = "table",
) -> None:
    """Measure how many VMs may push to one memory node at once (n_sat).

    One more than n_sat makes it no faster. n senders push 1/n of a checkpoint each, for n = 1 to
    all of them; each n is measured once in each repeat, in random order. Start it where all hosts
    can be reached, for MPI from a host in their network.

    Example: deepvm profile saturation --receiver mem1 --senders vm1,vm2,vm3,vm4 --sender-type
    g4dn.xlarge
    """
    from deepvm.reports.profiling.measurements import conditions, saturation_figure
    from deepvm.services.profile import campaign
    from deepvm.services.profile.saving import entry_from
    from deepvm.services.profile.saving import save as save_entries

    with cleaning_up():
        result = campaign.saturation(
            options, say, say if verbose else None, save=save, force_local=force_local
        )
    table = text("saturation", found=result, conditions=conditions(result))
    print_as(output, table, result.document)
    if save:
        save_entries([entry_from(result.document(), say)], say, force_local=force_local)
    draw(plot, lambda: saturation_figure(result))


@app.command(short_help="Fit speed-up curves or the step-time law to measurements.")
@takes_flags
def fit(
    options: StepsOptions,
    points: str = arg(
        "POINTS", "CSV with n,speedup or n,seconds, or JSON of 'profile scaling'; see below."
    ),
    law: Literal["speedup", "step-time"] = opt(
        "speedup", "What to fit: S(n), or how long a step takes."
    ),
    up_to: int | None = opt(
        None, "Largest n to extrapolate to; default: the largest measured. With --law speedup.", "N"
    ),
    predict: list[str] | None = opt(
        None,
        "Predict a step, or those of a CSV; repeatable. With --law step-time.",
        "nodes=8,gpus=32,batch=200",
    ),
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
    from deepvm.profiling.fit.points import read_points
    from deepvm.profiling.fit.speedup_fit import fit_curve, next_step
    from deepvm.reports.profiling.measurements import fit_figure
    from deepvm.services.profile.saving import steps_workload

    given = None
    if predict:
        given = " ".join(predict)
    _only_with("step-time", law, predict=given, save=options.save or None)
    steps_workload(options)
    fitted = fit_curve(read_points(points), up_to=up_to)
    name = Path(points).name
    table = text("speedup_fit", fit=fitted, name=name, next_step=next_step(fitted))
    print_as(output, table, fitted.document)
    draw(plot, lambda: fit_figure(fitted, name=name))


def _only_with(needed: str, law: str, **options: object) -> None:
    for option, value in options.items():
        if value is not None:
            reason = f"needs --law {needed}; it does not go with --law {law}"
            raise OptionMismatchError(option, value, reason)


def _fit_step_time(
    points: str, predict: list[str], plot: str, output: str, options: StepsOptions
) -> None:
    from deepvm.core.training.roofline import REACH
    from deepvm.profiling.fit.points import asked_of, read_steps
    from deepvm.profiling.fit.scaling_document import read_scaling_steps
    from deepvm.profiling.fit.step_fit import fit_step_time
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
    print_as(output, text("step_fit", fit=fitted, name=short(name), reach=REACH), fitted.document)
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
    from deepvm.reports.profiling.measurements import csv_rows
    from deepvm.services.profile.campaign import Campaign

    folder = None
    if out:
        folder = Path(out)
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
                table = text("tables_list", tables=tables, reasons=None)
                print_as(output, table, tables.as_document, lambda: csv_rows(tables))
            if save:
                campaign.save(force_spread=force_spread)
    for problem in campaign.failed:
        note(problem)
    if campaign.failed:
        raise typer.Exit(1)
