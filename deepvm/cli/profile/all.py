"""``deepvm profile all``: eFLOPS, speed-up and saturation in one go, and one file to bring home."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepvm.cli.output import TableJson, note, print_document, say
from deepvm.cli.profile.eflops import Device, Models, Resolution, Seconds, models_of
from deepvm.cli.profile.hosts import LauncherName, PythonThere, Workdir, hosts_of
from deepvm.cli.profile.saturation import CheckpointSize, TransportName
from deepvm.cli.profile.save import ForceSpread, Save, check_save, put
from deepvm.cli.profile.scaling import Sizes, Steps, WarmUp, sizes_of
from deepvm.cli.signal_handling import cleaning_up, growing
from deepvm.errors import MeasurementError, RequestError

if TYPE_CHECKING:
    from deepvm.catalog.measured.entries import Entry

INCOMPLETE = 1
"""Exit code when a part could not be measured; what could be is printed, and saved."""


def everything(
    hosts: Annotated[str, typer.Option(metavar="NAMES", help="The VMs that train, separated by commas.")] = "",
    hosts_file: Annotated[str, typer.Option(metavar="FILE", help="Or a file: one host a line.")] = "",
    receiver: Annotated[str, typer.Option(metavar="HOST", help="The memory node, for its saturation.")] = "",
    instance_type: Annotated[
        str, typer.Option(metavar="TYPE", help="Of the VMs that train.  [default: this machine's own, on EC2 Nitro]")
    ] = "",
    receiver_type: Annotated[str, typer.Option(metavar="TYPE", help="Of the memory node.")] = "",
    launcher: LauncherName = "ssh",
    python: PythonThere = "",
    workdir: Workdir = "",
    model: Models = ["resnet50"],  # noqa: B006  typer makes a copy
    batch: Annotated[int, typer.Option(help="Images of a step for each GPU.")] = 128,
    resolution: Resolution = 32,
    device: Device = "auto",
    sizes: Sizes = "",
    repeats: Annotated[int, typer.Option(help="Runs of each size, and pushes of each number of senders.")] = 3,
    windows: Annotated[int, typer.Option(help="Times that are taken: of eFLOPS, and in each run of scaling.")] = 5,
    seconds: Seconds = 2.0,
    warmup: WarmUp = 10,
    steps: Steps = 20,
    checkpoint_size: CheckpointSize = "300MB",
    transport: TransportName = "tcp",
    out: Annotated[
        str,
        typer.Option(
            metavar="DIR", help="Keeps each document here; the same command goes on where it was interrupted."
        ),
    ] = "",
    save: Save = False,
    force_spread: ForceSpread = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", show_default=False, help="Check the options, say what would be measured.")
    ] = False,
    output: TableJson = "table",
) -> None:
    """Measure all there is to measure: eFLOPS on the first host, the speed-up of all, the saturation of the receiver.

    Without hosts it is eFLOPS of this machine. JSON is one document for 'deepvm tables import' on another machine. What
    fails is said, and the rest goes on: exit code 1 when a part is missing. Interrupted, it prints what it has.

    Example: deepvm profile all --hosts-file hosts --instance-type g4dn.xlarge --receiver 10.0.0.9 --receiver-type
    c4.xlarge --out here --save
    """
    from deepvm.cli.lock import alone_in
    from deepvm.cli.profile.campaign import Campaign, Options
    from deepvm.core.units import parse_bytes
    from deepvm.profiling.hosts.launcher import Launcher

    models = models_of(model)
    where = hosts_of("hosts", hosts, hosts_file) if hosts or hosts_file else ()
    instance_type = instance_type or _own_type(bool(where))
    if receiver and len(where) < 2:
        raise RequestError("receiver", receiver, "two hosts or more that push to it, with --hosts or --hosts-file")
    if receiver and not receiver_type:
        raise RequestError("receiver_type", receiver_type, "what the provider calls the receiver, such as c4.xlarge")
    if save:
        check_save("eflops", instance_type=instance_type)
    options = Options(
        hosts=where,
        launcher=Launcher.parse(launcher, python, workdir),
        receiver=receiver,
        types=(instance_type, receiver_type),
        models=models,
        batch=batch,
        resolution=resolution,
        device=device,
        sizes=sizes_of(sizes),
        repeats=repeats,
        windows=windows,
        seconds=seconds,
        warmup=warmup,
        steps=steps,
        checkpoint_bytes=parse_bytes(checkpoint_size),
        transport=transport,
    )
    if dry_run:
        there = Path(out) if out and Path(out).is_dir() else None
        say(f"this would measure {', '.join(Campaign(options, there).titles)}")
        return
    folder = _folder(out)
    with cleaning_up(), alone_in(folder), growing(folder):
        campaign = Campaign(options, folder)
        try:
            campaign.measure()
        finally:  # whatever ends it, what was measured before is printed and saved
            if campaign.entries or output == "json":
                _print(campaign.entries, output)
            unsaved = _save(campaign.entries, force_spread) if save else []
    failed = [*campaign.failed, *unsaved]
    for problem in failed:
        note(problem)
    if failed:
        raise typer.Exit(INCOMPLETE)


def _save(entries: list[Entry], force_spread: bool) -> list[str]:
    """Save what can be; returns why the rest was not."""
    for entry in entries:
        if entry.local:
            note(f"{entry.name} is not saved: processes of one machine say nothing about VMs")
    try:
        put([entry for entry in entries if not entry.local], force_spread=force_spread)
    except MeasurementError as error:
        return [str(error)]
    return []


def _own_type(remote: bool) -> str:
    from deepvm.profiling.hosts.machine import describe

    found = "" if remote else describe()["instance_type"]
    if not found:
        raise RequestError("instance_type", "", "what the provider calls the machines, such as g4dn.xlarge")
    return found


def _folder(out: str) -> Path | None:
    if not out:
        return None
    folder = Path(out)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise RequestError("out", out, f"a folder, or the name of a new one ({error.strerror or error})") from None
    return folder


def _print(entries: list[Entry], output: str) -> None:
    from deepvm.catalog.measured.tables import Tables

    tables = Tables().merged(entries)
    if output == "json":
        print_document(tables.as_document())
        return
    from deepvm.reports.profiling.measured import print_list

    print_list(tables)
