"""PyTorch's Distributed Checkpoint, synchronous or asynchronous: each rank writes its part."""

import io
import os
import shutil
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from deepvm.checkpoint.files.version_dir import EpochFile
from deepvm.core.json_types import JsonDict
from deepvm.lab.strategies.state import State, cloned, random_states, set_random_states
from deepvm.lab.strategies.strategy import CheckpointRow, Setting, Strategy

# What DCP raises: its own exception is no Exception (torch 2.13)
_ERRORS = (Exception, CheckpointException)


class Dcp(Strategy):
    """PyTorch's distributed checkpoint: a folder each, renamed by rank 0 once it is complete."""

    all_ranks_write = True

    def __init__(self, state: State, setting: Setting) -> None:
        super().__init__(state, setting)
        self._fence = EpochFile(setting.folder, "lab")
        setting.folder.mkdir(parents=True, exist_ok=True)
        if not state.rank:
            self._fence.begin(setting.attempt)
            # What an older attempt was writing as it was killed
            for path in setting.folder.glob(".step-*"):
                shutil.rmtree(path, ignore_errors=True)

    def save(self, step: int) -> None:
        row = CheckpointRow(step)
        began_s = time.perf_counter()
        tree = self._tree(step)
        row.snapshot_s = time.perf_counter() - began_s
        try:
            save(tree, checkpoint_id=self._hidden(step), planner=_planner())
        except _ERRORS as error:
            # The others learn of it, too: the checkpoint is given up everywhere
            row.error = _short(error)
        row.foreground_s = time.perf_counter() - began_s - row.snapshot_s
        self.commit(row)
        row.stall_s = time.perf_counter() - began_s
        if not self.state.rank:
            self.saved(row)

    def commit(self, row: CheckpointRow) -> None:
        hidden = self._hidden(row.step)
        target = self.setting.folder / f"step-{row.step:09d}"
        if self.state.rank:
            return
        if row.error:
            shutil.rmtree(hidden, ignore_errors=True)
            return
        row.bytes = sum(path.stat().st_size for path in hidden.rglob("*") if path.is_file())
        try:
            with self._fence.current(self.setting.attempt):
                shutil.rmtree(target, ignore_errors=True)
                os.replace(hidden, target)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)
        for old in sorted(self.setting.folder.glob("step-*"), reverse=True)[self.setting.keep :]:
            shutil.rmtree(old, ignore_errors=True)

    def _tree(self, step: int) -> JsonDict:
        """What is saved: DCP flattens it; each rank has random numbers of its own."""
        model, optimizer = get_state_dict(self.state.module, self.state.optimizer)
        mine = {"random": random_states(), "scheduler": self.state.scheduler.state_dict()}
        whole = {"model": model, "optimizer": optimizer, "step": torch.tensor(step)}
        whole["sampler"] = {k: torch.tensor(v) for k, v in self.state.sampler.state_dict().items()}
        return {**whole, f"rank-{self.state.rank}": {"bytes": _packed(mine)}}

    def restore(self) -> int:
        self.state.barrier()
        names = sorted((path.name for path in self.setting.folder.glob("step-*")), reverse=True)
        for name in self.state.of_first_rank(names):
            if self._load(self.setting.folder / name):
                return int(name.rpartition("-")[2])
            if not self.state.rank:
                self.setting.note("damaged", checkpoints=1)
        # DCP fills it with momentum of weight decay while it looks (torch 2.13)
        self.state.optimizer.state.clear()
        return 0

    def _load(self, folder: Path) -> bool:
        # DCP loads in place: what is damaged must not reach the training
        tree = cloned(self._tree(0))
        del tree[f"rank-{self.state.rank}"]
        mine: dict[str, Tensor] = {}
        try:
            owner, size = _owner(folder, self.state.rank)
            tree[owner] = mine = {"bytes": torch.zeros(size, dtype=torch.uint8)}
            readable = True
        except _ERRORS as error:
            readable = self._cannot(error)
        if not self._everywhere(readable):  # DCP's load is collective
            return False
        try:
            load(tree, checkpoint_id=folder)
            readable = True
        except _ERRORS as error:
            readable = self._cannot(error)
        if not self._everywhere(readable):
            return False
        self._take(tree, _unpacked(mine["bytes"]))
        return True

    def _cannot(self, error: BaseException) -> bool:
        self.setting.note("unreadable", why=_short(error))
        return False

    def _everywhere(self, here: bool) -> bool:
        everywhere = [here] * self.state.world
        if self.state.world > 1:
            dist.all_gather_object(everywhere, here)
        return all(everywhere)

    def _take(self, tree: JsonDict, mine: JsonDict) -> None:
        whole = {"model_state_dict": tree["model"], "optim_state_dict": tree["optimizer"]}
        set_state_dict(self.state.module, self.state.optimizer, **whole)
        self.state.scheduler.load_state_dict(mine["scheduler"])
        self.state.sampler.load_state_dict({k: int(v) for k, v in tree["sampler"].items()})
        set_random_states(mine["random"])

    def close(self) -> None:
        """Nothing is in flight."""

    def _hidden(self, step: int) -> Path:
        return self.setting.folder / f".step-{step:09d}.{self.setting.attempt}"


class DcpAsync(Dcp):
    """``async_save``: a copy, then background writing; one at a time, as DCP requires."""

    def __init__(self, state: State, setting: Setting) -> None:
        super().__init__(state, setting)
        self._group = None
        if state.world > 1:
            self._group = dist.new_group(backend="gloo")
        self._flight: tuple[CheckpointRow, Future[Any], float] | None = None

    def save(self, step: int) -> None:
        row = CheckpointRow(step)
        began_s = time.perf_counter()
        self._land()
        row.backpressure_s = time.perf_counter() - began_s
        tree = self._tree(step)
        made: Any = async_save(
            tree, checkpoint_id=self._hidden(step), planner=_planner(), process_group=self._group
        )
        row.snapshot_s = time.perf_counter() - began_s - row.backpressure_s
        row.stall_s = time.perf_counter() - began_s
        self._flight = row, made, time.perf_counter()
        if not self.state.rank:
            self.stalled(step, row.stall_s, snapshot_s=row.snapshot_s)

    def stepped(self, step: int) -> None:
        if self._flight is not None and self._flight[1].done():
            self._land(stalls=True)

    def _land(self, *, stalls: bool = False) -> None:
        """Publish the save in flight; ``stalls``: no other checkpoint counts the wait for it."""
        if self._flight is None:
            return
        began_s = time.perf_counter()
        (row, future, since_s) = self._flight
        self._flight = None
        try:
            future.result()
        except _ERRORS as error:  # of any rank
            row.error = _short(error)
        row.background_s = time.perf_counter() - since_s
        self.commit(row)
        if not self.state.rank:
            if stalls:
                took_s = time.perf_counter() - began_s
                row.stall_s = row.stall_s + took_s
                row.foreground_s = took_s
                self.stalled(row.step, took_s, write_s=took_s)
            self.setting.record(row)

    def close(self) -> None:
        self._land()


def _planner() -> DefaultSavePlanner:
    """Rank 0 writes shared entries: BatchNorm statistics differ by rank, and DDP uses rank 0's."""
    return DefaultSavePlanner(dedup_save_to_lowest_rank=True)


def _packed(value: Any) -> Tensor:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def _unpacked(data: Tensor) -> Any:
    return torch.load(io.BytesIO(data.numpy().tobytes()), weights_only=False)


def _owner(folder: Path, rank: int) -> tuple[str, int]:
    """Whose part a rank resumes from (rank 0's if the world was smaller), and its size."""
    metadata = FileSystemReader(folder).read_metadata().state_dict_metadata
    owner = "rank-0"
    if f"rank-{rank}.bytes" in metadata:
        owner = f"rank-{rank}"
    return owner, int(metadata[f"{owner}.bytes"].size[0])  # type: ignore[union-attr]


def _short(error: BaseException) -> str:
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    return f"{type(error).__name__}: {error}"[:200]
