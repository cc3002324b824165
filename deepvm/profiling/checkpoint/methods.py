"""The ways to save that are compared, each used as its manual says is fastest.

All save right after an optimizer step and do as much as they can during the steps that follow. One
clock outside times all of them; a method that does not promise durability gets the fsync that is
missing.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint import filesystem, state_dict_saver

from deepvm.checkpoint.checkpointer import Checkpointer
from deepvm.checkpoint.files.durable_write import medium
from deepvm.checkpoint.tiers.base import Tier, fulfil
from deepvm.checkpoint.tiers.tcp import TcpTier
from deepvm.errors import CheckpointError
from deepvm.io.atomic_write import sync
from deepvm.profiling.checkpoint.node_process import MemoryNode
from deepvm.profiling.workload import train_step
from deepvm.profiling.workload.models import build
from deepvm.profiling.workload.spec import Workload

CLASSES = 1000
LIMIT_S = 300.0  # a save that takes longer has failed

MODELS = {
    "resnet18": Workload("resnet18", 96, batch=4),
    "resnet152": Workload("resnet152", 64, batch=2),
}
"""By the name of ``--model``: images so small that a step takes part of a second on a CPU."""


class Training(train_step.Training):
    """The training that is saved: on the CPU, with Adam, the same at every start."""

    def __init__(self, workload: Workload) -> None:
        """Make the model and do one step, after which Adam's state has its full size."""
        cpu = torch.device("cpu")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = build(workload.model, CLASSES)
            batches = train_step.synthetic(workload.batch, workload.resolution, CLASSES, cpu)
        super().__init__(model, workload, batches, cpu, train_step.Ranks(0, 1, cpu, Path(), 0))
        self.step()

    def state(self) -> dict[str, Any]:
        """What every method saves."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def state_bytes(self) -> int:
        """Bytes of all tensors of the state."""
        of_optimizer = (t for values in self.optimizer.state.values() for t in values.values())
        return sum(t.nbytes for t in (*self.model.state_dict().values(), *of_optimizer))


class Times(NamedTuple):
    """Seconds that a save stalled training, and seconds from its start to the guarantee."""

    stall_s: float
    durable_s: float


_WRITTEN: Future[None] = Future()
_WRITTEN.set_result(None)


class Method:
    """One way to save. The training thread calls ``save`` and ``finish`` in turn.

    Attributes:
        blocks: whether nothing is left to do in the background. durable: whether it needs no fsync
            of ours.
    """

    blocks = False
    durable = False

    def __init__(self, training: Training, folder: Path, stack: ExitStack) -> None:
        """Save the state of ``training`` to an empty ``folder``; ``stack`` ends processes."""
        self.training = training
        self.folder = folder

    def _begin(self) -> Future[Any]:
        """Start to save; the future ends when everything is written."""
        raise NotImplementedError

    def save(self) -> None:
        """Start to save the present state; training may continue when it returns."""
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
        """Wait until the guarantee holds, then tidy up.

        Raises a CheckpointError if the save failed.
        """
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
        """Make the stager; before torch 2.9 there is none, and every save allocates memory."""
        from torch.distributed.checkpoint import staging

        super().__init__(training, folder, stack)
        self._more: dict[str, Any] = {}
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
        threading.Thread(target=fulfil, args=(written, pending.wait), daemon=True).start()
        return written


class DeepVM(Method):
    """A :class:`~deepvm.checkpoint.Checkpointer`; a future of its handle is the guarantee."""

    durable = True

    def __init__(
        self, training: Training, folder: Path, stack: ExitStack, tier: str | Tier, guarantee: str
    ) -> None:
        """Start the loop of the checkpointer."""
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


METHODS: dict[str, Callable[[Training, Path, ExitStack], Method]] = {
    "torch.save": TorchSave,
    "dcp": Dcp,
    "dcp-async": DcpAsync,
    "torchsnapshot": TorchSnapshot,
    "deepvm-file": _on_disk,
    "deepvm-memory": partial(_on_node, persist=False),
    "deepvm-memory-durable": partial(_on_node, persist=True),
}
"""By the name of ``--methods``."""

REFERENCE = "torch.save"


def available() -> tuple[str, ...]:
    """The methods that can be used here; torchsnapshot only where it is installed."""
    return tuple(
        m for m in METHODS if m != "torchsnapshot" or importlib.util.find_spec("torchsnapshot")
    )


def _sync(folder: Path) -> None:
    """Fsync every file below a folder, and the folders."""
    for base, _, names in os.walk(folder):
        for path in [*(Path(base, n) for n in names), Path(base)]:
            sync(path)
