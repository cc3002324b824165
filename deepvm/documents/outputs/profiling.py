"""Documents of ``profile``, ``tables list``, ``tables diff`` and ``ckpt bench``."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from deepvm.documents.outputs.performance import Interval

Vms = Annotated[int, "number of VMs"]
Seconds = Annotated[float, "seconds"]


class Machine(TypedDict):
    """The machine that was measured."""

    processor: Annotated[str, "its name"]
    cores: Annotated[int, "of the processor, as the system counts them"]
    memory_bytes: Annotated[int | None, "main memory, bytes, null when unknown"]
    gpus: Annotated[list[str], "names of its GPUs"]
    torch: Annotated[str, "version, empty when it is not installed"]
    cuda: Annotated[str, "version that torch was built for, empty for none"]
    kernel: Annotated[str, "operating system and version"]
    instance_type: Annotated[str, "the provider's name of the VM type, empty when unknown"]


class Trained(TypedDict):
    """What was trained."""

    model: Annotated[str, "name of the model"]
    resolution: Annotated[int, "height and width of images, pixels"]
    batch: Annotated[int, "images of a step on each GPU, or in each process on the CPU"]
    dtype: Annotated[str, "number format, such as float32"]
    optimizer: Annotated[str, "adam or sgd"]


class TrainedOnVms(Trained):
    """What was trained on several VMs, and how it was timed."""

    device: Annotated[str, "cpu or cuda"]
    processes: Annotated[int, "processes on each VM"]
    warmup: Annotated[int, "steps that were not timed"]
    windows: Annotated[int, "timed windows of a run"]
    steps: Annotated[int, "steps of a window"]


class Window(TypedDict):
    """Steps that were timed together."""

    images: Annotated[int, "images of all devices"]
    seconds: Seconds


class Eflops(TypedDict):
    """The training speed of a machine."""

    schema_version: Literal["deepvm.eflops/1"]
    eflops: Annotated[float, "operations per second in training, FLOP/s"]
    images_per_s: Annotated[float, "images a second, median over the windows"]
    spread: Annotated[float, "(fastest - slowest) / median of the windows"]
    workload: Trained
    machine: Machine
    forward_flops: Annotated[int, "operations of the forward pass of one image"]
    device: Annotated[str, "cpu or cuda"]
    processes: Annotated[int, "processes that trained"]
    threads: Annotated[int, "threads of each process"]
    data: Annotated[str, "synthetic, cifar10 or idx"]
    steps: Annotated[int, "steps of a window"]
    warm_up: list[Window]
    windows: list[Window]
    warnings: Annotated[list[str], "reasons to doubt it"]


OneOrMoreEflops = Annotated[
    Eflops | list[Eflops], "The training speed of a machine; a list for several models."
]


class Plan(TypedDict):
    """What was to be measured."""

    sizes: list[Vms]
    repeats: Annotated[int, "runs of each size"]


class Run(TypedDict):
    """One training run, or why it failed."""

    n: Annotated[Vms, "VMs that trained"]
    repeat: Annotated[int, "counts from 1"]
    seconds_per_step: Annotated[list[float], "of the slowest process in each window, seconds"]
    images_per_s: Annotated[float | None, "images a second of all VMs, null for a failed run"]
    failed: Annotated[str | None, "why, null if it did not"]


class Point(TypedDict):
    """The median run of a size."""

    n: Annotated[Vms, "VMs that trained"]
    seconds: Annotated[Seconds, "of a step over n, for the same images at all sizes"]
    speedup: Annotated[
        float | None, "S(n) = seconds(1) / seconds(n), null while n = 1 is not measured"
    ]


class RingParameters(TypedDict):
    """S(n) = n / (1 + c (n-1)/n + l (n-1))."""

    c: Annotated[float, "gradient bytes over bandwidth, in step times of one VM"]
    l: Annotated[float, "latency per hop, in step times of one VM"]  # noqa: E741  as the paper calls it


class BandPoint(TypedDict):
    """The best law at one size, and its 95 % band."""

    n: Annotated[Vms, "VMs that train"]
    low: Annotated[float, "lower end of S(n)"]
    speedup: Annotated[float, "S(n) of the best law"]
    high: Annotated[float, "upper end of S(n)"]


class SpeedupFit(TypedDict):
    """Speed-up curves fitted to measurements."""

    schema_version: Literal["deepvm.fit/1"]
    law: Annotated[str, "the law that fits best: logistic, amdahl, usl or alpha-beta"]
    model: Annotated[str, "the law that fits best; kept for older readers, see law"]
    a: Annotated[float, "logistic: steepness, 1/VM"]
    b: Annotated[float, "logistic: inflection point, VMs"]
    c: Annotated[float, "logistic: speed-up approached for many VMs"]
    ring: Annotated[RingParameters, "alpha-beta"]
    amdahl: Annotated[dict[str, float], "its parameters"]
    usl: Annotated[dict[str, float], "its parameters"]
    mape: Annotated[float, "mean of |fitted / measured - 1| of the best law, as a share"]
    aicc: Annotated[dict[str, float | None], "AICc by law, null without a value"]
    warnings: Annotated[list[str], "reasons to doubt it"]
    band: Annotated[list[BandPoint], "at the measured sizes, and beyond them as far as asked"]


class Cell(TypedDict):
    """All good runs of one size with one batch."""

    n: Annotated[Vms, "VMs that trained"]
    gpus: Annotated[int, "GPUs of all VMs together"]
    batch: Annotated[int, "samples on each GPU"]
    runs: Annotated[int, "good runs"]
    step_s: Annotated[Seconds, "a step, median of the runs' medians"]
    spread: Annotated[float, "slowest less fastest window of all runs, over step_s"]


class Scaling(TypedDict):
    """A measured speed-up curve."""

    schema_version: Literal["deepvm.scaling/1"]
    workload: TrainedOnVms
    hosts: Annotated[list[str], "names of the VMs"]
    local: Annotated[bool, "whether one machine stood for all VMs"]
    plan: Plan
    runs: list[Run]
    points: Annotated[list[Point], "the median of each size"]
    cells: Annotated[list[Cell], "each size with each batch"]
    fit: Annotated[SpeedupFit | None, "null with too few sizes"]
    step_time: Annotated[
        dict[str, Any] | None, "the step-time law fitted to the runs, null with too few sizes"
    ]
    warnings: Annotated[list[str], "reasons to doubt it"]
    machine: Annotated[dict[str, Any], "the first VM, empty before it was asked"]


class Pushes(TypedDict):
    """The times that n senders took."""

    n: Annotated[int, "senders at once, VMs"]
    seconds: Annotated[list[float], "until the whole checkpoint was there, for each push, seconds"]


class Knee(TypedDict):
    """The fitted t(n) = t(1) / min(n, k)."""

    senders: Annotated[float, "k, where t(n) stops falling, VMs"]
    rise: Annotated[float, "t beyond the knee over t at the knee"]
    seconds: Annotated[Seconds, "t(1) of the fit"]
    error: Annotated[float, "root mean square of log(fitted / measured)"]


class Saturation(TypedDict):
    """How many VMs may push to one memory node before one more makes it no faster."""

    schema_version: Literal["deepvm.saturation/1"]
    local: Annotated[bool, "whether one machine stood for all VMs"]
    transport: Annotated[str, "tcp or mpi"]
    checkpoint_bytes: Annotated[int, "pushed by all senders together, bytes"]
    sender_type: Annotated[str, "VM type of the senders, empty when unknown"]
    receiver_type: Annotated[str, "VM type of the receiver, empty when unknown"]
    sender_gbps: Annotated[float | None, "bandwidth of a sender, Gbit/s, null when unknown"]
    receiver_gbps: Annotated[float | None, "bandwidth of the receiver, Gbit/s, null when unknown"]
    gbps_measured: Annotated[list[str], "which of the two were measured here: sender, receiver"]
    times: list[Pushes]
    n_sat_raw: Annotated[
        int | None, "senders at saturation by eq. 14 as it stands, VMs, null when none was seen"
    ]
    n_sat_knee: Annotated[
        int | None, "senders at saturation by the fit, VMs, null when none was seen"
    ]
    knee: Knee
    interval: Annotated[
        list[int | None], "95 % interval of n_sat_knee, VMs, null at or beyond the largest n"
    ]
    warnings: Annotated[list[str], "reasons to doubt it"]
    machine: Annotated[Machine, "the receiver"]


class Law(TypedDict):
    """The step-time law: (T_grad^g + T_sync^g)^(1/g)."""

    grad_fixed: Annotated[Seconds, "gradients on each GPU, whatever the batch"]
    grad_per_sample: Annotated[Seconds, "gradients, for each sample"]
    local_fixed: Annotated[Seconds, "synchronisation of 2 GPUs of one VM"]
    local_per_gpu: Annotated[Seconds, "for each GPU more"]
    network_fixed: Annotated[Seconds, "synchronisation of 2 GPUs of two VMs"]
    network_per_gpu: Annotated[Seconds, "for each GPU more"]
    overlap: Annotated[float, "g: 1 none, 10 nearly whole"]
    straggling: Annotated[float, "d: gradients take K^d times as long on K GPUs"]


class MeasuredTo(TypedDict):
    """The largest cluster that was measured."""

    nodes: Vms
    gpus: Annotated[int, "GPUs of all VMs together"]


class StepPrediction(TypedDict):
    """A step of a cluster."""

    nodes: Annotated[Vms, "as it was asked"]
    gpus: Annotated[int, "GPUs of all VMs together"]
    batch: Annotated[float, "samples on each GPU"]
    step_s: Annotated[Interval, "one step, seconds"]
    throughput: Annotated[Interval, "samples a second of all GPUs"]
    extrapolated: Annotated[bool, "whether it is beyond what was measured"]


class StepTimeFit(TypedDict):
    """The step-time law fitted to measured steps, and what it predicts."""

    schema_version: Literal["deepvm.steptime/1"]
    law: Law
    row_count: Annotated[int, "measured steps"]
    error: Annotated[float, "median of |predicted / measured - 1|"]
    measured_to: MeasuredTo
    predictions: Annotated[list[StepPrediction], "in the order they were asked for"]
    warnings: Annotated[list[str], "what to doubt, the gravest first"]


class MeasuredEntry(TypedDict):
    """A measurement in short."""

    name: Annotated[str, "its name on the command line"]
    kind: Annotated[Literal["eflops", "scaling", "saturation", "steptime"], "what was measured"]
    subject: Annotated[str, "the VM type, or 'sender to receiver'"]
    workload: Annotated[str | None, "what was trained, null for saturation"]
    measured_at: Annotated[str, "ISO 8601, UTC"]
    value: Annotated[str, "the result in words"]


class ListedEntry(MeasuredEntry):
    """A measurement, and whether recommend uses it."""

    used: Annotated[bool, "whether recommend does"]
    why_not: Annotated[str | None, "null if it does"]


class TablesList(TypedDict):
    """What was measured on your own machines."""

    schema_version: Literal["deepvm.tables-list/1"]
    path: Annotated[str | None, "the file of the tables, null when there is none"]
    entries: list[ListedEntry]


class TablesChange(TypedDict):
    """A measurement that changed."""

    name: Annotated[str, "its name on the command line"]
    change: Literal["added", "removed", "changed"]
    old: Annotated[MeasuredEntry | None, "null where it was added"]
    new: Annotated[MeasuredEntry | None, "null where it was removed"]


class TablesDiff(TypedDict):
    """What the last change did to the measured tables."""

    schema_version: Literal["deepvm.tables-diff/1"]
    changed: Annotated[bool, "whether anything did"]
    changes: list[TablesChange]


class CampaignPart(TypedDict):
    """How one document of ``profile all`` was measured."""

    settings: Annotated[dict[str, Any], "options, by name"]
    hosts: Annotated[list[str], "names of the VMs"]
    measured_at: Annotated[str | None, "ISO 8601, UTC, null while it is measured"]


class Campaign(TypedDict):
    """The record of ``profile all --out DIR``: settings.json in that folder."""

    schema_version: Literal["deepvm.profile/1"]
    parts: dict[str, CampaignPart]


class BenchMachine(TypedDict):
    """The machine and the disk that were measured."""

    processor: Annotated[str, "its name"]
    cores: Annotated[int, "of the processor, as the system counts them"]
    threads: Annotated[int, "that torch uses"]
    file_system: Annotated[str, "of the folder"]
    kernel: Annotated[str, "operating system and version"]
    python: Annotated[str, "version"]
    measured_at: Annotated[str, "when it began, UTC"]
    torch: Annotated[str, "version"]


class Method(TypedDict):
    """Medians of one way to save; ratios are over torch.save with fsync."""

    stall_s: Annotated[Seconds, "training waits"]
    durable_s: Annotated[
        Seconds, "until the method's guarantee holds, on an otherwise idle machine"
    ]
    training_s: Annotated[Seconds, "the same while training goes on"]
    extra_s: Annotated[Seconds, "how much longer a loop takes with a checkpoint than without"]
    stall_ratio: Annotated[float, "of stall_s"]
    durable_ratio: Annotated[float, "of durable_s"]
    training_ratio: Annotated[float, "of training_s"]
    extra_ratio: Annotated[float | None, "of extra_s, null where torch.save's is not above 0"]


class NodeBenchMachine(TypedDict):
    """The machine that was measured."""

    processor: Annotated[str, "its name"]
    cores: Annotated[int, "of the processor, as the system counts them"]
    file_system: Annotated[str, "of the folder"]
    kernel: Annotated[str, "operating system and version"]
    python: Annotated[str, "version"]
    measured_at: Annotated[str, "when it began, UTC"]


class NodeBenchLimits(TypedDict):
    """What the machine can do."""

    memory_copy_bytes_s: Annotated[float, "copying memory, one thread, bytes/s"]
    direct_write_bytes_s: Annotated[
        float | None, "writing to the disk by O_DIRECT, bytes/s; null where that fails"
    ]


class NodeBenchRow(TypedDict):
    """So many trainers that send at once; figures are null where that was not measured."""

    trainers: Annotated[int, "training jobs that send"]
    ranks: Annotated[int, "processes of each, which send a share each"]
    bytes: Annotated[int, "size of each one's state, bytes"]
    seconds: Annotated[Seconds | None, "until the node has verified the last one's version"]
    bytes_s: Annotated[float | None, "of all together, bytes/s"]
    plain_1_bytes_s: Annotated[float | None, "the same over one plain TCP connection each"]
    plain_2_bytes_s: Annotated[float | None, "over two each"]
    ratio: Annotated[float | None, "bytes_s over plain_2_bytes_s"]
    fairness: Annotated[
        float | None, "time of the trainer served first over that of the last, median"
    ]
    problem: Annotated[str, "why it was not measured, empty if it was"]


class NodeBench(TypedDict):
    """A memory node on this machine, with trainers that send at once."""

    schema_version: Literal["deepvm.ckpt-bench-node/1"]
    reps: Annotated[int, "rounds that were timed"]
    machine: NodeBenchMachine
    limits: NodeBenchLimits
    rows: list[NodeBenchRow]


class Bench(TypedDict):
    """How long a checkpoint blocks training, for several ways to save."""

    schema_version: Literal["deepvm.ckpt-bench/1"]
    model: Annotated[str, "name of the model"]
    bytes: Annotated[int, "size of its state, bytes"]
    reps: Annotated[int, "rounds that were timed"]
    steps: Annotated[int, "training steps after each save"]
    step_s: Annotated[Seconds, "a step without checkpoints, median"]
    machine: BenchMachine
    methods: Annotated[dict[str, Method], "by name"]
