"""Matrix files: trainings, failures and strategies to combine. Errors name line and key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from deepvm.catalog.documents.yaml_file import Lines, YamlFormat
from deepvm.core.spelling import did_you_mean, joined
from deepvm.errors import DataError
from deepvm.io.user_dirs import data_folder
from deepvm.lab.faults.fault import (
    DiskFault,
    Fault,
    FaultSchedule,
    MachineFault,
    Strike,
    Target,
    random_steps,
)
from deepvm.lab.faults.fault_registry import FAULTS, find_fault
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
_MODELS = ("resnet8", "resnet18", "resnet50", "gpt-tiny")
_NAME = r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$"
_MOST = 10**9
_NODE = "node"
"""The fault of memory nodes, which only some strategies have."""
_SEEDS_APART = 1_000_003


def _number(value: object) -> object:
    """Numbers as they are written: true is none, and text is none."""
    if isinstance(value, (bool, str)):
        raise ValueError("must be a number")
    return value


def _short_form(key: str, *types: type) -> BeforeValidator:
    """What people may write for an object that has this key alone."""

    def expand(value: object) -> object:
        fits = isinstance(value, types) and not isinstance(value, bool)
        return {key: value} if fits else value

    return BeforeValidator(expand)


def _doc(what: str, default: Any = ...) -> Any:
    return Field(default, description=what)


Whole = Annotated[int, BeforeValidator(_number), Field(ge=1, le=_MOST)]
FromZero = Annotated[int, BeforeValidator(_number), Field(ge=0, le=_MOST)]
_WHOLE = f"a whole number from 1 to {_MOST:.0e}"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


class Dataset(_Strict):
    """A data set."""

    name: Literal["digits", "fashion-mnist", "cifar10", "cifar100", "tokens"] = _doc(
        joined(_DATASETS, "or")
    )
    path: str | None = _doc("the folder of its files", None)
    size: Whole | None = _doc(f"how many of its samples, from the first on: {_WHOLE}", None)


class Model(_Strict):
    """A model."""

    name: Literal["resnet8", "resnet18", "resnet50", "gpt-tiny"] = _doc(joined(_MODELS, "or"))
    width: Whole | None = _doc(
        "channels of its first layer, or its hidden size: a multiple of 8", None
    )
    norm: Literal["batch", "group"] = _doc("batch or group", "batch")
    dropout: Annotated[float, BeforeValidator(_number), Field(ge=0, lt=1)] = _doc(
        "from 0 to below 1", 0.0
    )


class Strikes(_Strict):
    """When a fault strikes."""

    at: list[Whole] = _doc("steps, such as [40, 110]", [])
    count: FromZero = _doc("how many, at random steps", 0)
    seed: FromZero = _doc("of what is random: a whole number from 0", 0)
    rank: FromZero | None = _doc("which rank, from 0", None)
    target: Literal["worker", "agent", "machine", "write"] = _doc(
        "worker, agent, machine or write", "worker"
    )
    seconds: Annotated[float, BeforeValidator(_number), Field(gt=0, le=3600)] | None = _doc(
        "seconds above 0", None
    )
    share: Annotated[float, BeforeValidator(_number), Field(ge=0, le=1)] | None = _doc(
        "a share from 0 to 1", None
    )
    mbps: Annotated[float, BeforeValidator(_number), Field(gt=0, le=1e6)] | None = _doc(
        "MB a second, above 0", None
    )

    def when(self) -> FaultSchedule:
        known = self.model_dump()
        return FaultSchedule(
            **{**known, "at": tuple(known["at"]), "target": Target(known["target"])}
        )


def _fault_field(name: str) -> Any:
    """The key of a fault, with the short form that people write."""
    if name == "slow":
        return Annotated[Strikes, _short_form("mbps", int, float)] | None, _doc(
            "MB a second, such as 20", None
        )
    if isinstance(find_fault(name), DiskFault):
        return Annotated[Strikes, _short_form("share", int, float)] | None, _doc(
            "a share from 0 to 1, such as 0.2", None
        )
    form = "steps from 1 on, such as [40, 110], or {count: 5, seed: 1}"
    return Annotated[Strikes, _short_form("at", list)] | None, _doc(form, None)


def _fields() -> dict[str, Any]:
    return {name.replace("-", "_"): _fault_field(name) for name in FAULTS}


Failures: type[BaseModel] = create_model(  # one key for each fault of the registry
    "Failures",
    __config__=ConfigDict(
        extra="forbid", frozen=True, alias_generator=lambda name: name.replace("_", "-")
    ),
    **_fields(),
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
    world: Annotated[int, BeforeValidator(_number), Field(ge=1, le=64)] | None = _doc(
        "ranks, from 1 to 64", None
    )
    elastic: Annotated[list[tuple[FromZero, Whole]], Field(min_length=2)] | None = _doc(
        "two or more steps with the number of ranks from there on, such as [[0, 4], [60, 2],"
        " [120, 4]]",
        None,
    )
    min_world: Whole | None = _doc(
        "ranks with which a job goes on, up to those of world: from 1", None
    )
    virtual_shards: Whole | None = _doc("a whole number that each number of ranks divides", None)
    global_batch: Whole = _doc(_WHOLE)
    accumulate: Whole = _doc(f"parts of a rank's batch: {_WHOLE}", 1)
    steps: Whole = _doc(_WHOLE)
    checkpoint_every: Whole = _doc(_WHOLE)
    max_inflight: Annotated[int, BeforeValidator(_number), Field(ge=1, le=64)] = _doc(
        "from 1 to 64", 4
    )
    keep: Annotated[int, BeforeValidator(_number), Field(ge=1, le=1000)] = _doc("from 1 to 1000", 3)
    seeds: Annotated[list[FromZero], Field(min_length=1)] = _doc(
        "a list of whole numbers from 0", [0]
    )
    launcher: Literal["forkserver", "torchrun", "deepvm-run"] = _doc(
        "forkserver, torchrun or deepvm-run", "forkserver"
    )

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
        return (self.world or 0) if self.least < (self.world or 0) else 0

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
    strikes: tuple[Strike, ...] = ()
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
    found: dict[str, Run] = {}
    for seed in matrix.seeds:
        for dataset in matrix.datasets:
            for model in matrix.models:
                for failure in matrix.failures or {CALM: None}:
                    for variant in matrix.variants:
                        if _meets(matrix, failure, variant):
                            run = _run(matrix, Suite(dataset, model, failure), variant, seed)
                            found.setdefault(run.name, run)
    return list(found.values())


def _meets(matrix: MatrixFile, failure: str, variant: str) -> bool:
    """Whether a variant can meet all faults of a suite, so that comparisons are fair."""
    if failure == CALM or variant == NONE or variant in REFERENCES:
        return True
    faults = {name for name, _ in _faults(matrix.failures[failure])}
    return _NODE not in faults or find_strategy(SHORT.get(variant, variant)).in_memory


def _run(matrix: MatrixFile, suite: Suite, variant: str, seed: int) -> Run:
    worlds = tuple(matrix.worlds)
    calm = Suite(suite.dataset, suite.model, CALM)
    if variant == NONE:  # it could not go on where the number of ranks changes
        return Run(calm, variant, None, seed, worlds[:1])
    if variant in REFERENCES:
        return Run(calm, variant, REFERENCES[variant], seed, worlds)
    strategy = SHORT.get(variant, variant)
    if suite.failure == CALM:
        return Run(suite, variant, strategy, seed, worlds)
    strikes: list[Strike] = []
    disk: dict[str, FaultSchedule] = {}
    world = matrix.least
    for name, given in _faults(matrix.failures[suite.failure]):
        fault, when = find_fault(name), given.when()
        # Each repeat is hit at moments of its own
        when = replace(when, seed=when.seed + _SEEDS_APART * seed)
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
    return matrix.checkpoint_every + 1 if fault.damages else 1


def _strategy_of(variant: str) -> str | None:
    """The strategy of a variant that can fail; None for the others."""
    return None if variant == NONE or variant in REFERENCES else SHORT.get(variant, variant)


def _faults(failures: Any) -> Iterator[tuple[str, Strikes]]:
    for name in FAULTS:
        given = getattr(failures, name.replace("-", "_"), None)
        if given is not None:
            yield name, given


def _contradictions(found: MatrixFile, lines: Lines) -> Iterator[str]:
    """Keys that do not go together."""
    for key in ("datasets", "models", "variants", "seeds"):
        names = [getattr(one, "name", one) for one in getattr(found, key)]
        twice = [place for place, name in enumerate(names) if name in names[:place]]
        if twice:
            yield (
                f"{lines.said(key, twice[0])}{names[twice[0]]} is there twice: names of runs would"
                " collide"
            )
    if (found.world is None) == (found.elastic is None):
        where = lines.said("elastic") if found.elastic is not None else ""
        yield f"{where}give exactly one of world and elastic"
        return
    yield from _impossible_worlds(found, lines)
    for place, dataset in enumerate(found.datasets):
        size = dataset.size or SIZES[dataset.name]
        if found.global_batch > size:
            where = lines.said("global_batch")
            yield f"{where}{found.global_batch} is more than the {size} samples of {dataset.name}"
        if size > SIZES[dataset.name]:
            yield (
                f"{lines.said('datasets', place)}{dataset.name} has {SIZES[dataset.name]} samples,"
                f" not {size}"
            )
    yield from _impossible_jobs(found, lines)
    if found.checkpoint_every > found.steps:
        yield (
            f"{lines.said('checkpoint_every')}{found.checkpoint_every} is more than the"
            f" {found.steps} steps"
        )
    for place, model in enumerate(found.models):
        for dataset in found.datasets:
            if (model.name == "gpt-tiny") != (dataset.name == "tokens"):
                yield f"{lines.said('models', place)}{model.name} does not train on {dataset.name}"
        if model.name == "gpt-tiny" and "norm" in model.model_fields_set:
            yield f"{lines.said('models', place, 'norm')}only of ResNets; gpt-tiny has LayerNorm"
        if model.width is not None and model.width % 8:
            yield f"{lines.said('models', place, 'width')}{model.width} is no multiple of 8"
    for name, failures in found.failures.items():
        if name == CALM or name.startswith(f"{CALM}-"):
            yield (
                f"{lines.said('failures', name)}{CALM} is the name of runs without failures; give"
                " it another one"
            )
        if not any(True for _ in _faults(failures)):
            yield (
                f"{lines.said('failures', name)}has no fault; leave it out, or use"
                f" {', '.join((NONE, *REFERENCES))}"
            )
        for fault, given in _faults(failures):
            yield from _impossible_strikes(found, lines, name, fault, given)
        if not any(
            _meets(found, name, variant)
            for variant in found.variants
            if variant not in (NONE, *REFERENCES)
        ):
            yield (
                f"{lines.said('failures', name)}no variant can meet it; give some that fail, with"
                " node: deepvm-tcp"
            )


def _impossible_worlds(found: MatrixFile, lines: Lines) -> Iterator[str]:
    key = "elastic" if found.elastic else "world"
    for _, world in found.worlds:
        local = found.global_batch // world if world else 0
        if found.global_batch % world:
            yield (
                f"{lines.said(key)}{world} ranks do not divide the global batch,"
                f" {found.global_batch}"
            )
        elif found.shards and found.shards % world:
            yield f"{lines.said(key)}{world} ranks do not divide the {found.shards} virtual shards"
        elif not found.shards and local % found.accumulate:
            yield (
                f"{lines.said('accumulate')}{found.accumulate} parts do not divide a rank's batch,"
                f" {local}"
            )
    if found.shards and found.global_batch % found.shards:
        yield (
            f"{lines.said('global_batch')}{found.shards} virtual shards do not divide"
            f" {found.global_batch}"
        )
    if found.shards and found.accumulate > 1:
        yield f"{lines.said('accumulate')}only without virtual shards, which are parts already"
    steps = [step for step, _ in found.worlds]
    if steps[0] or steps != sorted(set(steps)) or steps[-1] >= found.steps:
        yield f"{lines.said(key)}steps must begin at 0, grow, and stay below {found.steps}"


def _impossible_jobs(found: MatrixFile, lines: Lines) -> Iterator[str]:
    """What goes only with jobs of ``deepvm run``, or not with them."""
    if found.launcher != ORCHESTRATED:
        if found.min_world is not None:
            yield f"{lines.said('min_world')}only with launcher: {ORCHESTRATED}"
        return
    if found.elastic:
        yield (
            f"{lines.said('elastic')}with launcher: {ORCHESTRATED} the orchestrator decides; give"
            " world and min_world"
        )
        return
    most = found.world or 1
    if found.least > most:
        yield f"{lines.said('min_world')}{found.least} is more than world, {most}"
    if found.shards and found.shards % most:
        return  # it is said already
    for ranks in range(found.least, most):
        if found.shards and (found.shards % ranks or found.global_batch % ranks):
            of = f"the {found.shards} virtual shards and the global batch, {found.global_batch}"
            yield f"{lines.said('min_world')}a generation of {ranks} ranks does not divide {of}"
            return


def _impossible_strikes(
    found: MatrixFile, lines: Lines, name: str, fault: str, given: Strikes
) -> Iterator[str]:
    path, kind = ("failures", name, fault), find_fault(fault)
    known = {"at", "count", "seed"} if not isinstance(kind, DiskFault) else set()
    for key in given.model_fields_set - known - kind.options:
        yield f"{lines.said(*path, key)}{fault} has no {key}"
    if isinstance(kind, MachineFault) and found.launcher != ORCHESTRATED:
        yield (
            f"{lines.said(*path)}only with launcher: {ORCHESTRATED}, whose machines a cloud can"
            " take back"
        )
    if isinstance(kind, DiskFault):
        for key in kind.options & {"share", "mbps"}:
            if not getattr(given, key):
                yield f"{lines.said(*path)}needs {key}, above 0"
    if given.target == Target.AGENT.value and found.launcher == "forkserver":
        yield (
            f"{lines.said(*path)}forkserver has no agent; use launcher: torchrun or {ORCHESTRATED}"
        )
    twice = [step for place, step in enumerate(given.at) if step in given.at[:place]]
    if twice:
        yield f"{lines.said(*path)}step {twice[0]} twice"
    if kind.damages and (early := [step for step in given.at if step < found.checkpoint_every]):
        first = f"the first is of step {found.checkpoint_every}"
        yield f"{lines.said(*path)}at step {early[0]} there is no checkpoint to damage; {first}"
    late = [step for step in given.at if step >= found.steps]
    if late:
        yield f"{lines.said(*path)}step {late[0]} is not before the end: {found.steps - 1} or less"
    world = found.least
    if given.rank is not None and given.rank >= world:
        yield f"{lines.said(*path)}there is no rank {given.rank}: there are {world}"
    if not isinstance(kind, DiskFault) and not (given.at or given.count):
        yield f"{lines.said(*path)}neither at nor count: it would never strike"
    room = len(random_steps(found.steps, _first_step(found, kind)))
    if given.count > room:
        yield (
            f"{lines.said(*path)}{given.count} failures do not fit into the {room} steps that they"
            " are drawn from"
        )
    if given.target == Target.WRITE.value and given.rank:
        alone = [
            v
            for v in found.variants
            if (s := _strategy_of(v)) and not find_strategy(s).all_ranks_write
        ]
        if alone:
            yield f"{lines.said(*path)}of {alone[0]} rank 0 alone writes"


FORMAT = YamlFormat(
    MatrixFile,
    "give a matrix file; docs/reference/matrix-file.md shows one",
    "docs/reference/matrix-file.md",
    _contradictions,
)


def read_matrix(path: Path) -> MatrixFile:
    """Read a matrix file.

    Raises what :meth:`~deepvm.catalog.documents.yaml_file.YamlFormat.read` raises.
    """
    # A matrix that says nothing, not data that is missing
    if path.is_file() and not path.stat().st_size:
        return FORMAT.parse("", str(path))
    return FORMAT.read(path)


def shipped() -> Mapping[str, Path]:
    """The matrix files that come with deepvm, by name."""
    return {path.stem: path for path in sorted((data_folder() / "lab").glob("*.yaml"))}


def find_matrix(name: str) -> MatrixFile:
    """Read a matrix file, or one of those that come with deepvm.

    Raises what :func:`read_matrix` raises.
    """
    known = shipped()
    if name in known and not Path(name).exists():
        return read_matrix(known[name])
    if not Path(name).exists() and "." not in name:
        meant = did_you_mean(name, known) or f"there are {', '.join(known)}"
        raise DataError(f"{name}: no such file, nor a matrix that comes with deepvm; {meant}")
    return read_matrix(Path(name))
