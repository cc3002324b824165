"""``deepvm profile eflops``, ``scaling`` and ``saturation``: one measurement each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from deepvm.cli.long_runs import cleaning_up, filling
from deepvm.cli.output import Output, draw, plot_of, print_as, say, text
from deepvm.cli.parameters import flag, shared, takes_flags
from deepvm.errors import DataError, DeepVMError
from deepvm.services.profile.options import (
    ALL,
    EflopsOptions,
    SaturationOptions,
    ScalingOptions,
)

if TYPE_CHECKING:
    from deepvm.profiling.eflops.measure_eflops import Eflops

VERBOSE = flag("--verbose", "Show the output of the hosts.", "-v")
SAVE = shared(EflopsOptions, "save")
FORCE_SPREAD = shared(EflopsOptions, "force_spread")
FORCE_LOCAL = shared(ScalingOptions, "force_local")


@takes_flags
def eflops(options: EflopsOptions, output: Output = "table") -> None:
    """Measure eFLOPS: train on this machine's GPUs, or its CPU, and count operations per second.

    After a warm-up, the median of timed windows, and their spread. For several models, JSON is a
    list.

    Example: deepvm profile eflops --model resnet18 --batch 128 -o json
    """
    from deepvm.services.profile import measuring
    from deepvm.services.profile.saving import entry_from, save

    measured: list[Eflops] = []
    failure: DeepVMError | None = None
    models = measuring.check_eflops(options)
    try:
        with cleaning_up():
            for model in models:
                measured.append(measuring.eflops(options, model, say))
    except DeepVMError as error:
        failure = error  # what was measured before is still printed
    if measured:
        documents = [one.document() for one in measured]
        several = len(options.model) > 1 or ALL in options.model
        print_as(
            output,
            text("eflops", found=measured),
            lambda: documents if several else documents[0],
        )
        if options.save:
            own_type = options.instance_type
            entries = [entry_from(d, say, instance_type=own_type) for d in documents]
            save(entries, say, force_spread=options.force_spread)
    if failure is not None:
        raise failure


@takes_flags
def scaling(options: ScalingOptions, verbose: bool = VERBOSE, output: Output = "table") -> None:
    """Train for some seconds on 1, 2, 4, ... VMs through torchrun and compare the speeds.

    The largest cluster comes first; a host that fails is left out of the rest. Exit code 1 when
    sizes are missing. Steps of several batches give a law by which recommend plans.

    Example: deepvm profile scaling --hosts-file hosts --batch 128,64 --out curve.json
    """
    from deepvm.services.profile import measuring
    from deepvm.services.profile.saving import entry_from, save

    file = Path(options.out) if options.out else None
    with cleaning_up(), filling(file, "profile scaling"):
        curve = measuring.scaling(options, say, say if verbose else None)
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
    from deepvm.services.profile import measuring
    from deepvm.services.profile.saving import entry_from
    from deepvm.services.profile.saving import save as save_entries

    with cleaning_up():
        result = measuring.saturation(
            options, say, say if verbose else None, save=save, force_local=force_local
        )
    table = text("saturation", found=result, conditions=conditions(result))
    print_as(output, table, result.document)
    if save:
        save_entries([entry_from(result.document(), say)], say, force_local=force_local)
    draw(plot, lambda: saturation_figure(result))
