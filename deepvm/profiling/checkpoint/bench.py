"""All methods interleaved in one training loop: medians and ratios to ``torch.save`` and fsync."""

import importlib
import importlib.util
import os
import secrets
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint import filesystem, state_dict_saver

from deepvm.checkpoint.checkpointer import Checkpointer
from deepvm.checkpoint.files.durable_write import medium
from deepvm.checkpoint.tiers.base import Tier, fulfil
from deepvm.checkpoint.tiers.tcp import TcpTier
from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.progress import Say
from deepvm.core.spelling import refuse_unknown
from deepvm.core.units import refuse_outside
from deepvm.documents.build import document_of
from deepvm.errors import CheckpointError, RequestError
from deepvm.io.atomic_write import sync
from deepvm.io.threads import start_thread
from deepvm.profiling.checkpoint.node_process import MemoryNode, machine_of
from deepvm.profiling.workload import train_step
from deepvm.profiling.workload.models import build
from deepvm.profiling.workload.spec import Workload
from deepvm.records import dataclass

CLASSES = 1000
LIMIT_S = 300.0  # a save that takes longer has failed

# By the name of ``--model``: images so small that a step takes part of a second on a CPU
MODELS = {
    "resnet18": Workload("resnet18", 96, batch=4),
    "resnet152": Workload("resnet152", 64, batch=2),
}


class Training(train_step.Training):
    """The training that is saved: on the CPU, with Adam, the same at every start."""

    def __init__(self, workload: Workload) -> None:
        cpu = torch.device("cpu")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = build(workload.model, CLASSES)
            batches = train_step.synthetic(workload.batch, workload.resolution, CLASSES, cpu)
        super().__init__(model, workload, batches, cpu, train_step.Ranks(0, 1, cpu, Path(), 0))
        self.step()

    def state(self) -> JsonDict:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def state_bytes(self) -> int:
        of_optimizer = (t for values in self.optimizer.state.values() for t in values.values())
        return sum(t.nbytes for t in (*self.model.state_dict().values(), *of_optimizer))


class Times(NamedTuple):
    """Seconds that a save stalled training, and seconds from its start to the guarantee."""

    stall_s: float
    durable_s: float


_WRITTEN: Future[None] = Future()
_WRITTEN.set_result(None)


class Method:
    """One way to save. The training thread calls ``save`` and ``finish`` in turn."""

    blocks = False  # nothing is left to do in the background
    durable = False  # it needs no fsync of ours

    def __init__(self, training: Training, folder: Path, stack: ExitStack) -> None:
        self.training = training
        self.folder = folder

    def _begin(self) -> Future[Any]:
        """Start to save; the future ends when everything is written."""
        raise NotImplementedError

    def save(self) -> None:
        self._start = time.perf_counter()
        written = self._begin()
        self._stall_s = time.perf_counter() - self._start
        self._safe: Future[float] = Future()
        # Called in the thread that wrote the files, or at once.
        written.add_done_callback(self._make_durable)

    def _make_durable(self, written: Future[Any]) -> None:
        try:
            written.result()
            if not self.durable:
                _sync(self.folder / "state")
            self._safe.set_result(time.perf_counter())
        except BaseException as error:
            self._safe.set_exception(error)

    def finish(self) -> Times:
        try:
            end = self._safe.result(LIMIT_S)
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"a checkpoint could not be saved: {type(error).__name__}: {error}"
            ) from error
        self._tidy()
        return Times(self._stall_s, end - self._start)

    def _tidy(self) -> None:
        shutil.rmtree(self.folder)
        self.folder.mkdir()


class TorchSave(Method):
    """``torch.save`` into a new file, and fsync: what most training scripts do; the reference."""

    blocks = durable = True

    def _begin(self) -> Future[Any]:
        with (self.folder / "state.pt").open("xb") as file:
            torch.save(self.training.state(), file)
            file.flush()
            os.fsync(file.fileno())
        return _WRITTEN


class Dcp(Method):
    """``torch.distributed.checkpoint.save``."""

    blocks = True

    def _begin(self) -> Future[Any]:
        folder = self.folder / "state"
        writer = filesystem.FileSystemWriter(folder)
        state_dict_saver.save(
            self.training.state(), checkpoint_id=folder, storage_writer=writer, no_dist=True
        )
        return _WRITTEN


class DcpAsync(Method):
    """``torch.distributed.checkpoint.async_save``, with a stager that reuses its memory."""

    def __init__(self, training: Training, folder: Path, stack: ExitStack) -> None:
        from torch.distributed.checkpoint import staging

        super().__init__(training, folder, stack)
        self._more: JsonDict = {}
        # Before torch 2.9 there is no stager, and every save allocates memory.
        if hasattr(staging, "DefaultStager"):
            # All it can do beyond copying needs a GPU.
            stager = staging.DefaultStager(staging.StagingOptions(False, False, False, False))
            stack.callback(stager.close)
            self._more["async_stager"] = stager

    def _begin(self) -> Future[Any]:
        folder = self.folder / "state"
        writer = filesystem.FileSystemWriter(folder)
        saved: Any = state_dict_saver.async_save(
            self.training.state(),
            checkpoint_id=folder,
            storage_writer=writer,
            no_dist=True,
            **self._more,
        )
        # Older releases return the future itself
        written: Future[Any] = getattr(saved, "upload_completion", saved)
        return written


class TorchSnapshot(Method):
    """``torchsnapshot.Snapshot.async_take``."""

    def _begin(self) -> Future[Any]:
        snapshot = importlib.import_module("torchsnapshot").Snapshot
        objects = {"model": self.training.model, "optimizer": self.training.optimizer}
        pending = snapshot.async_take(str(self.folder / "state"), objects)
        written: Future[Any] = Future()
        # An executor's thread would be joined at exit, even if it hangs.
        start_thread(fulfil, written, pending.wait)
        return written


class DeepVM(Method):
    """A :class:`~deepvm.checkpoint.Checkpointer`; a future of its handle is the guarantee."""

    durable = True

    def __init__(
        self, training: Training, folder: Path, stack: ExitStack, tier: str | Tier, guarantee: str
    ) -> None:
        super().__init__(training, folder, stack)
        self._checkpointer = Checkpointer(
            model=training.model, optimizer=training.optimizer, tiers=[tier], job="bench", every=1
        )
        self._guarantee = guarantee
        stack.callback(self._checkpointer.close)
        self._iterations = self._checkpointer.steps()
        next(self._iterations)

    def _begin(self) -> Future[Any]:
        next(self._iterations)  # all steps since the last version are one iteration
        self._handle = self._checkpointer.handles[-1]
        self._counted_s = self._handle.stall_s
        written: Future[Any] = getattr(self._handle, self._guarantee)
        return written

    def finish(self) -> Times:
        """As :class:`Method`, plus the stall before the next step, which the handle adds later."""
        stall_s, durable_s = super().finish()
        return Times(stall_s + self._handle.stall_s - self._counted_s, durable_s)

    def _tidy(self) -> None:
        pass  # the checkpointer removes old versions itself


def _on_disk(training: Training, folder: Path, stack: ExitStack) -> Method:
    # In memory (tmpfs) nothing is durable, for the reference neither.
    guarantee = "durable"
    if medium(folder).volatile:
        guarantee = "local_done"
    return DeepVM(training, folder, stack, folder.resolve().as_uri(), guarantee)


def _on_node(training: Training, folder: Path, stack: ExitStack, *, persist: bool) -> Method:
    # Room for three versions: being sent, complete, and being flushed.
    room = 3 * training.state_bytes() + 2**28
    store = (folder / "persisted").resolve().as_uri() if persist else ""
    node = stack.enter_context(MemoryNode(folder, room, store))
    tier = TcpTier(node.url, secrets.token_hex(8), node.secret)
    durable = persist and not medium(folder).volatile
    return DeepVM(training, folder, stack, tier, "durable" if durable else "remote_done")


# By the name of ``--methods``
METHODS: dict[str, Callable[[Training, Path, ExitStack], Method]] = {
    "torch.save": TorchSave,
    "dcp": Dcp,
    "dcp-async": DcpAsync,
    "torchsnapshot": TorchSnapshot,
    "deepvm-file": _on_disk,
    "deepvm-memory": partial(_on_node, persist=False),
    "deepvm-memory-durable": partial(_on_node, persist=True),
}

REFERENCE = "torch.save"


def available() -> tuple[str, ...]:
    """The methods that can be used here; torchsnapshot only where it is installed."""
    return tuple(
        m for m in METHODS if m != "torchsnapshot" or importlib.util.find_spec("torchsnapshot")
    )


def _sync(folder: Path) -> None:
    for base, _, names in os.walk(folder):
        for path in [*(Path(base, n) for n in names), Path(base)]:
            sync(path)


STEPS = 4  # of training after each save, in which background work can end
# Uncounted saves per method: memory nodes have so many slots, folders so many files to reuse
WARM_UPS = 3
_VERSIONS = 4


@dataclass(frozen=True)
class Figures:
    """Medians of one method, in seconds and over the reference's."""

    stall_s: float  # training stalls
    durable_s: float  # until the guarantee holds, on an otherwise idle machine
    training_s: float  # the same while training continues
    extra_s: float  # how much longer a loop takes with a checkpoint; noise can make it negative
    stall_ratio: float
    durable_ratio: float
    training_ratio: float
    extra_ratio: float | None  # None unless the reference's is above 0


@dataclass(frozen=True)
class Bench:
    """The result; ``bytes``: of the state; ``step_s``: median step without checkpoints."""

    model: str
    bytes: int
    reps: int
    steps: int
    step_s: float
    machine: JsonObject
    methods: Mapping[str, Figures]

    def document(self) -> dict[str, object]:
        return document_of("profiling.Bench", self)


@dataclass(frozen=True)
class _Sample:
    """One round, in seconds; saves of a blocking method count as in the loop and alone."""

    bare_s: float
    loop_s: float
    in_loop: tuple[Times, ...]
    alone: tuple[Times, ...]


def run_bench(
    model: str,
    reps: int = 5,
    *,
    methods: Sequence[str] = (),
    folder: Path | None = None,
    steps: int = STEPS,
    say: Say = lambda line: None,
) -> Bench:
    """Measure :data:`METHODS` (default: all available) and the reference.

    In each of ``reps`` rounds every method saves once with ``steps`` of training after it, and once
    (twice if it does not block) alone. Raises RequestError, CheckpointError.
    """
    refuse_unknown("model", model, MODELS, ", ")
    refuse_outside("reps", reps, 1)
    refuse_outside("steps", steps, 1)
    possible = available()
    for name in methods:
        refuse_unknown("methods", name, possible, ", ")
    names = [m for m in possible if not methods or m in methods or m == REFERENCE]
    if folder is not None and not folder.is_dir():
        raise RequestError("dir", str(folder), "a folder that exists")
    begun = datetime.now(timezone.utc)
    training = Training(MODELS[model])
    size = training.state_bytes()
    needed = size * _VERSIONS * len(names)
    where = folder or Path(tempfile.gettempdir())
    if (free := shutil.disk_usage(where).free) < needed:
        raise CheckpointError(
            f"{where}: {needed / 1e9:.1f} GB of free space are needed, {free / 1e9:.1f} GB are"
            " there; choose another folder with --dir, or fewer methods with --methods"
        )
    with ExitStack() as stack:
        work = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="deepvm-bench-", dir=folder))
        )
        ready = {}
        for name in names:
            own = work / name
            own.mkdir()
            ready[name] = METHODS[name](training, own, stack)
        # DCP warns at every save that it is not distributed, from its own thread as well.
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        samples = _measure(training, ready, reps, steps, say)
        of_torch = {"threads": torch.get_num_threads(), "torch": str(torch.__version__)}
        machine = machine_of(work, begun) | of_torch
    return Bench(
        model=model,
        bytes=size,
        reps=reps,
        steps=steps,
        step_s=median(s.bare_s for own in samples.values() for s in own) / steps,
        machine=machine,
        methods=_figures(samples),
    )


def _measure(
    training: Training, ready: Mapping[str, Method], reps: int, steps: int, say: Say
) -> dict[str, list[_Sample]]:
    samples: dict[str, list[_Sample]] = {name: [] for name in ready}
    names = list(ready)
    for rep in range(1 - WARM_UPS, reps + 1):
        # Another method is first each time, so that none gains by its place.
        order = names[rep % len(names) :] + names[: rep % len(names)]
        looped = {name: _in_loop(training, ready[name], steps if rep > 0 else 1) for name in order}
        for name in order:
            sample = _sample(training, ready[name], *looped[name])
            stall_s, durable_s, training_s, _ = _seconds([sample])
            say(
                f"{f'{rep}/{reps}' if rep > 0 else 'warm-up':>8}  {name:<22}"
                f"stall {stall_s * 1e3:8.1f} ms  safe after {durable_s * 1e3:8.1f} ms, "
                f"in training {training_s * 1e3:8.1f} ms  "
                f"loop {sample.loop_s:.3f} s, without {sample.bare_s:.3f} s"
            )
            if rep > 0:
                samples[name].append(sample)
    return samples


def _in_loop(training: Training, method: Method, steps: int) -> tuple[Times, float, float]:
    # Right before the loop with a checkpoint: the load of the machine changes slowly.
    bare_s = training.run(steps)
    start = time.perf_counter()
    method.save()
    training.run(steps)
    loop_s = time.perf_counter() - start
    return method.finish(), bare_s, loop_s


def _sample(
    training: Training, method: Method, in_loop: Times, bare_s: float, loop_s: float
) -> _Sample:
    first = _alone(training, method)
    if method.blocks:
        return _Sample(bare_s, loop_s, in_loop=(in_loop, first), alone=(in_loop, first))
    # Two here as well, so that no method has fewer samples than the reference.
    return _Sample(bare_s, loop_s, in_loop=(in_loop,), alone=(first, _alone(training, method)))


def _alone(training: Training, method: Method) -> Times:
    training.step()  # an unchanged state would not be saved, or be found in the processor's caches
    method.save()
    return method.finish()


def _figures(samples: Mapping[str, Sequence[_Sample]]) -> dict[str, Figures]:
    seconds = {name: _seconds(own) for name, own in samples.items()}
    *reference, extra = seconds[REFERENCE]
    found = {}
    for name, own in seconds.items():
        stall, durable, training = (a / b for a, b in zip(own, reference, strict=False))
        found[name] = Figures(
            *own, stall, durable, training, own[-1] / extra if extra > 0 else None
        )
    return found


def _seconds(own: Sequence[_Sample]) -> tuple[float, float, float, float]:
    stall_s = median(t.stall_s for s in own for t in s.in_loop)
    durable_s = median(t.durable_s for s in own for t in s.alone)
    training_s = median(t.durable_s for s in own for t in s.in_loop)
    return stall_s, durable_s, training_s, median(s.loop_s - s.bare_s for s in own)
