"""The ways to save that are compared. Each keeps the promise of its name, and is used as its manual says is fastest.

All are asked to save right after an optimizer step and do their work beside the steps that follow, as far as they can.
Times are taken from outside with one clock; what has no promise of durability gets the fsync that is missing.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from deepvm.checkpoint.checkpointer import Checkpointer
from deepvm.checkpoint.files.durable_write import medium
from deepvm.checkpoint.tiers.base import Tier
from deepvm.checkpoint.training.save_handle import Handle
from deepvm.errors import CheckpointError
from deepvm.profiling.checkpoint.bench_training import Training
from deepvm.profiling.checkpoint.local_node import Node

LIMIT_S = 300.0
"""Seconds after which a save that has not ended counts as broken."""


@dataclass(frozen=True)
class Times:
    """What one checkpoint cost.

    Attributes:
        stall_s: seconds for which the training thread stood still because of it.
        durable_s: seconds from its start until the method's guarantee held.
    """

    stall_s: float
    durable_s: float


@dataclass(frozen=True)
class Place:
    """What a method gets to work with.

    Attributes:
        training: whose state is saved. folder: its own, empty. state_bytes: how much a version is.
    """

    training: Training
    folder: Path
    state_bytes: int


class Method(ABC):
    """One way to save. ``save`` and ``finish`` are called in turn, by the thread that trains.

    Attributes:
        blocks: training stands still until all is done, so that it makes no difference whether it goes on later.
    """

    blocks = False

    def __init__(self, place: Place) -> None:
        """Remember where; a subclass may start what it needs."""
        self.place = place

    @abstractmethod
    def save(self) -> None:
        """Save the present state; returns as soon as training may go on."""

    @abstractmethod
    def finish(self) -> Times:
        """Wait until the guarantee holds, then tidy up, which nobody measures.

        Raises:
            CheckpointError: it does not come to hold.
        """

    def close(self) -> None:  # noqa: B027  most have nothing to close
        """Stop what was started."""


class TorchSave(Method):
    """``torch.save`` into a new file, and fsync: what most trainings do, and the measure of all."""

    blocks = True

    def save(self) -> None:
        """See :class:`Method`."""
        start = time.perf_counter()
        with (self.place.folder / "state.pt").open("xb") as file:
            torch.save(self.place.training.state(), file)
            file.flush()
            os.fsync(file.fileno())
        self._taken_s = time.perf_counter() - start

    def finish(self) -> Times:
        """See :class:`Method`."""
        _empty(self.place.folder)
        return Times(self._taken_s, self._taken_s)


class Dcp(Method):
    """``torch.distributed.checkpoint.save``."""

    blocks = True

    def save(self) -> None:
        """See :class:`Method`."""
        from torch.distributed.checkpoint import filesystem, state_dict_saver

        start = time.perf_counter()
        folder = self.place.folder / "state"
        state_dict_saver.save(
            self.place.training.state(),
            checkpoint_id=folder,
            storage_writer=filesystem.FileSystemWriter(folder),
            no_dist=True,
        )
        stall_s = time.perf_counter() - start
        _sync(folder)
        self._times = Times(stall_s, time.perf_counter() - start)

    def finish(self) -> Times:
        """See :class:`Method`."""
        _empty(self.place.folder)
        return self._times


class DcpAsync(Method):
    """``torch.distributed.checkpoint.async_save``, with a stager whose memory is used again."""

    def __init__(self, place: Place) -> None:
        """Make the stager; before torch 2.9 there is none, and every save takes new memory."""
        from torch.distributed.checkpoint import staging

        super().__init__(place)
        self._more: dict[str, Any] = {}
        if hasattr(staging, "DefaultStager"):
            # Everything that it can do beyond copying needs a GPU.
            options = staging.StagingOptions(False, False, False, False)
            self._more["async_stager"] = staging.DefaultStager(options)

    def save(self) -> None:
        """See :class:`Method`."""
        from torch.distributed.checkpoint import filesystem, state_dict_saver

        self._start = time.perf_counter()
        folder = self.place.folder / "state"
        saved: Any = state_dict_saver.async_save(
            self.place.training.state(),
            checkpoint_id=folder,
            storage_writer=filesystem.FileSystemWriter(folder),
            no_dist=True,
            **self._more,
        )
        self._stall_s = time.perf_counter() - self._start
        # Older releases return the future itself. Its callback runs in the thread that wrote the files.
        self._done = _then(getattr(saved, "upload_completion", saved), lambda: _sync(folder))

    def finish(self) -> Times:
        """See :class:`Method`."""
        end = _result(self._done)
        _empty(self.place.folder)
        return Times(self._stall_s, end - self._start)

    def close(self) -> None:
        """See :class:`Method`."""
        if self._more:
            self._more["async_stager"].close()


class TorchSnapshot(Method):
    """``torchsnapshot.Snapshot.async_take``."""

    def save(self) -> None:
        """See :class:`Method`."""
        import threading

        snapshot = importlib.import_module("torchsnapshot").Snapshot
        folder = self.place.folder / "state"
        objects = {"model": self.place.training.model, "optimizer": self.place.training.optimizer}
        self._start = time.perf_counter()
        pending = snapshot.async_take(str(folder), objects)
        self._stall_s = time.perf_counter() - self._start
        self._done: Future[float] = Future()

        def wait() -> None:
            try:
                pending.wait()
                _sync(folder)
                self._done.set_result(time.perf_counter())
            except BaseException as error:
                self._done.set_exception(error)

        threading.Thread(target=wait, daemon=True).start()

    def finish(self) -> Times:
        """See :class:`Method`."""
        end = _result(self._done)
        _empty(self.place.folder)
        return Times(self._stall_s, end - self._start)


class DeepVM(Method):
    """A :class:`~deepvm.checkpoint.Checkpointer`, and which of its handle's futures is the guarantee."""

    def __init__(
        self, place: Place, tier: str | Tier, guarantee: Literal["durable", "remote_done", "local_done"]
    ) -> None:
        """Hook into the optimizer."""
        super().__init__(place)
        training = place.training
        self._checkpointer = Checkpointer(model=training.model, optimizer=training.optimizer, tiers=[tier], job="bench")
        self._guarantee = guarantee

    def save(self) -> None:
        """See :class:`Method`."""
        self._start = time.perf_counter()
        self._handle: Handle = self._checkpointer.save()
        # The call, and what the handle adds to itself later: the wait before the next optimizer step.
        self._call_s = time.perf_counter() - self._start - self._handle.stall_s
        self._done = _then(getattr(self._handle, self._guarantee), lambda: None)

    def finish(self) -> Times:
        """See :class:`Method`."""
        end = _result(self._done)
        stall_s = self._call_s + self._handle.stall_s
        return Times(stall_s, end - self._start)

    def close(self) -> None:
        """See :class:`Method`."""
        self._checkpointer.close()


class DeepVMNode(DeepVM):
    """The same with a memory node on this machine, over loopback."""

    def __init__(self, place: Place, *, persist: bool) -> None:
        """Start the node."""
        # Room for a version that is sent, one that is complete, and one that is being flushed.
        self._node = Node(place.folder, 3 * place.state_bytes + 2**28, persist=persist)
        durable = persist and not medium(place.folder).volatile
        try:
            super().__init__(place, self._node.tier(), "durable" if durable else "remote_done")
        except BaseException:
            self._node.close()
            raise

    def close(self) -> None:
        """See :class:`Method`."""
        try:
            super().close()
        finally:
            self._node.close()


METHODS: dict[str, Callable[[Place], Method]] = {
    "torch.save": TorchSave,
    "dcp": Dcp,
    "dcp-async": DcpAsync,
    "torchsnapshot": TorchSnapshot,
    # In memory (tmpfs) nothing is durable, for the reference neither: what that folder can promise is compared.
    "deepvm-file": lambda place: DeepVM(
        place, place.folder.resolve().as_uri(), "local_done" if medium(place.folder).volatile else "durable"
    ),
    "deepvm-memory": lambda place: DeepVMNode(place, persist=False),
    "deepvm-memory-durable": lambda place: DeepVMNode(place, persist=True),
}
"""By the name that ``--methods`` takes; a new one is one line here."""

REFERENCE = "torch.save"


def available() -> tuple[str, ...]:
    """The methods that can be used here; torchsnapshot only where it is installed."""
    return tuple(m for m in METHODS if m != "torchsnapshot" or importlib.util.find_spec("torchsnapshot"))


def _sync(folder: Path) -> None:
    """Fsync of every file below a folder, and of the folders."""
    for base, _, names in os.walk(folder):
        for path in [*(Path(base, n) for n in names), Path(base)]:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _then(future: Future[Any], work: Callable[[], None]) -> Future[float]:
    """When the future is there and the work, in the same thread, is done."""
    done: Future[float] = Future()

    def ended(future: Future[Any]) -> None:
        try:
            future.result()
            work()
            done.set_result(time.perf_counter())
        except BaseException as error:
            done.set_exception(error)

    future.add_done_callback(ended)
    return done


def _result(future: Future[float]) -> float:
    try:
        return future.result(LIMIT_S)
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"a checkpoint could not be saved: {type(error).__name__}: {error}") from error
