"""What ``deepvm profile`` measures, where and how, each option declared once.

The module is light, for ``--help``.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from functools import partial
from typing import Any

from deepvm.core.options import option

MODELS = ("resnet18", "resnet50", "resnet152", "efficientnet_v2_m")
ALL = "all"
_NAMES = ", ".join(MODELS)

_count = partial(option, metavar="N", kind=int)
_seconds = partial(option, metavar="SECONDS", kind=float)
_gbps = partial(option, None, metavar="GBIT/S", kind=float)
_hosts = partial(option, "", metavar="NAMES")
_file = partial(option, "", metavar="FILE")
_type = partial(option, "", metavar="TYPE")

_launcher = partial(
    option,
    "ssh",
    "How commands reach a host: ssh, netns (network namespaces), local (all on this machine), or"
    " your own, such as 'ssh -p 2222 {host}' or 'docker exec -i {host}'; it must forward stdin.",
    "NAME|TEMPLATE",
)
_python = partial(
    option,
    "",
    "Python on the hosts; default: python3, with netns and local this one.",
    "PATH",
)
_workdir = partial(option, "", "Working folder on the hosts.", "FOLDER")
_start_timeout = partial(_seconds, 180.0, "Time limit until all hosts have connected.")
_models = partial(
    option,
    metavar="NAME",
    help=f"{_NAMES}, {ALL}, or your own module:function; repeatable.",
    complete="complete_profiled_model",
)
_resolution = partial(option, 32, "Side of the images.", "PIXELS", kind=int)
_device = partial(option, "auto", "auto: all GPUs, else the CPU.", choices=("auto", "cpu", "cuda"))
_dtype = partial(
    option, "float32", "Mixed below 32 bits.", choices=("float32", "bfloat16", "float16")
)
_sizes = partial(option, "", "Numbers of VMs; default: 1, 2, 4, ... and all hosts.", "N,N,...")
_window_s = partial(_seconds, 2.0, "Minimum length of a window of eFLOPS.")
_warmup = partial(_count, 10, "Untimed steps before.")
_steps = partial(_count, 20, "Steps of a window.")
_transport = partial(
    option,
    "tcp",
    "Network transport; mpi needs the extra mpi on all hosts.",
    choices=("tcp", "mpi"),
)
_checkpoint_size = partial(
    option, "300MB", "Size that all senders push together: 300MB, 0.3GB, 512MiB.", "SIZE"
)
_save = partial(
    option, False, "Save to your measured tables, which recommend uses.", None, "--save"
)
_measured_type = partial(_type, help="Instance type of these machines; needed with --save.")
_force_local = partial(
    option, False, "Save even if the VMs were processes on one machine.", None, "--force-local"
)
_force_spread = partial(
    option,
    False,
    "Save even eFLOPS whose windows differ by more than half.",
    None,
    "--force-spread",
)


@dataclass(frozen=True, kw_only=True)
class EflopsOptions:
    """The training speed of this machine."""

    model: list[str] = _models(["resnet18"])
    batch: int = _count(128, "Images per step on each GPU, or in each process on the CPU.")
    resolution: int = _resolution()
    windows: int = _count(5, "Timed windows, 3 or more; the result is their median.")
    seconds: float = _window_s()
    device: str = _device()
    processes: int | None = _count(None, "DDP processes; default: one per GPU, one on the CPU.")
    dtype: str = _dtype()
    optimizer: str = option("adam", "Optimizer; the paper's is Adam.", choices=("adam", "sgd"))
    data: str = option("", "Folder of CIFAR-10 or Fashion-MNIST; default: random images.", "DIR")
    timeout: float = _seconds(600, "Abort after so long without progress.")
    save: bool = _save()
    instance_type: str = _measured_type()
    force_spread: bool = _force_spread()


@dataclass(frozen=True, kw_only=True)
class ScalingOptions:
    """How much faster n VMs train than one."""

    hosts: str = _hosts("Hosts, comma-separated.")
    hosts_file: str = _file("Or a file: one host per line, optionally with slots= and address=.")
    local: int = _count(
        0, "Or N processes here: a dry run, no measurement of VMs.", least=0, most=64
    )
    launcher: str = _launcher()
    python: str = _python()
    workdir: str = _workdir()
    model: str = option(
        "resnet50", f"{_NAMES}, a text model (gpt2), or your own module:function.", "NAME"
    )
    trains: str = option("", "What recommend calls a model of your own.", "NAME")
    seq: int | None = option(None, "Tokens of a text.", "TOKENS", kind=int, least=1)
    method: str = option("ddp", "Texts: whole or sharded.", choices=("ddp", "fsdp"))
    activation_checkpointing: bool = option(
        False, "Texts: compute activations again.", None, "--activation-checkpointing"
    )
    batch: str = option("", "Samples of each GPU; S(n): the first.", "N,N,...")
    resolution: int = _resolution()
    dtype: str = _dtype()
    device: str = _device()
    sizes: str = _sizes()
    repeats: int = _count(3, "Runs of each size.")
    warmup: int = _warmup()
    windows: int = _count(5, "Timed windows per run.")
    steps: int = _steps()
    start_timeout: float = _start_timeout()
    timeout: float = _seconds(1800.0, "Time limit of one run.")
    out: str = _file("Updated after each run; the same command resumes an interrupted one.")
    save: bool = _save()
    instance_type: str = _measured_type()
    force_local: bool = _force_local()


@dataclass(frozen=True, kw_only=True)
class SaturationOptions:
    """How many VMs may push to one memory node at once."""

    receiver: str = option(MISSING, "The memory node: the host that all push to.", "HOST")
    senders: str = _hosts("Hosts that push, comma-separated.")
    senders_file: str = _file("Or a file: one host per line.")
    launcher: str = _launcher()
    python: str = _python()
    workdir: str = _workdir()
    transport: Any = _transport()
    checkpoint_size: str = _checkpoint_size()
    repeats: int = _count(5, "Pushes for each number of senders.")
    seed: int = _count(0, "Seed of the order of the pushes and of the confidence interval.")
    start_timeout: float = _start_timeout()
    timeout: float = _seconds(600.0, "Time limit of one push.")
    receiver_address: str = option(
        "", "The receiver's address (TCP); default: detected.", "ADDRESS"
    )
    interface: str = option(
        "", "Only this interface or network (MPI): eth0 or 10.0.0.0/16.", "NAME|NETWORK"
    )
    sender_type: str = _type("Instance type of the senders.")
    receiver_type: str = _type("Instance type of the receiver.")
    sender_gbps: float | None = _gbps("Bandwidth of a sender; default: measured.")
    receiver_gbps: float | None = _gbps("Bandwidth of the receiver; default: measured.")


@dataclass(frozen=True, kw_only=True)
class CampaignOptions:
    """All of it: the options of ``deepvm profile all``."""

    hosts: str = _hosts("Training VMs, comma-separated.")
    hosts_file: str = _file("Or a file: one host per line.")
    receiver: str = option("", "Memory node, to measure its saturation.", "HOST")
    instance_type: str = _type("Type of the training VMs; default: this machine's (EC2 Nitro).")
    receiver_type: str = _type("Type of the memory node.")
    launcher: str = _launcher()
    python: str = _python()
    workdir: str = _workdir()
    model: list[str] = _models(["resnet50"])
    batch: int = _count(128, "Images per step and GPU.")
    resolution: int = _resolution()
    device: str = _device()
    sizes: str = _sizes()
    repeats: int = _count(3, "Runs of each size, and pushes for each number of senders.")
    windows: int = _count(5, "Timed windows, of eFLOPS and of each scaling run.")
    seconds: float = _window_s()
    warmup: int = _warmup()
    steps: int = _steps()
    checkpoint_size: str = _checkpoint_size()
    transport: Any = _transport()


def _with_save(help: str, metavar: str | None = None, *names: str, **about: Any) -> Any:
    return option(None, f"With --save{help}", metavar, *names, **about)


@dataclass(frozen=True, kw_only=True)
class StepsOptions:
    """What the steps of ``profile fit --law step-time --save`` are of, as in ``recommend``."""

    save: bool = option(
        False, "Save the law, by which recommend plans. With --law step-time.", None, "--save"
    )
    instance_type: str = _type("With --save: the type that was measured.")
    model: str = option("", "With --save: what was trained, as for recommend.", "NAME|FILE")
    params: str | None = option(
        None, "Instead: a language model of this size, such as 7B.", "COUNT"
    )
    seq: str | None = _with_save(": tokens of a sample; default: the model's.", "TOKENS")
    method: str | None = _with_save(": how; default: ddp.", choices=("ddp", "fsdp", "lora"))
    precision: str | None = _with_save(
        "; default: auto.", "NAME", choices=("auto", "fp32", "tf32", "fp16", "bf16", "fp8")
    )
    software: str | None = _with_save(
        ": as for recommend; default: eager.",
        choices=("eager", "transformers", "compiled", "tuned"),
    )
    activation_checkpointing: bool | None = _with_save(
        ".", None, "--activation-checkpointing/--no-activation-checkpointing", kind=bool
    )
