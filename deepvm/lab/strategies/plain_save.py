"""What most scripts do: rank 0 calls ``torch.save`` to a file and renames it over the last."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist

from deepvm.lab.strategies.blocking import BlockingStrategy, barrier
from deepvm.lab.strategies.strategy import CheckpointRow


class PlainSave(BlockingStrategy):
    """One file, no fsync, no checksum: a file that is damaged is the only one there was."""

    def save(self, step: int) -> None:
        """Collective, for the random numbers; the others wait at a script's next step."""
        began_s = time.perf_counter()
        row = CheckpointRow(step)
        captured = self.captured(row)
        if captured is None:
            return
        self.put(row, {**captured, "step": step})
        row.stall_s = time.perf_counter() - began_s
        row.foreground_s = row.stall_s - row.snapshot_s
        self.stalled(step, row.stall_s, snapshot_s=row.snapshot_s, write_s=row.foreground_s)
        self.setting.record(row)

    def put(self, row: CheckpointRow, captured: dict[str, Any]) -> None:
        """Write it; what fails is given up until the next time."""
        assert self.files is not None
        hidden = self.setting.folder / f".last.pt.{self.setting.attempt}"
        target = self.setting.folder / "last-1.pt"
        try:
            with hidden.open("wb") as file:
                torch.save(self.complete(captured), file)
                row.bytes = file.tell()
            with self.files.current():
                os.replace(hidden, target)
        except (OSError, RuntimeError) as error:  # torch raises its own on top of the disk's
            row.bytes = 0
            row.error = str(error)[:200]
        finally:
            hidden.unlink(missing_ok=True)

    def restore(self) -> int:
        """All ranks read the file; one that cannot be read is none."""
        barrier(self.state)
        target = self.setting.folder / "last-1.pt"
        try:
            saved = None
            if target.exists():
                saved = torch.load(target, weights_only=False)
        except Exception as error:  # torch may raise anything at a damaged file
            self.setting.note("damaged", checkpoints=int(not self.state.rank), why=str(error)[:200])
            saved = None
        steps = [0 if saved is None else int(saved["step"])]
        if self.state.world > 1:
            dist.broadcast_object_list(steps)
        if saved is not None and steps[0]:
            self.state.unpack(saved)
        return steps[0]
