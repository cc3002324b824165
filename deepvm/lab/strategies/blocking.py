"""Training waits for each write of a checkpoint (ECRL 4.4): barrier, capture, write, barrier."""

from __future__ import annotations

import io
import time
from typing import Any

import torch
import torch.distributed as dist

from deepvm.lab.strategies.checkpoint_files import CheckpointFiles
from deepvm.lab.strategies.state import GatheredRandomStates, State
from deepvm.lab.strategies.strategy import CheckpointRow, Setting, Strategy


class BlockingStrategy(Strategy):
    """Rank 0 writes, and all wait."""

    def __init__(self, state: State, setting: Setting) -> None:
        super().__init__(state, setting)
        if state.rank:
            self.files = None
        else:
            self.files = CheckpointFiles(setting.folder, setting.attempt, setting.keep)

    def save(self, step: int) -> None:
        """Collective."""
        began_s = time.perf_counter()
        barrier(self.state)
        row = CheckpointRow(step)
        captured = self.captured(row)
        if captured is not None and self.files is not None:
            wrote_s = time.perf_counter()
            self.put(row, captured)
            row.foreground_s = time.perf_counter() - wrote_s
        barrier(self.state)
        if captured is not None:
            row.stall_s = time.perf_counter() - began_s
            self.stalled(step, row.stall_s, snapshot_s=row.snapshot_s, write_s=row.foreground_s)
            self.setting.record(row)

    def captured(self, row: CheckpointRow, *, clone: bool = False) -> dict[str, Any] | None:
        """The state, on rank 0; all ranks send it their random numbers, which ``put`` waits for."""
        began_s = time.perf_counter()
        randoms = GatheredRandomStates(self.state.rank, self.state.world)
        if self.state.rank:
            return None
        captured = {**self.state.pack(clone=clone), "random": randoms}
        row.snapshot_s = time.perf_counter() - began_s
        return captured

    def complete(self, captured: dict[str, Any]) -> dict[str, Any]:
        randoms = captured["random"].wait()
        return {
            **captured,
            "random": randoms[:1] if "one-rank-random" in self.setting.controls else randoms,
        }

    def put(self, row: CheckpointRow, captured: dict[str, Any]) -> None:
        assert self.files is not None
        buffer = io.BytesIO()
        torch.save(self.complete(captured), buffer)
        written = self.files.write(
            row.step, buffer.getbuffer(), early="early-commit" in self.setting.controls
        )
        row.bytes = written.bytes
        row.retries = written.retries
        row.error = written.error

    def restore(self) -> int:
        """Rank 0 looks for the newest good one, and tells the others."""
        if self.files is not None:
            checkpoint, damaged = self.files.newest()
        else:
            checkpoint, damaged = (None, 0)
        newest: list[Any] = [checkpoint]
        if self.state.world > 1:
            dist.broadcast_object_list(newest)
        if damaged:
            self.setting.note("damaged", checkpoints=damaged)
        if newest[0] is None:
            return 0
        step, data = newest[0]
        self.state.unpack(torch.load(io.BytesIO(data), weights_only=False))
        return int(step)

    def close(self) -> None:
        """Nothing is in flight."""


def barrier(state: State) -> None:
    """Wait for all ranks."""
    if state.world > 1:
        dist.barrier()
