"""``deepvm profile all``: eFLOPS, speed-up and saturation in one go, and one file to bring home."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from deepvm.cli.ending import cleaning_up
from deepvm.cli.options import note, say
from deepvm.cli.profile_eflops import ALL, MODELS
from deepvm.cli.profile_save import Save, check_save, entry_from, put
from deepvm.cli.profile_scaling import scaling_hosts, sizes_of
from deepvm.errors import DataError, DeepVMError, RequestError

if TYPE_CHECKING:
    from deepvm.catalog.measured_entries import Entry
    from deepvm.profiling.hosts import Host
    from deepvm.profiling.launch import Launcher

_START_S, _RUN_S = 180.0, 1800.0
INCOMPLETE = 1
"""Exit code when a part could not be measured; what could be is printed, and saved."""


def everything(
    hosts: Annotated[str, typer.Option(metavar="NAMES", help="The VMs that train, separated by commas.")] = "",
    hosts_file: Annotated[str, typer.Option(metavar="FILE", help="Or a file: one host a line.")] = "",
    receiver: Annotated[str, typer.Option(metavar="HOST", help="The memory node, for its saturation.")] = "",
    instance_type: Annotated[
        str, typer.Option(metavar="TYPE", help="Of the VMs that train.  [default: found out, on EC2 Nitro]")
    ] = "",
    receiver_type: Annotated[str, typer.Option(metavar="TYPE", help="Of the memory node.")] = "",
    launcher: Annotated[
        str, typer.Option(metavar="NAME|TEMPLATE", help="How a command gets to a host, as for scaling.")
    ] = "ssh",
    python: Annotated[str, typer.Option(metavar="PATH", help="Python on the hosts, as for scaling.")] = "",
    workdir: Annotated[str, typer.Option(metavar="FOLDER", help="Where it is started on the hosts.")] = "",
    model: Annotated[
        list[str],
        typer.Option(metavar="NAME", help=f"What is trained: {', '.join(MODELS)}, or {ALL}; may be repeated."),
    ] = ["resnet50"],  # noqa: B006  typer makes a copy
    batch: Annotated[int, typer.Option(help="Images of a step for each GPU.")] = 128,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="What trains.")] = "auto",
    sizes: Annotated[
        str, typer.Option(metavar="N,N,...", help="Numbers of VMs.  [default: 1, 2, 4, ... and all hosts]")
    ] = "",
    repeats: Annotated[int, typer.Option(help="Runs of each size, and pushes of each number of senders.")] = 3,
    checkpoint_size: Annotated[str, typer.Option(metavar="SIZE", help="What is pushed: 300MB, 512MiB.")] = "300MB",
    transport: Annotated[Literal["tcp", "mpi"], typer.Option(help="What carries it.")] = "tcp",
    out: Annotated[
        str,
        typer.Option(
            metavar="DIR", help="Keeps each document here; the same command goes on where it was interrupted."
        ),
    ] = "",
    save: Save = False,
    output: Annotated[
        Literal["table", "json"], typer.Option("--output", "-o", help="How to print the answer.")
    ] = "table",
) -> None:
    """Measure all there is to measure: eFLOPS on the first host, the speed-up of all, the saturation of the receiver.

    Without hosts it is eFLOPS of this machine. JSON is one document for 'deepvm tables import' on another machine. What
    fails is said, and the rest goes on: exit code 1 when a part is missing.

    Example: deepvm profile all --hosts-file hosts --receiver 10.0.0.9 --instance-type g4dn.xlarge --out here --save
    """
    from deepvm.profiling.launch import Launcher

    wrong = [name for name in model if name not in (*MODELS, ALL)]
    if wrong:
        raise RequestError("model", wrong[0], f"{', '.join(MODELS)}, {ALL}")
    where = scaling_hosts(hosts, hosts_file, 0) if hosts or hosts_file else ()
    instance_type = instance_type or _own_type(bool(where))
    if receiver and len(where) < 2:
        raise RequestError("receiver", receiver, "two hosts or more that push to it, with --hosts or --hosts-file")
    if receiver and not receiver_type:
        raise RequestError("receiver_type", receiver_type, "what the provider calls the receiver, such as c4.xlarge")
    if save:
        check_save("eflops", instance_type=instance_type)
    plan = _Plan(
        hosts=where,
        launcher=Launcher.parse(launcher, python, workdir),
        receiver=receiver,
        types=(instance_type, receiver_type),
        models=MODELS if ALL in model else tuple(dict.fromkeys(model)),
        batch=batch,
        device=device,
        sizes=sizes_of(sizes),
        repeats=repeats,
        checkpoint_size=checkpoint_size,
        transport=transport,
        folder=_folder(out),
    )
    with cleaning_up():
        plan.measure()
    _print(plan.entries, output)
    if save:
        for entry in plan.entries:
            if entry.local:
                note(f"{entry.name} is not saved: processes of one machine say nothing about VMs")
        put([entry for entry in plan.entries if not entry.local])
    if plan.failed:
        for problem in plan.failed:
            note(problem)
        raise typer.Exit(INCOMPLETE)


@dataclass
class _Plan:
    """The parts, one after the other; ``types``: of the VMs that train, and of the receiver."""

    hosts: tuple[Host, ...]
    launcher: Launcher
    receiver: str
    types: tuple[str, str]
    models: tuple[str, ...]
    batch: int
    device: str
    sizes: tuple[int, ...]
    repeats: int
    checkpoint_size: str
    transport: Literal["tcp", "mpi"]
    folder: Path | None
    entries: list[Entry] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def measure(self) -> None:
        """Measure what can be; the rest is in ``failed``."""
        for name in self.models:
            self._part(f"eflops-{name}", lambda name=name: self._eflops(name))  # type: ignore[misc]
        if len(self.hosts) < 2:
            say("no speed-up and no saturation: they need two hosts or more (--hosts, --hosts-file)")
            return
        for name in self.models:
            self._part(f"scaling-{name}", lambda name=name: self._scaling(name), kept=False)  # type: ignore[misc]
        if self.receiver:
            self._part("saturation", self._saturation)
        else:
            say("no saturation: it needs a host that all push to (--receiver)")

    def _part(self, title: str, work: Callable[[], Mapping[str, Any]], *, kept: bool = True) -> None:
        """One document; ``kept``: it is written to the folder here, and one that is there is not measured again."""
        file = self.folder / f"{title}.json" if self.folder is not None and kept else None
        try:
            if file is not None and file.exists():
                say(f"{title}: measured before, see {file}; remove it to measure anew")
                document = _read(file)
            else:
                say(f"{title}:")
                document = work()
            self.entries.append(entry_from(document, instance_type=self.types[0], name=str(file or title)))
            if file is not None and not file.exists():
                _write(file, document)
        except DeepVMError as error:
            self.failed.append(f"{title} is missing: {error}")
            say(f"{title} failed: {error}")

    def _eflops(self, name: str) -> Mapping[str, Any]:
        options = {"model": name, "batch": self.batch, "device": self.device}
        if self.hosts:
            from deepvm.profiling.eflops_host import measure_eflops_on

            return measure_eflops_on(self.hosts[0], self.launcher, options, say=say)
        from deepvm.profiling.eflops import measure_eflops

        return measure_eflops(name, self.batch, device=self.device, say=say).document()

    def _scaling(self, name: str) -> Mapping[str, Any]:
        from deepvm.profiling.scaling import Task, measure_scaling
        from deepvm.profiling.scaling_crew import Limits

        task = Task(name, self.batch, device=self.device, sizes=self.sizes, repeats=self.repeats)
        file = self.folder / f"scaling-{name}.json" if self.folder is not None else None
        curve = measure_scaling(task, self.hosts, self.launcher, limits=Limits(_START_S, _RUN_S), out=file, say=say)
        if curve.missing:
            self.failed.append(f"scaling-{name}: no time for n = {', '.join(map(str, curve.missing))}")
        if curve.unwritten:
            self.failed.append(f"scaling-{name}: {curve.unwritten}")
        return curve.document()

    def _saturation(self) -> Mapping[str, Any]:
        from deepvm.core.units import parse_bytes
        from deepvm.profiling.hosts import parse_hosts
        from deepvm.profiling.saturation import Setup, measure

        setup = Setup(
            receiver=parse_hosts(self.receiver, "receiver")[0],
            senders=self.hosts,
            launcher=self.launcher,
            transport=self.transport,
            checkpoint_bytes=parse_bytes(self.checkpoint_size),
            repeats=self.repeats,
            sender_type=self.types[0],
            receiver_type=self.types[1],
        )
        return measure(setup, say).document()


def _own_type(remote: bool) -> str:
    from deepvm.profiling.machine import describe

    found = "" if remote else describe().instance_type
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


def _read(file: Path) -> Mapping[str, Any]:
    from deepvm.catalog.files import read_text

    try:
        found = json.loads(read_text(file))
    except ValueError as error:
        raise DataError(f"{file}: is no JSON ({error}); remove it to measure anew") from None
    if not isinstance(found, dict):
        raise DataError(f"{file}: is no measurement; remove it to measure anew")
    return found


def _write(file: Path, document: Mapping[str, Any]) -> None:
    from deepvm.catalog.files import write_bytes
    from deepvm.reports.documents import to_json

    write_bytes(file, to_json(dict(document)).encode())


def _print(entries: list[Entry], output: str) -> None:
    from deepvm.catalog.measured_entries import Tables

    tables = Tables().merged(entries)
    if output == "json":
        from deepvm.reports.documents import to_json

        sys.stdout.write(to_json(tables.as_document()))
        return
    from deepvm.reports.measured import print_list

    print_list(tables)
