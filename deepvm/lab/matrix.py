"""Matrix files: trainings, failures and strategies to combine. Errors name line and key."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, create_model

from deepvm.core.spelling import joined, one_of
from deepvm.documents.fields import FORMATS, Strict, Stripped
from deepvm.documents.formats import yaml
from deepvm.documents.models import model_of
from deepvm.documents.reader import FileFormat, Rules, repeats
from deepvm.documents.tree import KeyPath
from deepvm.errors import DataError, JobFormatError
from deepvm.io.user_dirs import data_folder
from deepvm.lab.faults.fault import (
    DiskFault,
    Fault,
    FaultInjection,
    FaultSchedule,
    MachineFault,
    random_steps,
)
from deepvm.lab.launchers.launcher_registry import LAUNCHERS
from deepvm.lab.records import ORCHESTRATED
from deepvm.lab.registry import FAULTS, SHORT, STRATEGIES, find_fault, find_strategy
from deepvm.records import dataclass, field

# Name of failure-free runs; the variant without checkpoints; failure-free variants with them
CALM, NONE, REFERENCES = "calm", "none", {"ref-blk": "blocking", "ref-ovl": "overlapped"}
VARIANTS = (NONE, *REFERENCES, *SHORT, *(name for name in STRATEGIES if name not in SHORT.values()))
SIZES = {
    "digits": 1797,
    "fashion-mnist": 60_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "tokens": 4096,
}
_NAME = r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$"
_NODE = "node"  # The fault of memory nodes, which only some strategies have
_SEEDS_APART = 1_000_003


def _short_form(key: str, *types: type) -> BeforeValidator:
    def expand(value: object) -> object:
        if isinstance(value, types) and not isinstance(value, bool):
            return {key: value}
        return value

    return BeforeValidator(expand)


def _fault(name: str) -> Any:
    short = _short_form("at", list)
    text = "steps from 1 on, such as [40, 110], or {count: 5, seed: 1}"
    if name == "slow":
        short = _short_form("mbps", int, float)
        text = "MB a second, such as 20"
    elif isinstance(find_fault(name), DiskFault):
        short = _short_form("share", int, float)
        text = "a share from 0 to 1, such as 0.2"
    return Annotated[FaultSchedule, short] | None, Field(None, description=text, alias=name)


def _described(kind: Any, text: str) -> Any:
    return Annotated[kind, Field(description=text)]


_Failures: Any = create_model(  # one key for each fault of the registry
    "Failures", __base__=Strict, **{name.replace("-", "_"): _fault(name) for name in FAULTS}
)
FORMATS.update(
    lab_dataset=Annotated[model_of("matrix.Dataset"), _short_form("name", str)],
    lab_model=Annotated[model_of("matrix.Model"), _short_form("name", str)],
    lab_launcher=_described(Literal[tuple(LAUNCHERS)], joined(LAUNCHERS, "or")),
    lab_variants=_described(
        list[Literal[VARIANTS]],  # type: ignore[valid-type]
        f"a list of one or more of {joined(VARIANTS, 'or')}",
    ),
    lab_failures=_described(
        dict[Annotated[Stripped, Field(pattern=_NAME)], _Failures],
        f"names with faults, such as base: {{exit: [40, 110]}}; there are {joined(FAULTS, 'and')}",
    ),
)
_Document: Any = model_of("matrix.MatrixFile")


class MatrixFile(_Document):  # type: ignore[misc]
    """All of a matrix file."""

    @property
    def worlds(self) -> Sequence[tuple[int, int]]:
        worlds: Sequence[tuple[int, int]] = self.elastic or [(0, self.world or 1)]
        return worlds

    @property
    def shards(self) -> int:
        """How many virtual shards there are; 0 for a plain DistributedDataParallel."""
        shards: int | None = self.virtual_shards
        if shards is None and (self.elastic or self.least < (self.world or 0)):
            shards = max(world for _, world in self.worlds)
        return shards or 0

    @property
    def least(self) -> int:
        least: int | None = self.min_world
        return least or min(world for _, world in self.worlds)


@dataclass(frozen=True)
class Run:
    """One training of a matrix."""

    suite: "Suite"
    variant: str
    strategy: str | None  # None: no checkpoints
    seed: int
    worlds: tuple[tuple[int, int], ...]  # steps, with the number of ranks from there on
    strikes: tuple[FaultInjection, ...] = ()  # by step
    disk: dict[str, FaultSchedule] = field(default_factory=dict)  # faults of it, by name

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

    dataset: Any
    model: Any
    failure: str


def runs_of(matrix: MatrixFile) -> list[Run]:
    """All runs; failure-free ones are shared by all failures of a data set and model."""
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
    if variant == NONE:  # it could not continue where the number of ranks changes
        worlds = worlds[:1]
    strategy = _strategy_of(variant)
    if strategy is None:
        return Run(calm, variant, REFERENCES.get(variant), seed, worlds)
    if suite.failure == CALM:
        return Run(suite, variant, strategy, seed, worlds)
    strikes: list[FaultInjection] = []
    disk = {}
    for name, schedule in _faults(matrix.failures[suite.failure]):
        # Each repeat is hit at moments of its own
        when = schedule.model_copy(update={"seed": schedule.seed + _SEEDS_APART * seed})
        fault = find_fault(name)
        if isinstance(fault, DiskFault):
            disk[name] = when
        else:
            first = _first_step(matrix, fault)
            strikes += fault.strikes(name, when, matrix.steps, matrix.least, first)
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
        return 1 + int(matrix.checkpoint_every)
    return 1


def _strategy_of(variant: str) -> str | None:
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
            yield (
                ("global_batch",),
                f"{matrix.global_batch} is more than the {size} samples of {dataset.name}",
            )
        if size > SIZES[dataset.name]:
            yield ("datasets", row), f"{dataset.name} has {SIZES[dataset.name]} samples, not {size}"
    if matrix.checkpoint_every > matrix.steps:
        yield ("checkpoint_every",), f"{matrix.checkpoint_every} is more than steps, {matrix.steps}"
    for row, model in enumerate(matrix.models):
        yield from _model_rules(matrix, ("models", row), model)
    for name, failures in matrix.failures.items():
        yield from _failure_rules(matrix, ("failures", name), failures)


def _model_rules(matrix: MatrixFile, path: KeyPath, model: Any) -> Rules:
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
            yield (
                ("accumulate",),
                f"{matrix.accumulate} parts do not divide a rank's batch, {batch // world}",
            )
    if shards and batch % shards:
        yield ("global_batch",), f"{shards} virtual shards do not divide {batch}"
    if shards and matrix.accumulate > 1:
        yield ("accumulate",), "only without virtual shards, which are parts already"
    steps = [step for step, _ in matrix.worlds]
    if steps[0] or steps != sorted(set(steps)) or steps[-1] >= matrix.steps:
        yield key, f"expected steps from 0 that grow and stay below {matrix.steps}"


def _launcher_rules(matrix: MatrixFile) -> Rules:
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
            yield (
                ("min_world",),
                f"{ranks} ranks do not divide the virtual shards and the global batch",
            )
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
        yield (
            path,
            f"at step {early[0]} there is no checkpoint to damage; the first is of step"
            f" {matrix.checkpoint_every}",
        )
    late = [step for step in schedule.at if step >= matrix.steps]
    if late:
        yield path, f"step {late[0]} is not before the end: {matrix.steps - 1} or less"
    room = len(random_steps(matrix.steps, _first_step(matrix, fault)))
    if schedule.count > room:
        yield path, f"{schedule.count} failures do not fit into the {room} possible steps"


FORMAT = FileFormat(
    MatrixFile, "a matrix file, see 'deepvm schema matrix'", yaml.load, _rules, JobFormatError
)


def shipped() -> Mapping[str, Path]:
    """The matrix files that come with deepvm, by name."""
    return {path.stem: path for path in sorted((data_folder() / "lab").glob("*.yaml"))}


def find_matrix(name: str) -> MatrixFile:
    """A matrix file, or one that comes with deepvm. Raises JobFormatError, DataError."""
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


class Entry(NamedTuple):
    """A name that a matrix file can have."""

    kind: str
    name: str
    what: str


def listing() -> list[Entry]:
    """What a matrix file can name, with the first line of the documentation of each."""
    # They load torch
    from deepvm.lab.training.datasets import DATASETS
    from deepvm.lab.training.models import MODELS, WIDTHS

    long = {name: f"{name} ({short})" for short, name in SHORT.items()}
    lines = {
        "matrices": {name: _first_comment(path) for name, path in shipped().items()},
        "datasets": {name: _line(one) for name, one in DATASETS.items()},
        "models": {name: f"width {WIDTHS[name]} by default" for name in MODELS},
        "strategies": {long.get(name, name): _line(find_strategy(name)) for name in STRATEGIES},
        "failures": {name: _line(type(find_fault(name))) for name in FAULTS},
    }
    return [Entry(kind, *line) for kind, names in lines.items() for line in names.items()]


def _first_comment(path: Path) -> str:
    comment = path.read_text(encoding="utf-8").partition("\nschema_version")[0]
    return comment.lstrip("# ").replace("\n# ", " ").partition(". ")[0].rstrip(".")


def _line(of: object) -> str:
    text = inspect.getdoc(of) or ""
    return text.partition(". Raises")[0].partition("\n")[0].rstrip(".").replace("``", "")
