"""The options of ``deepvm profile``, each declared once. The module is light, for ``--help``."""

from functools import partial
from typing import Any

from deepvm.core.options import again, option
from deepvm.records import MISSING, dataclass

MODELS = ("resnet18", "resnet50", "resnet152", "efficientnet_v2_m")
ALL = "all"
_NAMES = ", ".join(MODELS)

_count = partial(option, metavar="N", kind=int)
_seconds = partial(option, metavar="SECONDS", kind=float)
_models = partial(
    option,
    metavar="NAME",
    help=f"{_NAMES}, {ALL}, or your own module:function; repeatable.",
    complete="complete_profiled_model",
)


@dataclass(frozen=True, kw_only=True)
class EflopsOptions:
    """The training speed of this machine."""

    model: list[str] = _models(["resnet18"])
    batch: int = _count(128, "Images per step on each GPU, or in each process on the CPU.")
    resolution: int = option(32, "Side of the images.", "PIXELS", kind=int)
    windows: int = _count(5, "Timed windows, 3 or more; the result is their median.")
    seconds: float = _seconds(2.0, "Minimum length of a window of eFLOPS.")
    device: str = option("auto", "auto: all GPUs, else the CPU.", choices=("auto", "cpu", "cuda"))
    processes: int | None = _count(None, "DDP processes; default: one per GPU, one on the CPU.")
    dtype: str = option(
        "float32", "Mixed below 32 bits.", choices=("float32", "bfloat16", "float16")
    )
    optimizer: str = option("adam", "Optimizer; the paper's is Adam.", choices=("adam", "sgd"))
    data: str = option("", "Folder of CIFAR-10 or Fashion-MNIST; default: random images.", "DIR")
    timeout: float = _seconds(600, "Abort after so long without progress.")
    save: bool = option(
        False, "Save to your measured tables, which recommend uses.", None, "--save"
    )
    instance_type: str = option("", "Instance type of these machines; needed with --save.", "TYPE")
    force_spread: bool = option(
        False, "Save even eFLOPS whose windows differ by more than half.", None, "--force-spread"
    )


@dataclass(frozen=True, kw_only=True)
class ScalingOptions:
    """How much faster n VMs train than one."""

    hosts: str = option("", "Training VMs, comma-separated.", "NAMES")
    hosts_file: str = option(
        "", "Or a file: one host per line, optionally with slots= and address=.", "FILE"
    )
    local: int = _count(
        0, "Or N processes here: a dry run, no measurement of VMs.", least=0, most=64
    )
    launcher: str = option(
        "ssh",
        "How commands reach a host: ssh, netns (network namespaces), local (all on this machine),"
        " or your own, such as 'ssh -p 2222 {host}' or 'docker exec -i {host}'; it must forward"
        " stdin.",
        "NAME|TEMPLATE",
    )
    python: str = option(
        "", "Python on the hosts; default: python3, with netns and local this one.", "PATH"
    )
    workdir: str = option("", "Working folder on the hosts.", "FOLDER")
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
    resolution: int = again(EflopsOptions, "resolution")
    dtype: str = again(EflopsOptions, "dtype")
    device: str = again(EflopsOptions, "device")
    sizes: str = option("", "Numbers of VMs; default: 1, 2, 4, ... and all hosts.", "N,N,...")
    repeats: int = _count(3, "Runs of each size.")
    warmup: int = _count(10, "Untimed steps before.")
    windows: int = _count(5, "Timed windows per run.")
    steps: int = _count(20, "Steps of a window.")
    start_timeout: float = _seconds(180.0, "Time limit until all hosts have connected.")
    timeout: float = _seconds(1800.0, "Time limit of one run.")
    out: str = option(
        "", "Updated after each run; the same command resumes an interrupted one.", "FILE"
    )
    save: bool = again(EflopsOptions, "save")
    instance_type: str = again(EflopsOptions, "instance_type")
    force_local: bool = option(
        False, "Save even if the VMs were processes on one machine.", None, "--force-local"
    )


@dataclass(frozen=True, kw_only=True)
class SaturationOptions:
    """How many VMs may push to one memory node at once."""

    receiver: str = option(MISSING, "The memory node: the host that all push to.", "HOST")
    senders: str = option("", "Hosts that push, comma-separated.", "NAMES")
    senders_file: str = again(ScalingOptions, "hosts_file")
    launcher: str = again(ScalingOptions, "launcher")
    python: str = again(ScalingOptions, "python")
    workdir: str = again(ScalingOptions, "workdir")
    transport: Any = option(
        "tcp", "Network transport; mpi needs the extra mpi on all hosts.", choices=("tcp", "mpi")
    )
    checkpoint_size: str = option(
        "300MB", "Size that all senders push together: 300MB, 0.3GB, 512MiB.", "SIZE"
    )
    repeats: int = _count(5, "Pushes for each number of senders.")
    seed: int = _count(0, "Seed of the order of the pushes and of the confidence interval.")
    start_timeout: float = again(ScalingOptions, "start_timeout")
    timeout: float = _seconds(600.0, "Time limit of one push.")
    receiver_address: str = option(
        "", "The receiver's address (TCP); default: detected.", "ADDRESS"
    )
    interface: str = option(
        "", "Only this interface or network (MPI): eth0 or 10.0.0.0/16.", "NAME|NETWORK"
    )
    sender_type: str = option("", "Instance type of the senders.", "TYPE")
    receiver_type: str = option("", "Instance type of the memory node.", "TYPE")
    sender_gbps: float | None = option(
        None, "Bandwidth of a sender; default: measured.", "GBIT/S", kind=float
    )
    receiver_gbps: float | None = option(
        None, "Bandwidth of the receiver; default: measured.", "GBIT/S", kind=float
    )


@dataclass(frozen=True, kw_only=True)
class CampaignOptions:
    """The options of ``deepvm profile all``."""

    hosts: str = again(ScalingOptions, "hosts")
    hosts_file: str = again(ScalingOptions, "hosts_file")
    receiver: str = option("", "Memory node, to measure its saturation.", "HOST")
    instance_type: str = option(
        "", "Type of the training VMs; default: this machine's (EC2 Nitro).", "TYPE"
    )
    receiver_type: str = again(SaturationOptions, "receiver_type")
    launcher: str = again(ScalingOptions, "launcher")
    python: str = again(ScalingOptions, "python")
    workdir: str = again(ScalingOptions, "workdir")
    model: list[str] = _models(["resnet50"])
    batch: int = again(EflopsOptions, "batch")
    resolution: int = again(EflopsOptions, "resolution")
    device: str = again(EflopsOptions, "device")
    sizes: str = again(ScalingOptions, "sizes")
    repeats: int = _count(3, "Runs of each size, and pushes for each number of senders.")
    windows: int = _count(5, "Timed windows, of eFLOPS and of each scaling run.")
    seconds: float = again(EflopsOptions, "seconds")
    warmup: int = again(ScalingOptions, "warmup")
    steps: int = again(ScalingOptions, "steps")
    checkpoint_size: str = again(SaturationOptions, "checkpoint_size")
    transport: Any = again(SaturationOptions, "transport")


@dataclass(frozen=True, kw_only=True)
class StepsOptions:
    """The workload that ``profile fit --law step-time --save`` saves, as in ``recommend``."""

    save: bool = option(
        False, "Save the law, by which recommend plans. With --law step-time.", None, "--save"
    )
    instance_type: str = option("", "With --save: the type that was measured.", "TYPE")
    model: str = option("", "With --save: what was trained, as for recommend.", "NAME|FILE")
    params: str | None = option(
        None, "Instead: a language model of this size, such as 7B.", "COUNT"
    )
    seq: str | None = option(
        None, "With --save: tokens of a sample; default: the model's.", "TOKENS"
    )
    method: str | None = option(
        None, "With --save: how; default: ddp.", choices=("ddp", "fsdp", "lora")
    )
    precision: str | None = option(
        None,
        "With --save; default: auto.",
        "NAME",
        choices=("auto", "fp32", "tf32", "fp16", "bf16", "fp8"),
    )
    software: str | None = option(
        None,
        "With --save: as for recommend; default: eager.",
        choices=("eager", "transformers", "compiled", "tuned"),
    )
    activation_checkpointing: bool | None = option(
        None,
        "With --save.",
        None,
        "--activation-checkpointing/--no-activation-checkpointing",
        kind=bool,
    )
