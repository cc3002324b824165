"""Matrix files: trainings, failures and strategies to combine. Errors name line and key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from deepvm.core.spelling import joined, one_of
from deepvm.documents.fields import Number, Whole
from deepvm.documents.formats import yaml
from deepvm.documents.issues import repeats
from deepvm.documents.reader import FileFormat, Rules
from deepvm.documents.tree import KeyPath
from deepvm.errors import DataError, JobFormatError
from deepvm.io.user_dirs import data_folder
from deepvm.lab.faults.fault import (
    LIMIT,
    DiskFault,
    Fault,
    FaultInjection,
    FaultSchedule,
    FromOne,
    FromZero,
    MachineFault,
    random_steps,
)
from deepvm.lab.faults.fault_registry import FAULTS, find_fault
from deepvm.lab.launchers.launcher_registry import LAUNCHERS
from deepvm.lab.records import ORCHESTRATED
from deepvm.lab.strategies.strategy_registry import SHORT, STRATEGIES, find_strategy

CALM, NONE, REFERENCES = "calm", "none", {"ref-blk": "blocking", "ref-ovl": "overlapped"}
"""Name of failure-free runs; the variant without checkpoints; failure-free variants with them."""
VARIANTS = (NONE, *REFERENCES, *SHORT, *(name for name in STRATEGIES if name not in SHORT.values()))
SIZES = {
    "digits": 1797,
    "fashion-mnist": 60_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "tokens": 4096,
}
"""Samples of each data set."""
_DATASETS = tuple(SIZES)
_LAUNCHERS = tuple(LAUNCHERS)
_MODELS = ("resnet8", "resnet18", "resnet50", "gpt-tiny")
_NAME = r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$"
_NODE = "node"
"""The fault of memory nodes, which only some strategies have."""
_SEEDS_APART = 1_000_003


def _short_form(key: str, *types: type) -> BeforeValidator:
    """What people may write for an object that has this key alone."""

    def expand(value: object) -> object:
        fits = isinstance(value, types) and not isinstance(value, bool)
        if fits:
            return {key: value}
        return value

    return BeforeValidator(expand)


def _doc(text: str, default: Any = ...) -> Any:
    return Field(default, description=text)


_WHOLE = f"a whole number from 1 to {LIMIT:.0e}"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


class Dataset(_Strict):
    """A data set."""

    name: Literal[_DATASETS] = _doc(joined(_DATASETS, "or"))  # type: ignore[valid-type]
    path: str | None = _doc("the folder of its files", None)
    size: FromOne | None = _doc(f"how many of its samples, from the first on: {_WHOLE}", None)


class Model(_Strict):
    """A model."""

    name: Literal[_MODELS] = _doc(joined(_MODELS, "or"))  # type: ignore[valid-type]
    width: FromOne | None = _doc(
        "channels of its first layer, or its hidden size: a multiple of 8", None
    )
    norm: Literal["batch", "group"] = _doc("batch or group", "batch")
    dropout: Annotated[Number, Field(ge=0, lt=1)] = _doc("from 0 to below 1", 0.0)


def _fault_field(name: str) -> Any:
    """The key of a fault, with the short form that people write."""
    short = _short_form("at", list)
    text = "steps from 1 on, such as [40, 110], or {count: 5, seed: 1}"
    if name == "slow":
        short = _short_form("mbps", int, float)
        text = "MB a second, such as 20"
    elif isinstance(find_fault(name), DiskFault):
        short = _short_form("share", int, float)
        text = "a share from 0 to 1, such as 0.2"
    return Annotated[FaultSchedule, short] | None, _doc(text, None)


Failures: type[BaseModel] = create_model(  # one key for each fault of the registry
    "Failures",
    __config__=ConfigDict(
        extra="forbid", frozen=True, alias_generator=lambda name: name.replace("_", "-")
    ),
    **{name.replace("-", "_"): _fault_field(name) for name in FAULTS},
)


class MatrixFile(_Strict):
    """All of a matrix file; see docs/reference/matrix-file.md."""

    schema_version: Literal["deepvm.matrix/1"] = _doc("deepvm.matrix/1", "deepvm.matrix/1")
    name: Annotated[str, Field(pattern=_NAME)] = _doc(
        "1 to 40 lower-case letters, digits and hyphens"
    )
    datasets: Annotated[list[Annotated[Dataset, _short_form("name", str)]], Field(min_length=1)] = (
        _doc(
            f"a list of one or more of {joined(_DATASETS, 'or')}, or of {{name: cifar10, path:"
            " FOLDER}"
        )
    )
    models: Annotated[list[Annotated[Model, _short_form("name", str)]], Field(min_length=1)] = _doc(
        f"a list of one or more of {joined(_MODELS, 'or')}, or of {{name: resnet8, width: 8,"
        " norm: group}"
    )
    failures: dict[Annotated[str, Field(pattern=_NAME)], Failures] = _doc(  # type: ignore[valid-type]
        f"names with faults, such as base: {{exit: [40, 110]}}; there are {joined(FAULTS, 'and')}",
        {},
    )
    variants: Annotated[list[Literal[VARIANTS]], Field(min_length=1)] = _doc(  # type: ignore[valid-type]
        f"a list of one or more of {joined(VARIANTS, 'or')}"
    )
    world: Annotated[Whole, Field(ge=1, le=64)] | None = _doc("ranks, from 1 to 64", None)
    elastic: Annotated[list[tuple[FromZero, FromOne]], Field(min_length=2)] | None = _doc(
        "two or more steps with the number of ranks from there on, such as [[0, 4], [60, 2],"
        " [120, 4]]",
        None,
    )
    min_world: FromOne | None = _doc(
        "ranks with which a job goes on, up to those of world: from 1", None
    )
    virtual_shards: FromOne | None = _doc("a whole number that each number of ranks divides", None)
    global_batch: FromOne = _doc(_WHOLE)
    accumulate: FromOne = _doc(f"parts of a rank's batch: {_WHOLE}", 1)
    steps: FromOne = _doc(_WHOLE)
    checkpoint_every: FromOne = _doc(_WHOLE)
    max_inflight: Annotated[Whole, Field(ge=1, le=64)] = _doc("from 1 to 64", 4)
    keep: Annotated[Whole, Field(ge=1, le=1000)] = _doc("from 1 to 1000", 3)
    seeds: Annotated[list[FromZero], Field(min_length=1)] = _doc(
        "a list of whole numbers from 0", [0]
    )
    launcher: Literal[_LAUNCHERS] = _doc(joined(_LAUNCHERS, "or"), "forkserver")  # type: ignore[valid-type]

    @property
    def worlds(self) -> Sequence[tuple[int, int]]:
        return self.elastic or [(0, self.world or 1)]

    @property
    def shards(self) -> int:
        """How many virtual shards there are; 0 for a plain DistributedDataParallel."""
        if self.virtual_shards is not None:
            return self.virtual_shards
        if self.elastic:
            return max(world for _, world in self.elastic)
        if self.least < (self.world or 0):
            return self.world or 0
        return 0

    @property
    def least(self) -> int:
        return self.min_world or min(world for _, world in self.worlds)


@dataclass(frozen=True)
class Run:
    """One training of a matrix.

    Attributes:
        suite: data set, model and failures. strategy: None for no checkpoints. strikes: failures at
            steps, in their order. disk: faults of the disk, by name. worlds: steps, with the number
            of ranks from there on.
    """

    suite: Suite
    variant: str
    strategy: str | None
    seed: int
    worlds: tuple[tuple[int, int], ...]
    strikes: tuple[FaultInjection, ...] = ()
    disk: dict[str, FaultSchedule] = field(default_factory=dict)

    @property
    def undisturbed(self) -> bool:
        return not self.strikes and not self.disk

    @property
    def name(self) -> str:
        one = self.suite
        return f"{one.dataset.name}-{one.model.name}-{one.failure}-{self.variant}-s{self.seed}"


@dataclass(frozen=True)
class Suite:
    """What variants are compared on."""

    dataset: Dataset
    model: Model
    failure: str


def runs_of(matrix: MatrixFile) -> list[Run]:
    """All runs, compared ones side by side: seeds, then suites, then variants.

    Failure-free runs are shared by all failures of a data set and model.
    """
    runs: dict[str, Run] = {}
    for seed in matrix.seeds:
        for dataset in matrix.datasets:
            for model in matrix.models:
                for failure in matrix.failures or {CALM: None}:
                    for variant in matrix.variants:
                        if _meets(matrix, failure, variant):
                            run = _run(matrix, Suite(dataset, model, failure), variant, seed)
                            runs.setdefault(run.name, run)
    return list(runs.values())


def _meets(matrix: MatrixFile, failure: str, variant: str) -> bool:
    """Whether a variant can meet all faults of a suite, so that comparisons are fair."""
    strategy = _strategy_of(variant)
    if failure == CALM or strategy is None:
        return True
    faults = {name for name, _ in _faults(matrix.failures[failure])}
    return _NODE not in faults or find_strategy(strategy).in_memory


def _run(matrix: MatrixFile, suite: Suite, variant: str, seed: int) -> Run:
    worlds = tuple(matrix.worlds)
    calm = Suite(suite.dataset, suite.model, CALM)
    if variant == NONE:  # it could not go on where the number of ranks changes
        worlds = worlds[:1]
    strategy = _strategy_of(variant)
    if strategy is None:
        return Run(calm, variant, REFERENCES.get(variant), seed, worlds)
    if suite.failure == CALM:
        return Run(suite, variant, strategy, seed, worlds)
    strikes: list[FaultInjection] = []
    disk: dict[str, FaultSchedule] = {}
    world = matrix.least
    for name, schedule in _faults(matrix.failures[suite.failure]):
        # Each repeat is hit at moments of its own
        when = schedule.model_copy(update={"seed": schedule.seed + _SEEDS_APART * seed})
        fault = find_fault(name)
        if isinstance(fault, DiskFault):
            disk[name] = when
        else:
            strikes += fault.strikes(name, when, matrix.steps, world, _first_step(matrix, fault))
    in_order = tuple(sorted(strikes, key=lambda one: (one.step, one.fault)))
    return Run(suite, variant, strategy, seed, worlds, in_order, disk)


def reference_of(run: Run) -> Run:
    """The training without checkpoints and failures that a run is compared with."""
    return Run(
        Suite(run.suite.dataset, run.suite.model, CALM), NONE, None, run.seed, run.worlds[:1]
    )


def _first_step(matrix: MatrixFile, fault: Fault) -> int:
    """From which step on a fault strikes at random: what damages a checkpoint needs one."""
    if fault.damages:
        return matrix.checkpoint_every + 1
    return 1


def _strategy_of(variant: str) -> str | None:
    """The strategy of a variant that can fail; None for the others."""
    if variant == NONE or variant in REFERENCES:
        return None
    return SHORT.get(variant, variant)


def _faults(failures: Any) -> Iterator[tuple[str, FaultSchedule]]:
    for name in FAULTS:
        schedule = getattr(failures, name.replace("-", "_"), None)
        if schedule is not None:
            yield name, schedule


def _rules(matrix: MatrixFile) -> Rules:
    for key in ("datasets", "models", "variants", "seeds"):
        names = [getattr(one, "name", one) for one in getattr(matrix, key)]
        for row, _ in repeats(names):
            yield (key, row), f"{names[row]} is there twice: names of runs would collide"
    if (matrix.world is None) == (matrix.elastic is None):
        yield ("elastic",), "expected exactly one of world and elastic"
        return
    yield from _world_rules(matrix)
    yield from _launcher_rules(matrix)
    for row, dataset in enumerate(matrix.datasets):
        size = dataset.size or SIZES[dataset.name]
        if matrix.global_batch > size:
            message = f"{matrix.global_batch} is more than the {size} samples of {dataset.name}"
            yield ("global_batch",), message
        if size > SIZES[dataset.name]:
            yield ("datasets", row), f"{dataset.name} has {SIZES[dataset.name]} samples, not {size}"
    if matrix.checkpoint_every > matrix.steps:
        yield ("checkpoint_every",), f"{matrix.checkpoint_every} is more than steps, {matrix.steps}"
    for row, model in enumerate(matrix.models):
        yield from _model_rules(matrix, ("models", row), model)
    for name, failures in matrix.failures.items():
        yield from _failure_rules(matrix, ("failures", name), failures)


def _model_rules(matrix: MatrixFile, path: KeyPath, model: Model) -> Rules:
    text = model.name == "gpt-tiny"
    for dataset in matrix.datasets:
        if text != (dataset.name == "tokens"):
            yield path, f"{model.name} does not train on {dataset.name}"
    if text and "norm" in model.model_fields_set:
        yield (*path, "norm"), "only for ResNets; gpt-tiny has LayerNorm"
    if model.width is not None and model.width % 8:
        yield (*path, "width"), f"{model.width} is no multiple of 8"


def _world_rules(matrix: MatrixFile) -> Rules:
    key = ("elastic" if matrix.elastic else "world",)
    batch = matrix.global_batch
    shards = matrix.shards
    for _, world in matrix.worlds:
        if batch % world:
            yield key, f"{world} ranks do not divide the global batch, {batch}"
        elif shards and shards % world:
            yield key, f"{world} ranks do not divide the {shards} virtual shards"
        elif not shards and batch // world % matrix.accumulate:
            message = f"{matrix.accumulate} parts do not divide a rank's batch, {batch // world}"
            yield ("accumulate",), message
    if shards and batch % shards:
        yield ("global_batch",), f"{shards} virtual shards do not divide {batch}"
    if shards and matrix.accumulate > 1:
        yield ("accumulate",), "only without virtual shards, which are parts already"
    steps = [step for step, _ in matrix.worlds]
    if steps[0] or steps != sorted(set(steps)) or steps[-1] >= matrix.steps:
        yield key, f"expected steps from 0 that grow and stay below {matrix.steps}"


def _launcher_rules(matrix: MatrixFile) -> Rules:
    """What goes only with jobs of ``deepvm run``, or not with them."""
    if matrix.launcher != ORCHESTRATED:
        if matrix.min_world is not None:
            yield ("min_world",), f"only with launcher: {ORCHESTRATED}"
        return
    if matrix.elastic:
        yield ("elastic",), f"expected world and min_world with launcher: {ORCHESTRATED}"
        return
    world = matrix.world or 1
    if matrix.least > world:
        yield ("min_world",), f"{matrix.least} is more than world, {world}"
    if not matrix.shards or matrix.shards % world:
        return
    for ranks in range(matrix.least, world):
        if matrix.shards % ranks or matrix.global_batch % ranks:
            message = f"{ranks} ranks do not divide the virtual shards and the global batch"
            yield ("min_world",), message
            return


def _failure_rules(matrix: MatrixFile, path: KeyPath, failures: Any) -> Rules:
    name = str(path[-1])
    if name == CALM or name.startswith(f"{CALM}-"):
        yield path, f"{CALM} is the name of runs without failures"
    faults = list(_faults(failures))
    if not faults:
        yield path, f"has no fault; leave it out, or use {', '.join((NONE, *REFERENCES))}"
    for fault, schedule in faults:
        yield from _strike_rules(matrix, (*path, fault), schedule)
    failing = [variant for variant in matrix.variants if _strategy_of(variant)]
    if not any(_meets(matrix, name, variant) for variant in failing):
        yield path, "no variant can meet it; expected some that fail, with node: deepvm-tcp"


def _strike_rules(matrix: MatrixFile, path: KeyPath, schedule: FaultSchedule) -> Rules:
    name = str(path[-1])
    fault = find_fault(name)
    known = {"at", "count", "seed"}
    if isinstance(fault, DiskFault):
        known = set()
        for key in fault.options & {"share", "mbps"}:
            if not getattr(schedule, key):
                yield path, f"needs {key}, above 0"
    elif not (schedule.at or schedule.count):
        yield path, "neither at nor count: it would never strike"
    for key in schedule.model_fields_set - known - fault.options:
        yield (*path, key), f"{name} has no {key}"
    if isinstance(fault, MachineFault) and matrix.launcher != ORCHESTRATED:
        yield path, f"only with launcher: {ORCHESTRATED}, whose machines can be preempted"
    if schedule.target == "agent" and matrix.launcher == "forkserver":
        yield path, f"forkserver has no agent; use launcher: torchrun or {ORCHESTRATED}"
    if schedule.rank is not None and schedule.rank >= matrix.least:
        yield path, f"there is no rank {schedule.rank}: there are {matrix.least}"
    yield from _step_rules(matrix, path, schedule, fault)
    if schedule.target == "write" and schedule.rank:
        for strategy in filter(None, map(_strategy_of, matrix.variants)):
            if not find_strategy(strategy).all_ranks_write:
                yield path, f"only rank 0 of {strategy} writes"
                break


def _step_rules(matrix: MatrixFile, path: KeyPath, schedule: FaultSchedule, fault: Fault) -> Rules:
    for row, _ in repeats(schedule.at):
        yield path, f"step {schedule.at[row]} twice"
    early = [step for step in schedule.at if step < matrix.checkpoint_every]
    if fault.damages and early:
        first = f"the first is of step {matrix.checkpoint_every}"
        yield path, f"at step {early[0]} there is no checkpoint to damage; {first}"
    late = [step for step in schedule.at if step >= matrix.steps]
    if late:
        yield path, f"step {late[0]} is not before the end: {matrix.steps - 1} or less"
    room = len(random_steps(matrix.steps, _first_step(matrix, fault)))
    if schedule.count > room:
        yield path, f"{schedule.count} failures do not fit into the {room} possible steps"


FORMAT = FileFormat(
    MatrixFile,
    "a matrix file, see docs/reference/matrix-file.md",
    yaml.load,
    _rules,
    JobFormatError,
)


def shipped() -> Mapping[str, Path]:
    """The matrix files that come with deepvm, by name."""
    return {path.stem: path for path in sorted((data_folder() / "lab").glob("*.yaml"))}


def find_matrix(name: str) -> MatrixFile:
    """Read a matrix file, or one of those that come with deepvm.

    Raises JobFormatError, DataError.
    """
    path = Path(name)
    if not path.exists():
        known = shipped()
        if name in known:
            return FORMAT.read(known[name])
        if "." not in name:
            raise DataError(
                f"{name}: no such file, nor a matrix of deepvm: {one_of(name, known, ', ')}"
            )
    # A matrix that says nothing, not data that is missing: exit code 2.
    if path.is_file() and not path.stat().st_size:
        return FORMAT.parse("", path)
    return FORMAT.read(path)
