"""``deepvm profile saturation``: how many VMs may push to one memory node at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from deepvm.cli.output import TableJson, check_plot, print_document, say
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
from deepvm.cli.profile.save import ForceLocal, Save, check_save, entry_from, put
from deepvm.errors import RequestError

TransportName = Annotated[
    Literal["tcp", "mpi"], typer.Option(help="What carries the bytes; MPI needs the extra mpi on all hosts.")
]
CheckpointSize = Annotated[
    str, typer.Option(metavar="SIZE", help="What all senders push together: 300MB, 0.3GB, 512MiB.")
]
Gbps = Annotated[float | None, typer.Option(metavar="GBIT/S", help="Its bandwidth. Measured unless given.")]


def saturation(
    receiver: Annotated[str, typer.Option(metavar="HOST", help="The host that all push to: the memory node.")],
    senders: Annotated[str, typer.Option(metavar="NAMES", help="Hosts that push, separated by commas: a,b,c.")] = "",
    senders_file: Annotated[str, typer.Option(metavar="FILE", help="Or a file: one host a line.")] = "",
    launcher: LauncherName = "ssh",
    python: PythonThere = "",
    workdir: Workdir = "",
    transport: TransportName = "tcp",
    checkpoint_size: CheckpointSize = "300MB",
    repeats: Annotated[int, typer.Option(metavar="N", help="Pushes for each number of senders.")] = 5,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the order of the pushes, and of the interval.")] = 0,
    start_timeout: StartTimeout = START_TIMEOUT,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="For one push.")] = 600.0,
    receiver_address: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The receiver's for senders, with TCP. Found out unless given.")
    ] = "",
    interface: Annotated[
        str, typer.Option(metavar="NAME|NETWORK", help="The only one for MPI to use: eth0 or 10.0.0.0/16.")
    ] = "",
    sender_type: Annotated[str, typer.Option(metavar="TYPE", help="Instance type of the senders.")] = "",
    receiver_type: Annotated[str, typer.Option(metavar="TYPE", help="Instance type of the receiver.")] = "",
    sender_gbps: Gbps = None,
    receiver_gbps: Gbps = None,
    plot: Annotated[str, typer.Option(metavar="FILE", help="Draw t(n) and the knee as well: a .png or .svg.")] = "",
    save: Save = False,
    force_local: ForceLocal = False,
    verbose: Verbose = False,
    output: TableJson = "table",
) -> None:
    """Measure how many VMs may push to one memory node at once, before one more makes it no faster (n_sat).

    n senders push 1/n of a checkpoint each, for n = 1 to all of them; each n is measured once in each repeat, in random
    order. Start it where all hosts can be reached, for MPI from a host in their network.

    Example: deepvm profile saturation --receiver mem1 --senders vm1,vm2,vm3,vm4 --sender-type g4dn.xlarge
    """
    check_plot(plot)
    from deepvm.cli.signal_handling import cleaning_up
    from deepvm.core.units import parse_bytes
    from deepvm.profiling.hosts.host_list import parse_hosts
    from deepvm.profiling.hosts.launcher import Launcher
    from deepvm.profiling.saturation.measure_saturation import measure
    from deepvm.profiling.saturation.setup import Setup

    check_timeouts(start_timeout, timeout)
    there = Launcher.parse(launcher, python, workdir)
    if save:
        types = {"sender_type": sender_type, "receiver_type": receiver_type}
        check_save("saturation", **types, local=there.local, force_local=force_local)
    target, *others = parse_hosts(receiver, "receiver")
    if others:
        raise RequestError("receiver", receiver, "one host")
    setup = Setup(
        receiver=replace(target, address=receiver_address),
        senders=hosts_of("senders", senders, senders_file),
        launcher=there,
        transport=transport,
        checkpoint_bytes=parse_bytes(checkpoint_size),
        repeats=repeats,
        seed=seed,
        start_s=start_timeout,
        limit_s=timeout,
        interface=interface,
        sender_type=sender_type,
        receiver_type=receiver_type,
        sender_gbps=sender_gbps,
        receiver_gbps=receiver_gbps,
    )
    with cleaning_up():
        found = measure(setup, say, say if verbose else None, one_machine_too=force_local or not save)
    if output == "json":
        print_document(found.document())
    else:
        from deepvm.reports.profiling.saturation import print_saturation

        print_saturation(found)
    if save:
        put([entry_from(found.document())], force_local=force_local)
    if plot:
        from deepvm.reports.pictures import save_picture
        from deepvm.reports.profiling.saturation import saturation_figure

        save_picture(saturation_figure(found), Path(plot))
