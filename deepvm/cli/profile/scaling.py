"""``deepvm profile scaling``: how much faster n VMs train than one."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepvm.cli.long_runs import cleaning_up, filling
from deepvm.cli.output import TableJson, print_as, say
from deepvm.cli.parameters import opt
from deepvm.cli.profile import hosts as o
from deepvm.cli.profile.eflops import MODELS, is_own
from deepvm.core.spelling import one_of
from deepvm.errors import DataError, RequestError

if TYPE_CHECKING:
    from deepvm.profiling.hosts.host_list import Host

_MOST_LOCAL = 64


def scaling(
    hosts: Annotated[str, opt("Hosts, comma-separated.", "NAMES")] = "",
    hosts_file: Annotated[str, opt("Or a file: one host per line, optionally with slots= and address=.", "FILE")] = "",
    local: Annotated[int, opt("Or N processes on this machine: a dry run, no measurement of VMs.", "N")] = 0,
    launcher: o.LauncherName = "ssh",
    python: o.PythonThere = "",
    workdir: o.Workdir = "",
    model: Annotated[str, opt(f"{', '.join(MODELS)}, or module:function for your own.", "NAME")] = "resnet50",
    batch: Annotated[int, opt("Images per step and GPU, whatever the number of VMs.", "N")] = 128,
    resolution: o.Resolution = 32,
    device: o.Device = "auto",
    sizes: o.Sizes = "",
    repeats: Annotated[int, opt("Runs of each size.", "N")] = 3,
    warmup: o.WarmUp = 10,
    windows: Annotated[int, opt("Timed windows per run.", "N")] = 5,
    steps: o.Steps = 20,
    start_timeout: o.StartTimeout = o.START_TIMEOUT,
    timeout: Annotated[float, opt("Time limit of one run.", "SECONDS")] = 1800.0,
    out: Annotated[str, opt("Updated after each run; the same command resumes an interrupted one.", "FILE")] = "",
    save: o.Save = False,
    instance_type: o.InstanceType = "",
    force_local: o.ForceLocal = False,
    verbose: o.Verbose = False,
    output: TableJson = "table",
) -> None:
    """Train for some seconds on 1, 2, 4, ... VMs through torchrun and compare the speeds.

    The largest cluster comes first; a host that fails is left out of the rest. Exit code 1 when sizes are missing.

    Example: deepvm profile scaling --hosts-file hosts --python '~/venv/bin/python' --out curve.json
    """
    from deepvm.cli.profile.save import check_save, entry_from, put
    from deepvm.profiling.hosts.launcher import Launcher
    from deepvm.profiling.scaling.measure_scaling import Task, measure_scaling
    from deepvm.profiling.scaling.scaling_coordinator import Limits
    from deepvm.reports.profiling.scaling import print_curve

    o.check_timeouts(start_timeout, timeout)
    if model not in MODELS and not is_own(model):
        own = ", or module:function that the hosts can import"
        raise RequestError("model", model, one_of(model, MODELS, ", ", also=own))
    where = _hosts(hosts, hosts_file, local)
    there = Launcher.parse("local" if local else launcher, python, workdir)
    if save:
        check_save("scaling", instance_type=instance_type, local=there.local, force_local=force_local)
    task = Task(model, batch, resolution, device, sizes_of(sizes), repeats, warmup, windows, steps)
    file = Path(out) if out else None
    with cleaning_up(), filling(file, "profile scaling"):
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
    print_as(output, lambda: print_curve(curve), curve.document)
    if save:
        put([entry_from(curve.document(), instance_type=instance_type)], force_local=force_local)
    if curve.unwritten:
        sys.stdout.flush()
        raise DataError(f"{curve.unwritten}; the curve is printed above")
    if curve.missing:
        advice = "With --out FILE the same command would resume with what is missing."
        if out:
            advice = f"The same command tries only the failed runs again: {out} has the others."
        say(f"No time for n = {', '.join(map(str, curve.missing))}. {advice}")
        raise typer.Exit(1)


def _hosts(hosts: str, hosts_file: str, local: int) -> tuple[Host, ...]:
    from deepvm.profiling.hosts.host_list import Host

    given = [str(where) for where in (hosts, hosts_file, local) if where]
    if len(given) != 1:
        raise RequestError("hosts", " and ".join(given), "one of --hosts NAMES, --hosts-file FILE and --local N")
    if not local:
        return o.hosts_of("hosts", hosts, hosts_file)
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
