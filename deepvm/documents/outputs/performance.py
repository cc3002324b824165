"""Documents of ``gpus``, ``performance`` and ``reproduce``."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from deepvm.documents.build import At

Unit = Annotated[str, "what throughput counts, such as tokens/s"]


class Interval(TypedDict):
    """A figure with its doubt: an 80 % interval."""

    low: float
    """lower end"""
    value: float
    """the figure"""
    high: float
    """upper end"""


class Prediction(TypedDict):
    """How fast GPUs train a model."""

    schema_version: Literal["deepvm.performance/1"]
    unit: Annotated[Unit, At("workload.units")]
    throughput: Annotated[Interval, At("interval")]
    """of all GPUs together, in unit"""
    per_gpu: Annotated[Interval, At(lambda speed: speed.interval.scaled(1 / speed.gpu_count))]
    """of each GPU, in unit"""
    step_s: Annotated[Interval, At("step_interval")]
    """one step, seconds"""
    mfu: float
    """model FLOP utilisation, 0 to 1"""
    source: Literal["measured", "published", "derived"]
    """where the speed comes from"""
    measured: str | None
    """where, when and how often you measured it, null where you did not"""
    doubts: list[str]
    """what to doubt, the gravest first"""
    fits: Annotated[bool, At(lambda speed: bool(speed.fits[0]))]
    """whether the model fits into the GPUs' memory"""
    model: Annotated[str, At("workload.model.name")]
    """name of the model"""
    method: Annotated[str, At("workload.method")]
    """ddp, fsdp or lora"""
    precision: str
    """number format of a step"""
    sequence: Annotated[int, At("workload.model.sequence")]
    """tokens of a sample, 1 where samples are not sequences"""
    gpu_name: Annotated[str, At("machine.accelerator.name")]
    """GPU model, such as H100"""
    gpu_count: int
    """GPUs of all VMs together"""
    vm_count: Annotated[int, At(lambda speed: int(speed.vms[0]))]
    """number of VMs"""
    batch_per_gpu: Annotated[float, At(lambda speed: speed.workload.batch_on(speed.gpu_count))]
    """samples of a step on each GPU"""
    micro_batch: Annotated[float, At(lambda speed: speed.micro_batch[0])]
    """of them computed at once"""
    activation_checkpointing: Annotated[bool, At(lambda speed: bool(speed.checkpointing[0]))]
    """whether activations are computed again in the backward pass"""
    checkpoint_bytes: Annotated[int, At("workload.saved_bytes")]
    """size of one checkpoint, bytes"""


class Offer(TypedDict):
    """The cheapest VM type of one market."""

    instance_type: Annotated[str, At("name")]
    """the provider's name of the VM type"""
    usd_per_hour: Annotated[float, At("price")]
    """price of one VM, US dollars an hour"""


class Gpu(TypedDict):
    """A GPU model in VMs of one size."""

    gpu_name: Annotated[str, At("name")]
    """GPU model, such as T4"""
    gpus_per_vm: Annotated[int, At("count")]
    """GPUs in one VM"""
    gpu_memory_gib: Annotated[float | None, At("memory_gib")]
    """memory of each GPU in GiB, null when unknown"""
    spot: Annotated[Offer | None, At("spot_offer")]
    """the cheapest as spot VM, null if not sold"""
    on_demand: Annotated[Offer | None, At("on_demand_offer")]
    """the cheapest on demand, null if not sold"""
    throughput: Annotated[Interval | None, At("speed")]
    """of one VM, in unit, null when unknown or if the model does not fit"""
    waits_for_vcpus: Annotated[bool, At("waits", after="source")]
    """whether the GPUs may wait for the VM's vCPUs to read samples"""
    units_per_usd: float | None
    """units that a US dollar trains at the lowest price, null when unknown"""
    source: str | None
    """measured, published or derived, null without a speed"""
    reason: Annotated[str | None, At("why")]
    """why there is no speed, null when there is one"""


class Gpus(TypedDict):
    """What can be rented to train a model."""

    schema_version: Literal["deepvm.gpus/1"]
    catalog: Annotated[str, At("catalog.name")]
    """name of the catalog"""
    region: Annotated[str, At("catalog.region")]
    """region of the prices"""
    prices_as_of: Annotated[str | None, At("catalog.provenance.prices_as_of")]
    """date of the on-demand prices, ISO 8601, null when unknown"""
    model: Annotated[str, At("workload.model.name")]
    """name of the model"""
    unit: Annotated[Unit, At("workload.units")]
    gpus: Annotated[list[Gpu], At("rows")]
    """the most work for a US dollar first"""


class ModelPreset(TypedDict):
    """A model that can be named."""

    model: Annotated[str, At("name")]
    """its name"""
    family: str
    """what it is built of"""
    parameters: Annotated[float, At("parameters", exact=True)]
    """number of parameters"""
    unit: str
    """what throughput counts: tokens, images or samples a second"""
    sequence: int
    """tokens of a sample, 1 where samples are not sequences"""
    forward_flop: Annotated[float, At("flop")]
    """operations of the forward pass of one sample"""
    batch_per_gpu: Annotated[int, At("batch")]
    """samples of a step on each GPU unless the user says"""
    source: str
    """where the figures come from, in words"""


class ModelFile(TypedDict):
    """A user's model: parameters, and layers and hidden or forward_flop and activation_bytes."""

    name: str
    """its name; default: the file's"""
    family: str
    """what it is built of; default: transformer with layers, else convolution"""
    unit: Literal["tokens", "images", "samples"]
    """what throughput counts"""
    parameters: float
    """number of parameters"""
    sequence: int
    """tokens of a sample"""
    layers: int
    """layers of a transformer"""
    hidden: int
    """hidden size of a transformer"""
    vocabulary: int
    """words that logits are over, 0 for none"""
    gated: bool
    """whether the MLP is SwiGLU or GeGLU; default: with tokens"""
    forward_flop: float
    """operations of the forward pass of one sample"""
    activation_bytes: float
    """activations that the backward pass of one sample needs, bytes in 16 bits"""
    traffic_bytes: float
    """read and written of the GPU's memory for one sample, bytes in 16 bits"""
    reads_per_vcpu: float
    """samples a second that one vCPU reads, decodes and prepares"""
    batch: int
    """samples of a step on each GPU"""
    source: str
    """where the figures come from"""


class Models(TypedDict):
    """The models that can be named."""

    schema_version: Literal["deepvm.models/1"]
    models: list[ModelPreset]


class Errors(TypedDict):
    """How far predictions of published runs are off; shares, not per cent."""

    name: str
    """the GPU, model or source"""
    runs: int
    """published runs"""
    median_error: Annotated[float, At("median")]
    """median of |predicted / published - 1|"""
    p90_error: Annotated[float, At("p90")]
    """90th percentile of the same"""
    coverage: float
    """share of the runs inside the 80 % interval, 0 to 1"""
    half_width: Annotated[float, At("width")]
    """half width of the interval as a share of the value, median"""


class Shares(TypedDict):
    """A range of shares."""

    min: float
    """the least, 0 to 1"""
    max: float
    """the most, 0 to 1"""


class Promise(TypedDict):
    """What is promised of predictions."""

    median_error: float
    """the most, for each GPU"""
    coverage: Shares
    """share of all runs inside the 80 % interval"""


class PredictionCheck(TypedDict):
    """Each published run predicted from all others."""

    schema_version: Literal["deepvm.performance-check/1"]
    promised: Promise
    kept: bool
    """whether it is as promised"""
    gpus: list[Errors]
    """by GPU"""
    models: list[Errors]
    """by model"""
    sources: list[Errors]
    """by source"""
    unseen: list[Errors]
    """each model predicted without any run of it"""
    total: Errors
    """over all runs"""


class Tolerance(TypedDict):
    """How far a figure may be off and still be close."""

    relative: float | None
    """as a share of the published value, null if in the printed unit"""
    absolute: float | None
    """in the printed unit, seconds for times, null if relative"""
    reason: str


# `from` is a keyword of Python.
_From = TypedDict(
    "_From",
    {
        "from": Annotated[
            str | None,
            At("figure.source", after="published"),
            "where in the paper, null where the part says so",
        ]
    },
)


class Figure(_From):
    """A published figure and ours."""

    name: Annotated[str, At("figure.name")]
    published: Annotated[str, At("figure.published")]
    """as printed"""
    published_value: Annotated[float | None, At("published.value")]
    """as a number in the printed unit, seconds for times, null for a word"""
    ours: float | str | None
    """computed again, in the same unit"""
    ours_printed: Annotated[str, At("shown")]
    """the same with the printed digits"""
    difference: float | None
    """ours - published, in the same unit, null for words"""
    relative_difference: Annotated[float | None, At("relative")]
    """the same as a share of the published value, null for words and at 0"""
    tolerance: Annotated[Tolerance | None, At("figure.tolerance")]
    """null where the figure must be the same"""
    verdict: Literal["same", "close", "differs"]
    expected: bool
    """whether this verdict is expected"""
    why: str | None
    """why it differs, null where that is not known"""


class PaperPart(TypedDict):
    """A table or figure of a paper."""

    id: str
    title: str
    where: str
    """section and page"""
    stated_by: str
    """whose figures they are"""
    figures: list[Figure]


class Paper(TypedDict):
    """A paper, computed again."""

    paper: str
    """its name on the command line"""
    title: str
    note: str
    counts: dict[str, int]
    """figures by verdict"""
    unexpected: int
    """figures whose verdict is not expected"""
    parts: list[PaperPart]


class Reproduction(TypedDict):
    """Figures of the papers, computed again."""

    schema_version: Literal["deepvm.reproduce/1"]
    papers: list[Paper]
