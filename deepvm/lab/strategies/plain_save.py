"""What most scripts do: rank 0 calls ``torch.save`` to a file and renames it over the last."""

import os
import time

import torch

from deepvm.core.json_types import JsonDict
from deepvm.lab.strategies.blocking import BlockingStrategy
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
        self.saved(row)

    def put(self, row: CheckpointRow, captured: JsonDict) -> None:
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
        self.state.barrier()
        target = self.setting.folder / "last-1.pt"
        saved = None
        try:
            if target.exists():
                saved = torch.load(target, weights_only=False)
        except Exception as error:  # torch may raise anything at a damaged file
            self.setting.note("damaged", checkpoints=int(not self.state.rank), why=str(error)[:200])
        step = 0
        if saved is not None:
            step = int(saved["step"])
        step = int(self.state.of_first_rank(step))
        if saved is not None and step:
            self.state.unpack(saved)
        return step
