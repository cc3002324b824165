"""Training waits for each write of a checkpoint (ECRL 4.4): barrier, capture, write, barrier."""

import io
import time

import torch

from deepvm.core.json_types import JsonDict
from deepvm.lab.strategies.checkpoint_files import CheckpointFiles
from deepvm.lab.strategies.state import GatheredRandomStates, State
from deepvm.lab.strategies.strategy import CheckpointRow, Setting, Strategy


class BlockingStrategy(Strategy):
    """Rank 0 writes, and all wait."""

    def __init__(self, state: State, setting: Setting) -> None:
        super().__init__(state, setting)
        self.files = None
        if not state.rank:
            self.files = CheckpointFiles(setting.folder, setting.attempt, setting.keep)

    def save(self, step: int) -> None:
        began_s = time.perf_counter()
        self.state.barrier()
        row = CheckpointRow(step)
        captured = self.captured(row)
        if captured is not None and self.files is not None:
            wrote_s = time.perf_counter()
            self.put(row, captured)
            row.foreground_s = time.perf_counter() - wrote_s
        self.state.barrier()
        if captured is not None:
            row.stall_s = time.perf_counter() - began_s
            self.saved(row)

    def captured(self, row: CheckpointRow, *, clone: bool = False) -> JsonDict | None:
        """The state, on rank 0, whose ``put`` waits for all ranks' random numbers."""
        began_s = time.perf_counter()
        randoms = GatheredRandomStates(self.state.rank, self.state.world)
        if self.state.rank:
            return None
        captured = {**self.state.pack(clone=clone), "random": randoms}
        row.snapshot_s = time.perf_counter() - began_s
        return captured

    def complete(self, captured: JsonDict) -> JsonDict:
        randoms = captured["random"].wait()
        return {
            **captured,
            "random": randoms[:1] if "one-rank-random" in self.setting.controls else randoms,
        }

    def put(self, row: CheckpointRow, captured: JsonDict) -> None:
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
        newest = None
        if self.files is not None:
            newest, damaged = self.files.newest()
            if damaged:
                self.setting.note("damaged", checkpoints=damaged)
        newest = self.state.of_first_rank(newest)
        if newest is None:
            return 0
        step, data = newest
        self.state.unpack(torch.load(io.BytesIO(data), weights_only=False))
        return int(step)

    def close(self) -> None:
        """Nothing is in flight."""
