"""Documents and files of ``deepvm lab``."""

from __future__ import annotations

from math import inf
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Len, Lt
from typing_extensions import TypedDict  # of which pydantic makes a validator

from deepvm.documents.build import With
from deepvm.documents.document import Document, at

Count = Annotated[int, Ge(0)]
Positive = Annotated[int, Ge(1)]
Time = Annotated[float, Gt(-inf), Lt(inf)]
Seconds = Annotated[float, Ge(0), Lt(inf)]
Worlds = Annotated[list[Annotated[list[Count], Len(2, 2)]], Len(1)]

Verdict = Literal["pass", "fail"]
MEANS = (
    "restarts",
    "wall_s",
    "compute_s",
    "repeated_s",
    "snapshot_s",
    "write_s",
    "background_s",
    "drain_s",
    "stall_s",
    "checkpoints",
    "skipped",
    "detect_s",
    "restart_s",
    "restore_s",
    "replay_s",
    "loss_difference",
)
"""What a variant has means of, over its runs that pass all gates."""
_ROUNDED = at(digits=6)
"""To microseconds, and what has no unit alike."""


class _NoRuns:
    """The mean of no runs."""

    mean = low = high = None
    n = 0


class GateCounts(Document):
    """Runs at a gate."""

    passed: int
    """runs that pass it"""
    failed: int
    """runs that do not"""


class GateFailure(Document):
    """What is wrong with a run."""

    run: str
    """name of the run, and of its folder"""
    gate: str
    """the gate that it does not pass"""
    reason: str


class LabCheck(Document, schema_version="deepvm.lab/1"):
    """Every run of a folder against every gate."""

    runs: int = at(lambda checked: len(checked.runs))
    """runs of the folder"""
    passed: int
    """of them that pass all gates"""
    left_out: list[str]
    """runs of the same matrices that were not asked for yet (--only)"""
    gates: dict[str, GateCounts]
    """by name"""
    failures: list[GateFailure]


class MeanOfRuns(Document):
    """A mean over the runs that pass all gates, one for each seed."""

    mean: float | None = _ROUNDED
    """null if no run passes"""
    low: float | None = _ROUNDED
    """of the 95 % interval of Student's t; null with less than two runs"""
    high: float | None = _ROUNDED
    """of the same"""
    n: int
    """runs that pass"""


class PairedRatio(Document):
    """A ratio of goodputs of runs with the same seed: the geometric mean."""

    ratio: float = at("mean", digits=6)
    """geometric mean"""
    low: float | None = _ROUNDED
    """of the 95 % interval, of logarithms; null with less than two pairs"""
    high: float | None = _ROUNDED
    """of the same"""
    n: int
    """pairs"""


class RecoveryParts(Document):
    """What the recovery from all failures of a run took, a mean over runs."""

    detect: float | None = at("detect_s", digits=6)
    """from the failure until the supervisor sees it, seconds"""
    restart: float | None = at("restart_s", digits=6)
    """until ranks are back, with data and model, and begin to restore, seconds"""
    restore: float | None = at("restore_s", digits=6)
    """reading the checkpoint, seconds"""
    replay: float | None = at("replay_s", digits=6)
    """until training is where it was, seconds"""


class LabVariant(Document):
    """A variant of a suite: means over its runs that pass all gates; null if none does."""

    goodput: MeanOfRuns = at(lambda variant: variant.estimate("goodput") or _NoRuns)
    """steps a second, each counted once"""
    restarts: float | None = _ROUNDED
    """a run"""
    wall_s: float | None = _ROUNDED
    """of a run, seconds"""
    compute_s: float | None = _ROUNDED
    """of steps, those done again included, seconds"""
    repeated_s: float | None = _ROUNDED
    """of steps that another attempt did again, seconds"""
    snapshot_s: float | None = _ROUNDED
    """for copies of the state, seconds"""
    write_s: float | None = _ROUNDED
    """for writing while training waited, seconds"""
    background_s: float | None = _ROUNDED
    """for writing during training, seconds"""
    drain_s: float | None = _ROUNDED
    """after the last step, until the last write was done, seconds; not in stall_s"""
    stall_s: float | None = _ROUNDED
    """held up by checkpoints, complete or not, until the last step, seconds"""
    checkpoints: float | None = _ROUNDED
    """that were made, a run"""
    skipped: float | None = _ROUNDED
    """checkpoints that were due, and skipped or given up, a run"""
    recovery_s: RecoveryParts = at("")
    loss_difference: float | None = _ROUNDED
    """mean absolute difference of losses from an undisturbed run's"""
    diverged: int
    """of the runs that pass, those with losses that are not numbers"""
    runs: int = at(lambda variant: len(variant.costs))
    """all runs, those that do not pass included"""
    audit: Verdict = at("verdict")
    """whether all runs pass all gates"""


def _with_means(variant: Any) -> With:
    return With(variant, **{name: variant.mean(name) for name in MEANS})


class LabSuite(Document):
    """What variants are compared on: a data set, a model and its failures."""

    dataset: str
    """name of the data set"""
    model: str
    """name of the model"""
    failure: str
    """name of the failures in the matrix"""
    variants: dict[str, LabVariant] = at(
        lambda suite: {name: _with_means(one) for name, one in suite.variants.items()}
    )
    """by name; those without failures stand in each suite of their model"""
    paired: dict[str, PairedRatio]
    """goodput over that of another variant, such as ovl_over_blk"""


class LabReport(Document, schema_version="deepvm.lab-report/1"):
    """What a matrix has shown."""

    suites: list[LabSuite]


class LabEntry(Document):
    """What a matrix file can name."""

    kind: str
    """datasets, models, strategies or failures"""
    name: str
    what: str
    """in a line"""


class LabList(Document, schema_version="deepvm.lab-list/1"):
    """All that a matrix file can name."""

    entries: list[LabEntry] = at("")


class TestedControl(Document):
    """A mistake that was made on purpose."""

    name: str
    what: str
    """the mistake"""
    gate: str
    """the gate that must fail"""
    failed: dict[str, str]
    """gates that have failed, and why"""
    right: bool
    """whether that gate has failed, and no other"""


class LabSelftest(Document, schema_version="deepvm.lab-selftest/1"):
    """Negative controls: each must fail its gate and no other."""

    controls: list[TestedControl] = at("")


class LabModel(TypedDict):
    """The model of a run."""

    name: str
    width: int | None
    """channels of its first layer, or its hidden size; null for its default"""
    norm: Literal["batch", "group"]
    """kind of its normalisation"""
    dropout: float
    """from 0 to below 1"""


class SuiteConfig(Document):
    """How the runs of a suite were made."""

    matrix: str
    """name of the matrix"""
    dataset_size: int
    """samples"""
    worlds: list[list[int]]
    """steps with the number of ranks from there on"""
    virtual_shards: int
    """0 for a plain DistributedDataParallel"""
    global_batch: int
    """samples of a step on all ranks together"""
    accumulate: int
    """parts of a rank's batch"""
    steps: int
    """of a run"""
    model: LabModel
    checkpoint_every: int
    """steps"""
    max_inflight: int
    """checkpoints that wait to be written at most"""
    launcher: str
    """what starts the ranks"""
    failures: str
    """what fails when, in words"""


class SuiteRun(Document):
    """A run of a suite."""

    run: str
    """name of the run, and of its folder"""
    variant: str
    """name of the variant"""
    seed: int
    """of data order, weights and random numbers"""
    audit: Verdict
    """whether it passes all gates"""
    reason: str
    final_sha256: str | None
    """hex SHA-256 of the final parameters; null if there are none"""


class PublishedSuite(LabSuite, schema_version="deepvm.lab-suite/1"):
    """One suite, with all that others need to judge it; ``*_publishable.json``."""

    config: SuiteConfig
    environment: dict[str, str]
    """machine and versions"""
    made: str
    """when its runs began and ended, ISO 8601, UTC"""
    runs: list[SuiteRun]


class LabDataset(TypedDict):
    """The data set of a run."""

    name: str
    path: str | None
    """folder of its files; null for its own place"""


class LabStrike(TypedDict):
    """A planned failure."""

    fault: str
    """its kind"""
    step: Count
    """it strikes when so many steps are done"""
    rank: Count
    """who is hit"""
    target: str
    """of kills: worker, agent, machine or write"""
    seconds: Seconds
    """how long it lasts, seconds"""
    delay_s: Seconds
    """from the step until it strikes, seconds"""
    key: str
    """its name in other records"""
    ends: bool
    """whether the attempt ends by it"""


class LabRun(TypedDict):
    """All that makes a run what it is; ``config.json`` in its folder."""

    schema_version: Literal["deepvm.lab-run/1"]
    matrix: str
    """name of the matrix"""
    dataset: LabDataset
    dataset_size: Positive
    """samples"""
    model: LabModel
    failure: str
    """name of the failures; calm: none"""
    variant: str
    """name of the variant"""
    strategy: str | None
    """what makes its checkpoints; null for none"""
    seed: Count
    """of data order, weights and random numbers"""
    world: Positive
    """ranks; the most of them if their number changes"""
    worlds: Worlds
    """steps with the number of ranks from there on"""
    min_world: Positive | None
    """ranks with which a job of deepvm run continues; null: all"""
    virtual_shards: Count
    """0 for a plain DistributedDataParallel"""
    global_batch: Positive
    """samples of a step on all ranks together"""
    accumulate: Positive
    """parts of a rank's batch"""
    steps: Positive
    """of the run"""
    checkpoint_every: Positive
    """steps"""
    max_inflight: Positive
    """checkpoints that wait to be written at most"""
    keep: Positive
    """newest checkpoints that are kept"""
    launcher: str
    """what starts the ranks"""
    strikes: list[LabStrike]
    disk: dict[str, Any]
    """faults of the disk, by name"""
    controls: list[str]
    """mistakes that are made on purpose"""


class _MoreOfAttempt(TypedDict, total=False):
    detect_s: Seconds | None
    """from the failure until it was seen, seconds; of attempts that failed"""
    restart_s: Seconds | None
    """until ranks began to restore, seconds; as below behind a failure only"""
    restore_s: Seconds | None
    """reading the checkpoint, seconds"""
    replay_s: Seconds | None
    """until training was where it had been, seconds"""
    last_lines: list[str]
    """of the ranks' output, where nothing planned explains the failure"""
    broken: list[str]
    """files of checkpoints that were damaged, as planned, below the run's folder"""
    machines: list[str]
    """of the ranks, of jobs of deepvm run"""
    safe: list[Annotated[list[Any], Len(3, 3)]]
    """versions that such a job called safe: step, reason, whether without an anchor"""


class LabAttempt(_MoreOfAttempt):
    """One start of a training."""

    attempt: Count
    """its number, from 0"""
    world: Count
    """ranks"""
    state: str
    """completed, failed or hung; of jobs of deepvm run also preempted or superseded"""
    until: Count
    """step at which it had to end"""
    began: Time
    """seconds since the epoch"""
    detected: Time
    """when its end was seen, seconds since the epoch"""
    exits: list[int | None]
    """exit codes of the ranks; below 0: minus a signal's number; null: not known"""
    causes: list[str]
    """planned failures that ended it, or hang"""
    struck: dict[str, Time]
    """planned failures with their times, seconds since the epoch"""
    resumed_step: Count | None
    """steps that were done when it went on; null if it never did"""
    reached_step: Count
    """steps that were done when it ended"""
    damaged: Count
    """checkpoints that it found damaged"""
    disk_errors: Count
    """writes that the disk refused, as planned"""


class _MoreOfSupervisor(TypedDict, total=False):
    left: list[int]
    """processes that a job of deepvm run has left behind"""
    why: str
    """why such a job has not got to its end, empty if it has"""


class LabSupervisor(_MoreOfSupervisor):
    """What happened to a run; ``supervisor.json`` in its folder."""

    state: str
    """completed, failed or running"""
    restarts: Count
    """attempts behind failures"""
    wall_s: Annotated[float, Gt(0), Lt(inf)]
    """from its start to its end, seconds"""
    hangs: Count
    """attempts that hung"""
    attempts: list[LabAttempt]


class LabAudit(Document):
    """Results of the gates at the end of the run: ``audit.json`` in its folder."""

    key: str
    """of the configuration, the code and the environment: 16 hex digits"""
    gates: dict[str, str]
    """what is wrong at each gate, empty where it is passed"""
