"""``deepvm profile saturation``: how many VMs may push to one memory node at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from deepvm.cli.long_runs import cleaning_up
from deepvm.cli.output import TableJson, check_plot, print_as, say
from deepvm.cli.parameters import opt
from deepvm.cli.profile import hosts as o
from deepvm.errors import RequestError


def saturation(
    receiver: Annotated[str, opt("The memory node: the host that all push to.", "HOST")],
    senders: Annotated[str, opt("Hosts that push, comma-separated.", "NAMES")] = "",
    senders_file: Annotated[str, opt("Or a file: one host per line.", "FILE")] = "",
    launcher: o.LauncherName = "ssh",
    python: o.PythonThere = "",
    workdir: o.Workdir = "",
    transport: o.Transport = "tcp",
    checkpoint_size: o.CheckpointSize = "300MB",
    repeats: Annotated[int, opt("Pushes for each number of senders.", "N")] = 5,
    seed: Annotated[int, opt("Seed of the order of the pushes and of the confidence interval.", "N")] = 0,
    start_timeout: o.StartTimeout = o.START_TIMEOUT,
    timeout: Annotated[float, opt("Time limit of one push.", "SECONDS")] = 600.0,
    receiver_address: Annotated[str, opt("The receiver's address (TCP); default: detected.", "ADDRESS")] = "",
    interface: Annotated[str, opt("Only this interface or network (MPI): eth0 or 10.0.0.0/16.", "NAME|NETWORK")] = "",
    sender_type: Annotated[str, opt("Instance type of the senders.", "TYPE")] = "",
    receiver_type: Annotated[str, opt("Instance type of the receiver.", "TYPE")] = "",
    sender_gbps: Annotated[float | None, opt("Bandwidth of a sender; default: measured.", "GBIT/S")] = None,
    receiver_gbps: Annotated[float | None, opt("Bandwidth of the receiver; default: measured.", "GBIT/S")] = None,
    plot: Annotated[str, opt("Also draw t(n) and the saturation point, as .png or .svg.", "FILE")] = "",
    save: o.Save = False,
    force_local: o.ForceLocal = False,
    verbose: o.Verbose = False,
    output: TableJson = "table",
) -> None:
    """Measure how many VMs may push to one memory node at once, before one more makes it no faster (n_sat).

    n senders push 1/n of a checkpoint each, for n = 1 to all of them; each n is measured once in each repeat, in random
    order. Start it where all hosts can be reached, for MPI from a host in their network.

    Example: deepvm profile saturation --receiver mem1 --senders vm1,vm2,vm3,vm4 --sender-type g4dn.xlarge
    """
    check_plot(plot)
    from deepvm.cli.profile.save import check_save, entry_from, put
    from deepvm.core.units import parse_bytes
    from deepvm.profiling.hosts.host_list import parse_hosts
    from deepvm.profiling.hosts.launcher import Launcher
    from deepvm.profiling.saturation.measure_saturation import measure
    from deepvm.profiling.saturation.setup import Setup
    from deepvm.reports.profiling.saturation import draw_saturation, print_saturation

    o.check_timeouts(start_timeout, timeout)
    there = Launcher.parse(launcher, python, workdir)
    if save:
        types = {"sender_type": sender_type, "receiver_type": receiver_type}
        check_save("saturation", **types, local=there.local, force_local=force_local)
    target, *others = parse_hosts(receiver, "receiver")
    if others:
        raise RequestError("receiver", receiver, "one host")
    setup = Setup(
        receiver=replace(target, address=receiver_address),
        senders=o.hosts_of("senders", senders, senders_file),
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
    print_as(output, lambda: print_saturation(found), found.document)
    if save:
        put([entry_from(found.document())], force_local=force_local)
    if plot:
        draw_saturation(found, Path(plot))
