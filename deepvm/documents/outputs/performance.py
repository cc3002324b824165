"""Documents of ``gpus``, ``performance`` and ``reproduce``."""

from __future__ import annotations

from typing import Annotated, Literal

from deepvm.documents.document import Document, at

Unit = Annotated[str, "what throughput counts, such as tokens/s"]


class Interval(Document):
    """A figure with its doubt: an 80 % interval."""

    low: float
    """lower end"""
    value: float
    """the figure"""
    high: float
    """upper end"""


class Prediction(Document, schema_version="deepvm.performance/1"):
    """How fast GPUs train a model."""

    unit: Unit = at("workload.units")
    throughput: Interval = at("interval")
    """of all GPUs together, in unit"""
    per_gpu: Interval = at(lambda speed: speed.interval.scaled(1 / speed.gpu_count))
    """of each GPU, in unit"""
    step_s: Interval = at("step_interval")
    """one step, seconds"""
    mfu: float
    """model FLOP utilisation, 0 to 1"""
    source: Literal["measured", "published", "derived"]
    """where the speed comes from"""
    measured: str | None
    """where, when and how often you measured it, null where you did not"""
    doubts: list[str]
    """what to doubt, the gravest first"""
    fits: bool = at("fits.0")
    """whether the model fits into the GPUs' memory"""
    model: str = at("workload.model.name")
    """name of the model"""
    method: str = at("workload.method")
    """ddp, fsdp or lora"""
    precision: str
    """number format of a step"""
    sequence: int = at("workload.model.sequence")
    """tokens of a sample, 1 where samples are not sequences"""
    gpu_name: str = at("machine.accelerator.name")
    """GPU model, such as H100"""
    gpu_count: int
    """GPUs of all VMs together"""
    vm_count: int = at(lambda speed: int(speed.vms[0]))
    """number of VMs"""
    batch_per_gpu: float = at(lambda speed: speed.workload.batch_on(speed.gpu_count))
    """samples of a step on each GPU"""
    micro_batch: float = at("micro_batch.0")
    """of them computed at once"""
    activation_checkpointing: bool = at("checkpointing.0")
    """whether activations are computed again in the backward pass"""
    checkpoint_bytes: int = at("workload.saved_bytes")
    """size of one checkpoint, bytes"""


class Offer(Document):
    """The cheapest VM type of one market."""

    instance_type: str = at("name")
    """the provider's name of the VM type"""
    usd_per_hour: float = at("price")
    """price of one VM, US dollars an hour"""


class Gpu(Document):
    """A GPU model in VMs of one size."""

    gpu_name: str = at("name")
    """GPU model, such as T4"""
    gpus_per_vm: int = at("count")
    """GPUs in one VM"""
    gpu_memory_gib: float | None = at("memory_gib")
    """memory of each GPU in GiB, null when unknown"""
    spot: Offer | None = at("spot_offer")
    """the cheapest as spot VM, null if not sold"""
    on_demand: Offer | None = at("on_demand_offer")
    """the cheapest on demand, null if not sold"""
    throughput: Interval | None = at("speed")
    """of one VM, in unit, null when unknown or if the model does not fit"""
    waits_for_vcpus: bool = at("waits", after="source")
    """whether the GPUs may wait for the VM's vCPUs to read samples"""
    units_per_usd: float | None
    """units that a US dollar trains at the lowest price, null when unknown"""
    source: str | None
    """measured, published or derived, null without a speed"""
    reason: str | None = at("why")
    """why there is no speed, null when there is one"""


class Gpus(Document, schema_version="deepvm.gpus/1"):
    """What can be rented to train a model."""

    catalog: str = at("catalog.name")
    """name of the catalog"""
    region: str = at("catalog.region")
    """region of the prices"""
    prices_as_of: str | None = at("catalog.provenance.prices_as_of")
    """date of the on-demand prices, ISO 8601, null when unknown"""
    model: str = at("workload.model.name")
    """name of the model"""
    unit: Unit = at("workload.units")
    gpus: list[Gpu] = at("rows")
    """the most work for a US dollar first"""


class ModelPreset(Document):
    """A model that can be named."""

    model: str = at("name")
    """its name"""
    family: str
    """what it is built of"""
    parameters: float = at(exact=True)
    """number of parameters"""
    unit: str
    """what throughput counts: tokens, images or samples a second"""
    sequence: int
    """tokens of a sample, 1 where samples are not sequences"""
    forward_flop: float = at("flop")
    """operations of the forward pass of one sample"""
    batch_per_gpu: int = at("batch")
    """samples of a step on each GPU unless the user says"""
    source: str
    """where the figures come from, in words"""


class ModelFile(Document):
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


class Models(Document, schema_version="deepvm.models/1"):
    """The models that can be named."""

    models: list[ModelPreset]


class Errors(Document):
    """How far predictions of published runs are off; shares, not per cent."""

    name: str
    """the GPU, model or source"""
    runs: int
    """published runs"""
    median_error: float = at("median")
    """median of |predicted / published - 1|"""
    p90_error: float = at("p90")
    """90th percentile of the same"""
    coverage: float
    """share of the runs inside the 80 % interval, 0 to 1"""
    half_width: float = at("width")
    """half width of the interval as a share of the value, median"""


class Shares(Document):
    """A range of shares."""

    min: float
    """the least, 0 to 1"""
    max: float
    """the most, 0 to 1"""


class Promise(Document):
    """What is promised of predictions."""

    median_error: float
    """the most, for each GPU"""
    coverage: Shares
    """share of all runs inside the 80 % interval"""


class PredictionCheck(Document, schema_version="deepvm.performance-check/1"):
    """Each published run predicted from all others."""

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


class Tolerance(Document):
    """How far a figure may be off and still be close."""

    relative: float | None
    """as a share of the published value, null if in the printed unit"""
    absolute: float | None
    """in the printed unit, seconds for times, null if relative"""
    reason: str


class Figure(Document):
    """A published figure and ours."""

    from_: str | None = at("source", after="published")
    """where in the paper, null where the part says so"""
    name: str
    published: str
    """as printed"""
    published_value: float | None = at("printed.value")
    """as a number in the printed unit, seconds for times, null for a word"""
    ours: float | str | None
    """computed again, in the same unit"""
    ours_printed: str = at("shown")
    """the same with the printed digits"""
    difference: float | None
    """ours - published, in the same unit, null for words"""
    relative_difference: float | None = at("relative")
    """the same as a share of the published value, null for words and at 0"""
    tolerance: Tolerance | None
    """null where the figure must be the same"""
    verdict: Literal["same", "close", "differs"]
    expected: bool
    """whether this verdict is expected"""
    why: str | None
    """why it differs, null where that is not known"""


class PaperPart(Document):
    """A table or figure of a paper."""

    id: str
    title: str
    where: str
    """section and page"""
    stated_by: str
    """whose figures they are"""
    figures: list[Figure]


class Paper(Document):
    """A paper, computed again."""

    paper: str = at("name")
    """its name on the command line"""
    title: str
    note: str
    counts: dict[str, int]
    """figures by verdict"""
    unexpected: int = at(lambda paper: len(paper.unexpected))
    """figures whose verdict is not expected"""
    parts: list[PaperPart] = at("shown_parts")


class Reproduction(Document, schema_version="deepvm.reproduce/1"):
    """Figures of the papers, computed again."""

    papers: list[Paper]
