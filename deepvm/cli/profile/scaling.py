"""``deepvm profile scaling``: how much faster n VMs train than one."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepvm.cli.output import TableJson, print_document, say
from deepvm.cli.profile.eflops import MODELS, Device, Resolution, is_own
from deepvm.cli.profile.hosts import (
    START_TIMEOUT,
    LauncherName,
    PythonThere,
    StartTimeout,
    Verbose,
    Workdir,
    check_timeouts,
    hosts_of,
)
from deepvm.cli.profile.save import ForceLocal, InstanceType, Save, check_save, entry_from, put
from deepvm.cli.signal_handling import cleaning_up, growing
from deepvm.core.spelling import one_of
from deepvm.errors import DataError, RequestError

if TYPE_CHECKING:
    from deepvm.profiling.hosts.host_list import Host

Sizes = Annotated[str, typer.Option(metavar="N,N,...", help="Numbers of VMs.  [default: 1, 2, 4, ... and all hosts]")]
WarmUp = Annotated[int, typer.Option(help="Steps of each run of scaling that do not count.")]
Steps = Annotated[int, typer.Option(help="Steps in each window of scaling.")]
INCOMPLETE = 1
"""Exit code when sizes are missing from the curve that was printed."""
_MOST_LOCAL = 64


def scaling(
    hosts: Annotated[str, typer.Option(metavar="NAMES", help="Hosts, separated by commas.")] = "",
    hosts_file: Annotated[
        str, typer.Option(metavar="FILE", help="Or a file: one host a line, with slots= and address= where needed.")
    ] = "",
    local: Annotated[
        int, typer.Option(metavar="N", help="Or this many processes here: tries the parts out, measures no VMs.")
    ] = 0,
    launcher: LauncherName = "ssh",
    python: PythonThere = "",
    workdir: Workdir = "",
    model: Annotated[
        str, typer.Option(metavar="NAME", help=f"{', '.join(MODELS)}, or module:function for a model of your own.")
    ] = "resnet50",
    batch: Annotated[int, typer.Option(help="Images of a step for each GPU, whatever the number of VMs.")] = 128,
    resolution: Resolution = 32,
    device: Device = "auto",
    sizes: Sizes = "",
    repeats: Annotated[int, typer.Option(help="Runs of each size.")] = 3,
    warmup: WarmUp = 10,
    windows: Annotated[int, typer.Option(help="Times that are taken in each run.")] = 5,
    steps: Steps = 20,
    start_timeout: StartTimeout = START_TIMEOUT,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="For one run.")] = 1800.0,
    out: Annotated[
        str,
        typer.Option(metavar="FILE", help="Grows with each run; the same command goes on where it was interrupted."),
    ] = "",
    save: Save = False,
    instance_type: InstanceType = "",
    force_local: ForceLocal = False,
    verbose: Verbose = False,
    output: TableJson = "table",
) -> None:
    """Train for some seconds on 1, 2, 4, ... VMs through torchrun and compare the speeds.

    The largest cluster comes first; a host that fails is left out of the rest. Exit code 1 when sizes are missing.

    Example: deepvm profile scaling --hosts-file hosts --python '~/venv/bin/python' --out curve.json
    """
    from deepvm.cli.lock import alone_at
    from deepvm.profiling.hosts.launcher import Launcher
    from deepvm.profiling.scaling.measure_scaling import Task, measure_scaling
    from deepvm.profiling.scaling.scaling_coordinator import Limits

    check_timeouts(start_timeout, timeout)
    if model not in MODELS and not is_own(model):
        own = ", or module:function that the hosts can import"
        raise RequestError("model", model, one_of(model, MODELS, ", ", also=own))
    where = scaling_hosts(hosts, hosts_file, local)
    there = Launcher.parse("local" if local else launcher, python, workdir)
    if save:
        check_save("scaling", instance_type=instance_type, local=there.local, force_local=force_local)
    task = Task(model, batch, resolution, device, sizes_of(sizes), repeats, warmup, windows, steps)
    file = Path(out) if out else None
    with cleaning_up(), alone_at(file), growing(file):
        curve = measure_scaling(
            task,
            where,
            there,
            limits=Limits(start_timeout, timeout),
            out=file,
            say=say,
            hear=say if verbose else None,
            one_machine_too=force_local or not save,
        )
    if output == "json":
        print_document(curve.document())
    else:
        from deepvm.reports.profiling.scaling import print_curve

        print_curve(curve)
    if save:
        put([entry_from(curve.document(), instance_type=instance_type)], force_local=force_local)
    if curve.unwritten:
        sys.stdout.flush()
        raise DataError(f"{curve.unwritten}; the curve is printed above")
    if curve.missing:
        say(f"No time for n = {', '.join(map(str, curve.missing))}." + _advice(out))
        raise typer.Exit(INCOMPLETE)


def _advice(out: str) -> str:
    if out:
        return f" The same command tries only the failed runs again: {out} has the others."
    return " With --out FILE the same command would go on with what is missing."


def scaling_hosts(hosts: str, hosts_file: str, local: int) -> tuple[Host, ...]:
    """The hosts that one of three options names. Raises RequestError, DataError."""
    from deepvm.profiling.hosts.host_list import Host

    given = [str(where) for where in (hosts, hosts_file, local) if where]
    if len(given) != 1:
        raise RequestError("hosts", " and ".join(given), "one of --hosts NAMES, --hosts-file FILE and --local N")
    if not local:
        return hosts_of("hosts", hosts, hosts_file)
    if not 1 <= local <= _MOST_LOCAL:
        raise RequestError("local", local, f"1 to {_MOST_LOCAL} processes")
    return tuple(Host(f"local-{i}") for i in range(1, local + 1))


def sizes_of(text: str) -> tuple[int, ...]:
    """Numbers separated by commas. Raises RequestError."""
    if not text:
        return ()
    if not re.fullmatch(r"[0-9]{1,4}( *, *[0-9]{1,4})*", text.strip(), re.ASCII):
        raise RequestError("sizes", text, "whole numbers separated by commas, such as 1,2,4,8")
    return tuple(int(n) for n in text.split(","))
