"""Documents of ``profile``, ``tables list``, ``tables diff`` and ``ckpt bench``."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from deepvm.documents.document import Document, at
from deepvm.documents.outputs.performance import Interval

Vms = Annotated[int, "number of VMs"]
Seconds = Annotated[float, "seconds"]


class Machine(TypedDict):
    """The machine that was measured."""

    processor: str
    """its name"""
    cores: int
    """of the processor, as the system counts them"""
    memory_bytes: int | None
    """main memory, bytes, null when unknown"""
    gpus: list[str]
    """names of its GPUs"""
    torch: str
    """version, empty when it is not installed"""
    cuda: str
    """version that torch was built for, empty for none"""
    kernel: str
    """operating system and version"""
    instance_type: str
    """the provider's name of the VM type, empty when unknown"""


class Trained(Document):
    """What was trained."""

    model: str
    """name of the model"""
    resolution: int
    """height and width of images, pixels"""
    batch: int
    """images of a step on each GPU, or in each process on the CPU"""
    dtype: str
    """number format, such as float32"""
    optimizer: str
    """adam or sgd"""


class TrainedOnVms(Trained):
    """What was trained on several VMs, and how it was timed."""

    device: str
    """cpu or cuda"""
    processes: int
    """processes on each VM"""
    warmup: int
    """steps that were not timed"""
    windows: int
    """timed windows of a run"""
    steps: int
    """steps of a window"""


class Window(Document):
    """Steps that were timed together."""

    images: int
    """images of all devices"""
    seconds: Seconds


class Eflops(Document, schema_version="deepvm.eflops/1"):
    """The training speed of a machine."""

    eflops: float
    """operations per second in training, FLOP/s"""
    images_per_s: float
    """images a second, median over the windows"""
    spread: float
    """(fastest - slowest) / median of the windows"""
    workload: Trained
    machine: Machine
    forward_flops: int
    """operations of the forward pass of one image"""
    device: str
    """cpu or cuda"""
    processes: int
    """processes that trained"""
    threads: int
    """threads of each process"""
    data: str
    """synthetic, cifar10 or idx"""
    steps: int
    """steps of a window"""
    warm_up: list[Window]
    windows: list[Window]
    warnings: list[str]
    """reasons to doubt it"""


OneOrMoreEflops = Annotated[
    Eflops | list[Eflops], "The training speed of a machine; a list for several models."
]


class Plan(Document):
    """What was to be measured."""

    sizes: list[Vms]
    repeats: int
    """runs of each size"""


class Run(Document):
    """One training run, or why it failed."""

    n: Vms
    """VMs that trained"""
    repeat: int
    """counts from 1"""
    seconds_per_step: list[float]
    """of the slowest process in each window, seconds"""
    images_per_s: float | None
    """images a second of all VMs, null for a failed run"""
    failed: str | None
    """why, null if it did not"""


class Point(Document):
    """The median run of a size."""

    n: Vms
    """VMs that trained"""
    seconds: Seconds
    """of a step over n, for the same images at all sizes"""
    speedup: float | None
    """S(n) = seconds(1) / seconds(n), null while n = 1 is not measured"""


class RingParameters(Document):
    """S(n) = n / (1 + c (n-1)/n + l (n-1))."""

    c: float
    """gradient bytes over bandwidth, in step times of one VM"""
    l: float  # noqa: E741  as the paper calls it
    """latency per hop, in step times of one VM"""


class BandPoint(Document):
    """The best law at one size, and its 95 % band."""

    n: Vms
    """VMs that train"""
    low: float
    """lower end of S(n)"""
    speedup: float
    """S(n) of the best law"""
    high: float
    """upper end of S(n)"""


class SpeedupFit(Document, schema_version="deepvm.fit/1"):
    """Speed-up curves fitted to measurements."""

    law: str
    """the law that fits best: logistic, amdahl, usl or alpha-beta"""
    model: str
    """the law that fits best; kept for older readers, see law"""
    a: float
    """logistic: steepness, 1/VM"""
    b: float
    """logistic: inflection point, VMs"""
    c: float
    """logistic: speed-up approached for many VMs"""
    ring: RingParameters
    """alpha-beta"""
    amdahl: dict[str, float]
    """its parameters"""
    usl: dict[str, float]
    """its parameters"""
    mape: float
    """mean of |fitted / measured - 1| of the best law, as a share"""
    aicc: dict[str, float | None]
    """AICc by law, null without a value"""
    warnings: list[str]
    """reasons to doubt it"""
    band: list[BandPoint]
    """at the measured sizes, and beyond them as far as asked"""


class Cell(Document):
    """All good runs of one size with one batch."""

    n: Vms
    """VMs that trained"""
    gpus: int
    """GPUs of all VMs together"""
    batch: int
    """samples on each GPU"""
    runs: int
    """good runs"""
    step_s: Seconds
    """a step, median of the runs' medians"""
    spread: float
    """slowest less fastest window of all runs, over step_s"""


class Scaling(Document, schema_version="deepvm.scaling/1"):
    """A measured speed-up curve."""

    workload: TrainedOnVms
    hosts: list[str]
    """names of the VMs"""
    local: bool
    """whether one machine stood for all VMs"""
    plan: Plan
    runs: list[Run]
    points: list[Point]
    """the median of each size"""
    cells: list[Cell]
    """each size with each batch"""
    fit: SpeedupFit | None
    """null with too few sizes"""
    step_time: dict[str, Any] | None
    """the step-time law fitted to the runs, null with too few sizes"""
    warnings: list[str]
    """reasons to doubt it"""
    machine: dict[str, Any]
    """the first VM, empty before it was asked"""


class Pushes(Document):
    """The times that n senders took."""

    n: int
    """senders at once, VMs"""
    seconds: list[float]
    """until the whole checkpoint was there, for each push, seconds"""


class Knee(Document):
    """The fitted t(n) = t(1) / min(n, k)."""

    senders: float
    """k, where t(n) stops falling, VMs"""
    rise: float
    """t beyond the knee over t at the knee"""
    seconds: Seconds
    """t(1) of the fit"""
    error: float
    """root mean square of log(fitted / measured)"""


class Saturation(Document, schema_version="deepvm.saturation/1"):
    """How many VMs may push to one memory node before one more makes it no faster."""

    local: bool
    """whether one machine stood for all VMs"""
    transport: str = at("setup.transport")
    """tcp or mpi"""
    checkpoint_bytes: int = at("setup.checkpoint_bytes")
    """pushed by all senders together, bytes"""
    sender_type: str = at("setup.sender_type")
    """VM type of the senders, empty when unknown"""
    receiver_type: str = at("setup.receiver_type")
    """VM type of the receiver, empty when unknown"""
    sender_gbps: float | None
    """bandwidth of a sender, Gbit/s, null when unknown"""
    receiver_gbps: float | None
    """bandwidth of the receiver, Gbit/s, null when unknown"""
    gbps_measured: list[str] = at("measured")
    """which of the two were measured here: sender, receiver"""
    times: list[Pushes] = at(
        lambda found: [{"n": n, "seconds": own} for n, own in sorted(found.times.items())]
    )
    n_sat_raw: int | None = at("raw")
    """senders at saturation by eq. 14 as it stands, VMs, null when none was seen"""
    n_sat_knee: int | None = at("knee.n_sat")
    """senders at saturation by the fit, VMs, null when none was seen"""
    knee: Knee
    interval: list[int | None] = at(lambda found: [found.knee.low, found.knee.high])
    """95 % interval of n_sat_knee, VMs, null at or beyond the largest n"""
    warnings: list[str]
    """reasons to doubt it"""
    machine: Machine = at(exact=True)
    """the receiver"""


class Law(Document):
    """The step-time law: (T_grad^g + T_sync^g)^(1/g)."""

    grad_fixed: Seconds
    """gradients on each GPU, for any batch"""
    grad_per_sample: Seconds
    """gradients, for each sample"""
    local_fixed: Seconds
    """synchronisation of 2 GPUs of one VM"""
    local_per_gpu: Seconds
    """for each GPU more"""
    network_fixed: Seconds
    """synchronisation of 2 GPUs of two VMs"""
    network_per_gpu: Seconds
    """for each GPU more"""
    overlap: float
    """g: 1 none, 10 nearly whole"""
    straggling: float
    """d: gradients take K^d times as long on K GPUs"""


class MeasuredTo(Document):
    """The largest cluster that was measured."""

    nodes: Vms = at(lambda measured: measured.nodes[-1])
    gpus: int = at("gpus.1")
    """GPUs of all VMs together"""


class StepPrediction(Document):
    """A step of a cluster."""

    nodes: Vms = at("asked.nodes")
    """as it was asked"""
    gpus: int = at("asked.gpus")
    """GPUs of all VMs together"""
    batch: float = at("asked.batch")
    """samples on each GPU"""
    step_s: Interval
    """one step, seconds"""
    throughput: Interval
    """samples a second of all GPUs"""
    extrapolated: bool
    """whether it is beyond what was measured"""


class StepTimeFit(Document, schema_version="deepvm.steptime/1"):
    """The step-time law fitted to measured steps, and what it predicts."""

    law: Law = at("fitted.law")
    row_count: int = at(lambda fit: len(fit.steps))
    """measured steps"""
    error: float = at("fitted.error")
    """median of |predicted / measured - 1|"""
    measured_to: MeasuredTo = at("measured")
    predictions: list[StepPrediction]
    """in the order they were asked for"""
    warnings: list[str]
    """what to doubt, the gravest first"""


class MeasuredEntry(Document):
    """A measurement in short."""

    name: str
    """its name on the command line"""
    kind: Literal["eflops", "scaling", "saturation", "steptime"]
    """what was measured"""
    subject: str
    """the VM type, or 'sender to receiver'"""
    workload: str | None
    """what was trained, null for saturation"""
    measured_at: str
    """ISO 8601, UTC"""
    value: str
    """the result in words"""


class ListedEntry(MeasuredEntry):
    """A measurement, and whether recommend uses it."""

    used: bool
    """whether recommend does"""
    why_not: str | None
    """null if it does"""


class TablesList(Document, schema_version="deepvm.tables-list/1"):
    """What was measured on your own machines."""

    path: str | None
    """the file of the tables, null when there is none"""
    entries: list[ListedEntry]


class TablesChange(Document):
    """A measurement that changed."""

    name: str
    """its name on the command line"""
    change: Literal["added", "removed", "changed"]
    old: MeasuredEntry | None
    """null where it was added"""
    new: MeasuredEntry | None
    """null where it was removed"""


class TablesDiff(Document, schema_version="deepvm.tables-diff/1"):
    """What the last change did to the measured tables."""

    changed: bool
    """whether anything did"""
    changes: list[TablesChange]


class CampaignPart(Document):
    """How one document of ``profile all`` was measured."""

    settings: dict[str, Any]
    """options, by name"""
    hosts: list[str]
    """names of the VMs"""
    measured_at: str | None
    """ISO 8601, UTC, null while it is measured"""


class Campaign(Document, schema_version="deepvm.profile/1"):
    """The record of ``profile all --out DIR``: settings.json in that folder."""

    parts: dict[str, CampaignPart]


class BenchMachine(Document):
    """The machine and the disk that were measured."""

    processor: str
    """its name"""
    cores: int
    """of the processor, as the system counts them"""
    threads: int
    """that torch uses"""
    file_system: str
    """of the folder"""
    kernel: str
    """operating system and version"""
    python: str
    """version"""
    measured_at: str
    """when it began, UTC"""
    torch: str
    """version"""


class Method(Document):
    """Medians of one way to save; ratios are over torch.save with fsync."""

    stall_s: Seconds
    """training waits"""
    durable_s: Seconds
    """until the method's guarantee holds, on an otherwise idle machine"""
    training_s: Seconds
    """the same while training continues"""
    extra_s: Seconds
    """how much longer a loop takes with a checkpoint than without"""
    stall_ratio: float
    """of stall_s"""
    durable_ratio: float
    """of durable_s"""
    training_ratio: float
    """of training_s"""
    extra_ratio: float | None
    """of extra_s, null where torch.save's is not above 0"""


class NodeBenchMachine(Document):
    """The machine that was measured."""

    processor: str
    """its name"""
    cores: int
    """of the processor, as the system counts them"""
    file_system: str
    """of the folder"""
    kernel: str
    """operating system and version"""
    python: str
    """version"""
    measured_at: str
    """when it began, UTC"""


class NodeBenchLimits(Document):
    """What the machine can do."""

    memory_copy_bytes_s: float
    """copying memory, one thread, bytes/s"""
    direct_write_bytes_s: float | None
    """writing to the disk by O_DIRECT, bytes/s; null where that fails"""


class NodeBenchRow(Document):
    """So many trainers that send at once; figures are null where that was not measured."""

    trainers: int
    """training jobs that send"""
    ranks: int
    """processes of each, which send a share each"""
    bytes: int
    """size of each one's state, bytes"""
    seconds: Seconds | None
    """until the node has verified the last one's version"""
    bytes_s: float | None
    """of all together, bytes/s"""
    plain_1_bytes_s: float | None
    """the same over one plain TCP connection each"""
    plain_2_bytes_s: float | None
    """over two each"""
    ratio: float | None
    """bytes_s over plain_2_bytes_s"""
    fairness: float | None
    """time of the trainer served first over that of the last, median"""
    problem: str
    """why it was not measured, empty if it was"""


class NodeBench(Document, schema_version="deepvm.ckpt-bench-node/1"):
    """A memory node on this machine, with trainers that send at once."""

    reps: int
    """rounds that were timed"""
    machine: NodeBenchMachine
    limits: NodeBenchLimits
    rows: list[NodeBenchRow]


class Bench(Document, schema_version="deepvm.ckpt-bench/1"):
    """How long a checkpoint blocks training, for several ways to save."""

    model: str
    """name of the model"""
    bytes: int
    """size of its state, bytes"""
    reps: int
    """rounds that were timed"""
    steps: int
    """training steps after each save"""
    step_s: Seconds
    """a step without checkpoints, median"""
    machine: BenchMachine
    methods: dict[str, Method]
    """by name"""
