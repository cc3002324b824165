"""``deepvm profile eflops``, ``scaling`` and ``saturation``: one measurement each."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from deepvm.cli.long_runs import cleaning_up, filling
from deepvm.cli.output import Output, draw, plot_of, print_as, say
from deepvm.cli.parameters import flag, opt
from deepvm.core.spelling import one_of
from deepvm.core.units import parse_bytes
from deepvm.errors import DataError, DeepVMError, RequestError
from deepvm.profiling.workload.spec import BATCH

if TYPE_CHECKING:
    from deepvm.core.training.model import Model
    from deepvm.profiling.hosts.launcher import Host

LauncherName = Annotated[
    str,
    opt(
        "How commands reach a host: ssh, netns (network namespaces), local (all on this machine),"
        " or your own, such as 'ssh -p 2222 {host}' or 'docker exec -i {host}'; it must forward"
        " stdin.",
        "NAME|TEMPLATE",
    ),
]
PythonThere = Annotated[
    str, opt("Python on the hosts; default: python3, with netns and local this one.", "PATH")
]
Workdir = Annotated[str, opt("Working folder on the hosts.", "FOLDER")]
StartTimeout = Annotated[float, opt("Time limit until all hosts have connected.", "SECONDS")]
Verbose = Annotated[bool, flag("--verbose", "Show the output of the hosts.", "-v")]
Resolution = Annotated[int, opt("Side of the images.", "PIXELS")]
Device = Annotated[Literal["auto", "cpu", "cuda"], opt("auto: all GPUs, else the CPU.")]
Sizes = Annotated[str, opt("Numbers of VMs; default: 1, 2, 4, ... and all hosts.", "N,N,...")]
WarmUp = Annotated[int, opt("Untimed steps before.", "N")]
Steps = Annotated[int, opt("Steps of a window.", "N")]
Transport = Annotated[
    Literal["tcp", "mpi"], opt("Network transport; mpi needs the extra mpi on all hosts.")
]
CheckpointSize = Annotated[
    str, opt("Size that all senders push together: 300MB, 0.3GB, 512MiB.", "SIZE")
]
Save = Annotated[bool, flag("--save", "Save to your measured tables, which recommend uses.")]
ForceSpread = Annotated[
    bool, flag("--force-spread", "Save even eFLOPS whose windows differ by more than half.")
]
ForceLocal = Annotated[
    bool, flag("--force-local", "Save even if the VMs were processes on one machine.")
]
InstanceType = Annotated[str, opt("Instance type of these machines; needed with --save.", "TYPE")]
START_TIMEOUT, RUN_TIMEOUT = 180.0, 1800.0
MODELS = ("resnet18", "resnet50", "resnet152", "efficientnet_v2_m")
ALL = "all"
_NAMES = ", ".join(MODELS)
Models = Annotated[
    list[str],
    opt(
        f"{_NAMES}, {ALL}, or your own module:function; repeatable.",
        "NAME",
        autocompletion=lambda: [*MODELS, ALL],
    ),
]
Dtype = Annotated[Literal["float32", "bfloat16", "float16"], opt("Mixed below 32 bits.")]
Seconds = Annotated[float, opt("Minimum length of a window of eFLOPS.", "SECONDS")]


def eflops(
    model: Models = ["resnet18"],  # noqa: B006  typer makes a copy
    batch: Annotated[
        int, opt("Images per step on each GPU, or in each process on the CPU.", "N")
    ] = 128,
    resolution: Resolution = 32,
    windows: Annotated[int, opt("Timed windows, 3 or more; the result is their median.", "N")] = 5,
    seconds: Seconds = 2.0,
    device: Device = "auto",
    processes: Annotated[
        int | None, opt("DDP processes; default: one per GPU, one on the CPU.", "N")
    ] = None,
    dtype: Dtype = "float32",
    optimizer: Annotated[Literal["adam", "sgd"], opt("Optimizer; the paper's is Adam.")] = "adam",
    data: Annotated[
        str, opt("Folder of CIFAR-10 or Fashion-MNIST; default: random images.", "DIR")
    ] = "",
    timeout: Annotated[float, opt("Abort after so long without progress.", "SECONDS")] = 600,
    save: Save = False,
    instance_type: InstanceType = "",
    force_spread: ForceSpread = False,
    output: Output = "table",
) -> None:
    """Measure eFLOPS: train on this machine's GPUs, or its CPU, and count operations per second.

    After a warm-up, the median of timed windows, and their spread. For several models, JSON is a
    list.

    Example: deepvm profile eflops --model resnet18 --batch 128 -o json
    """
    from deepvm.profiling.eflops.measure_eflops import Eflops, measure_eflops
    from deepvm.profiling.hosts.machine import describe
    from deepvm.reports.text import print_text
    from deepvm.services.profiling import check_save, entry_from
    from deepvm.services.profiling import save as save_measurements

    names, images = models_of(model, ALL), Path(data) if data else None
    if save:
        instance_type = instance_type or describe()["instance_type"]
        check_save("eflops", instance_type=instance_type)  # before minutes of measuring
    measure = partial(
        measure_eflops,
        processes=processes,
        data=images,
        seconds=seconds,
        timeout_s=timeout,
        say=say,
    )
    found: list[Eflops] = []
    failure: DeepVMError | None = None
    try:
        with cleaning_up():
            for name in names:
                found.append(measure(name, batch, resolution, windows, device, dtype, optimizer))
                for warning in found[-1].warnings:
                    say(f"Warning: {name}: {warning}")
    except DeepVMError as error:
        failure = error  # what was measured before is still printed
    if found:
        documents = [one.document() for one in found]
        several = len(model) > 1 or ALL in model
        print_as(
            output,
            lambda: print_text("eflops", found=found),
            lambda: documents if several else documents[0],
        )
        if save:
            entries = [entry_from(d, say, instance_type=instance_type) for d in documents]
            save_measurements(entries, say, force_spread=force_spread)
    if failure is not None:
        raise failure


def scaling(
    hosts: Annotated[str, opt("Hosts, comma-separated.", "NAMES")] = "",
    hosts_file: Annotated[
        str, opt("Or a file: one host per line, optionally with slots= and address=.", "FILE")
    ] = "",
    local: Annotated[
        int, opt("Or N processes here: a dry run, no measurement of VMs.", "N", min=0, max=64)
    ] = 0,
    launcher: LauncherName = "ssh",
    python: PythonThere = "",
    workdir: Workdir = "",
    model: Annotated[
        str, opt(f"{_NAMES}, a text model (gpt2), or your own module:function.", "NAME")
    ] = "resnet50",
    trains: Annotated[str, opt("What recommend calls a model of your own.", "NAME")] = "",
    seq: Annotated[int | None, opt("Tokens of a text.", "TOKENS", min=1)] = None,
    method: Annotated[Literal["ddp", "fsdp"], opt("Texts: whole or sharded.")] = "ddp",
    activation_checkpointing: Annotated[
        bool, flag("--activation-checkpointing", "Texts: compute activations again.")
    ] = False,
    batch: Annotated[str, opt("Samples of each GPU; S(n): the first.", "N,N,...")] = "",
    resolution: Resolution = 32,
    dtype: Dtype = "float32",
    device: Device = "auto",
    sizes: Sizes = "",
    repeats: Annotated[int, opt("Runs of each size.", "N")] = 3,
    warmup: WarmUp = 10,
    windows: Annotated[int, opt("Timed windows per run.", "N")] = 5,
    steps: Steps = 20,
    start_timeout: StartTimeout = START_TIMEOUT,
    timeout: Annotated[float, opt("Time limit of one run.", "SECONDS")] = RUN_TIMEOUT,
    out: Annotated[
        str, opt("Updated after each run; the same command resumes an interrupted one.", "FILE")
    ] = "",
    save: Save = False,
    instance_type: InstanceType = "",
    force_local: ForceLocal = False,
    verbose: Verbose = False,
    output: Output = "table",
) -> None:
    """Train for some seconds on 1, 2, 4, ... VMs through torchrun and compare the speeds.

    The largest cluster comes first; a host that fails is left out of the rest. Exit code 1 when
    sizes are missing. Steps of several batches give a law by which recommend plans.

    Example: deepvm profile scaling --hosts-file hosts --batch 128,64 --out curve.json
    """
    from deepvm.profiling.hosts.launcher import Host, Launcher
    from deepvm.profiling.scaling.measure_scaling import Task, measure_scaling
    from deepvm.profiling.scaling.scaling_coordinator import Limits
    from deepvm.reports.text import print_text
    from deepvm.services.profiling import check_save, entry_from
    from deepvm.services.profiling import save as save_measurements

    _check_timeouts(start_timeout, timeout)
    text = _language(model, seq)
    if text is None:
        models_of([model])
        for option, value in (
            ("method", method != "ddp" and method),
            ("activation_checkpointing", activation_checkpointing),
        ):
            if value:
                raise RequestError(
                    option, value, "only with a language model of 'deepvm performance models'"
                )
    if method == "fsdp" and dtype == "float16":
        raise RequestError("dtype", dtype, "bfloat16 or float32 with --method fsdp")
    given = [str(place) for place in (hosts, hosts_file, local) if place]
    if len(given) != 1:
        raise RequestError(
            "hosts", " and ".join(given), "one of --hosts NAMES, --hosts-file FILE and --local N"
        )
    where = tuple(Host(f"local-{i + 1}") for i in range(local)) or hosts_of(
        "hosts", hosts, hosts_file
    )
    there = Launcher.parse("local" if local else launcher, python, workdir)
    if save:
        check_save(
            "scaling", instance_type=instance_type, local=there.local, force_local=force_local
        )
    first, *others = numbers_of("batch", batch or str(text.batch if text else BATCH), "32,64,128")
    task = Task(
        text.name if text else model,
        first,
        resolution,
        device,
        sizes_of(sizes),
        repeats,
        warmup,
        windows,
        steps,
        batches=tuple(others),
        dtype=dtype,
        trains=_named(trains, text.name if text else model),
        sequence=text.sequence if text else seq,
        method=method if text else "",
        checkpointing=activation_checkpointing,
    )
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
            allow_one_machine=force_local or not save,
        )
    print_as(output, lambda: print_text("scaling", curve=curve), curve.document)
    if save:
        entry = entry_from(curve.document(), say, instance_type=instance_type)
        save_measurements([entry], say, force_local=force_local)
    if curve.unwritten:
        sys.stdout.flush()
        raise DataError(f"{curve.unwritten}; the curve is printed above")
    if curve.missing:
        advice = "With --out FILE the same command would resume with what is missing."
        if out:
            advice = f"The same command repeats only the failed runs: {out} has the others."
        say(f"No time for n = {', '.join(map(str, curve.missing))}. {advice}")
        raise typer.Exit(1)


def saturation(
    receiver: Annotated[str, opt("The memory node: the host that all push to.", "HOST")],
    senders: Annotated[str, opt("Hosts that push, comma-separated.", "NAMES")] = "",
    senders_file: Annotated[str, opt("Or a file: one host per line.", "FILE")] = "",
    launcher: LauncherName = "ssh",
    python: PythonThere = "",
    workdir: Workdir = "",
    transport: Transport = "tcp",
    checkpoint_size: CheckpointSize = "300MB",
    repeats: Annotated[int, opt("Pushes for each number of senders.", "N")] = 5,
    seed: Annotated[
        int, opt("Seed of the order of the pushes and of the confidence interval.", "N")
    ] = 0,
    start_timeout: StartTimeout = START_TIMEOUT,
    timeout: Annotated[float, opt("Time limit of one push.", "SECONDS")] = 600.0,
    receiver_address: Annotated[
        str, opt("The receiver's address (TCP); default: detected.", "ADDRESS")
    ] = "",
    interface: Annotated[
        str, opt("Only this interface or network (MPI): eth0 or 10.0.0.0/16.", "NAME|NETWORK")
    ] = "",
    sender_type: Annotated[str, opt("Instance type of the senders.", "TYPE")] = "",
    receiver_type: Annotated[str, opt("Instance type of the receiver.", "TYPE")] = "",
    sender_gbps: Annotated[
        float | None, opt("Bandwidth of a sender; default: measured.", "GBIT/S")
    ] = None,
    receiver_gbps: Annotated[
        float | None, opt("Bandwidth of the receiver; default: measured.", "GBIT/S")
    ] = None,
    plot: Annotated[str, plot_of("t(n) and the saturation point")] = "",
    save: Save = False,
    force_local: ForceLocal = False,
    verbose: Verbose = False,
    output: Output = "table",
) -> None:
    """Measure how many VMs may push to one memory node at once, before one more makes it no faster (n_sat).

    n senders push 1/n of a checkpoint each, for n = 1 to all of them; each n is measured once in
    each repeat, in random order. Start it where all hosts can be reached, for MPI from a host in
    their network.

    Example: deepvm profile saturation --receiver mem1 --senders vm1,vm2,vm3,vm4 --sender-type
    g4dn.xlarge
    """
    from deepvm.profiling.hosts.launcher import Launcher
    from deepvm.profiling.saturation.measure_saturation import measure
    from deepvm.profiling.saturation.setup import Setup
    from deepvm.reports.profiling.measurements import print_saturation, saturation_figure
    from deepvm.services.profiling import check_save, entry_from
    from deepvm.services.profiling import save as save_measurements

    _check_timeouts(start_timeout, timeout)
    there = Launcher.parse(launcher, python, workdir)
    if save:
        types = {"sender_type": sender_type, "receiver_type": receiver_type}
        check_save("saturation", **types, local=there.local, force_local=force_local)
    setup = Setup(
        receiver=replace(receiver_of(receiver), address=receiver_address),
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
        found = measure(
            setup, say, say if verbose else None, allow_one_machine=force_local or not save
        )
    print_as(output, lambda: print_saturation(found), found.document)
    if save:
        save_measurements([entry_from(found.document(), say)], say, force_local=force_local)
    draw(plot, lambda: saturation_figure(found))


def _check_timeouts(start_timeout: float, timeout: float) -> None:
    for option, seconds in (("start_timeout", start_timeout), ("timeout", timeout)):
        if not 1 <= seconds <= 1e6:
            raise RequestError(option, seconds, "1 to 1000000 seconds")


def hosts_of(option: str, names: str, file: str) -> tuple[Host, ...]:
    """The hosts of either ``--option NAMES`` or ``--option-file FILE``.

    Raises RequestError, DataError.
    """
    from deepvm.profiling.hosts.launcher import parse_hosts, read_hosts

    if bool(names) == bool(file):
        both = f"{names} and {file}" if names else ""
        raise RequestError(option, both, f"one of --{option} NAMES and --{option}-file FILE")
    return parse_hosts(names, option) if names else read_hosts(Path(file), f"{option}_file")


def receiver_of(name: str) -> Host:
    """The host that ``--receiver`` names. Raises RequestError: none, or several."""
    from deepvm.profiling.hosts.launcher import parse_hosts

    hosts = parse_hosts(name, "receiver")
    if len(hosts) != 1:
        raise RequestError("receiver", name, "one host")
    return hosts[0]


def models_of(names: list[str], *also: str) -> tuple[str, ...]:
    """Each named model once, deepvm's own for ``all``, which ``also`` may allow.

    Raises RequestError.
    """
    known = (*MODELS, *also)
    for name in names:
        if name not in known and not re.fullmatch(r"[\w.]+:\w+", name):
            own = ", or module:function for a model of your own"
            raise RequestError("model", name, one_of(name, known, ", ", also=own))
    return tuple(dict.fromkeys(m for name in names for m in (MODELS if name == ALL else (name,))))


def sizes_of(text: str) -> tuple[int, ...]:
    """The numbers of VMs that ``--sizes`` names; none for the default. Raises RequestError."""
    return numbers_of("sizes", text, "1,2,4,8") if text else ()


def numbers_of(option: str, text: str, example: str) -> tuple[int, ...]:
    """Numbers separated by commas. Raises RequestError."""
    if not re.fullmatch(r"[0-9]{1,18}( *, *[0-9]{1,18})*", text.strip(), re.ASCII):
        raise RequestError(option, text, f"whole numbers separated by commas, such as {example}")
    return tuple(int(n) for n in text.split(","))


def _language(name: str, sequence: int | None) -> Model | None:
    """The language model of a name that is built here; None for others. Raises RequestError."""
    from deepvm.catalog.published.models import presets

    found = presets().get(name.casefold())
    if (
        name in MODELS
        or found is None
        or found.transformer is None
        or not found.transformer.vocabulary
    ):
        return None
    return found if sequence is None else found.with_sequence(sequence)


def _named(trains: str, model: str) -> str:
    """What the planner calls the trained model, for ``--trains``. Raises RequestError."""
    if trains and ":" not in model:
        raise RequestError(
            "trains", trains, f"only with a model of your own: recommend knows {model} by its name"
        )
    if trains and (len(trains) > 100 or not trains.isprintable() or ":" in trains):
        raise RequestError(
            "trains", trains, "the name that recommend --model has for it, such as llama-8b"
        )
    return trains
