"""deepvm's :class:`~deepvm.checkpoint.Checkpointer`, to a folder or another machine's memory."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from deepvm.checkpoint.checkpointer import Checkpointer
from deepvm.checkpoint.files.version_dir import Found, VersionFolder
from deepvm.checkpoint.training.save_handle import Handle
from deepvm.errors import CheckpointError
from deepvm.lab.strategies.state import State
from deepvm.lab.strategies.strategy import CheckpointRow, Setting, Strategy, due

_JOB = "lab"


@contextlib.contextmanager
def _warnings(note: Callable[..., None]) -> Iterator[None]:
    """Record the library's warnings, too, such as why it skipped a checkpoint."""

    class Noted(logging.StreamHandler[TextIO]):
        def emit(self, record: logging.LogRecord) -> None:
            note("warned", text=record.getMessage())
            super().emit(record)

    library = logging.getLogger("deepvm.checkpoint")
    handler = Noted()
    handler.setLevel(logging.WARNING)
    library.addHandler(handler)
    try:
        yield
    finally:
        library.removeHandler(handler)


class Deepvm(Strategy):
    """``Checkpointer`` to a folder, with checkpoints between iterations of ``steps()``."""

    all_ranks_write = True
    obeys_orchestrator = True

    def __init__(self, state: State, setting: Setting) -> None:
        super().__init__(state, setting)
        extra = {"scheduler": state.scheduler, "sampler": state.sampler}
        setting.folder.mkdir(parents=True, exist_ok=True)
        tiers: list[str | Path] = [setting.folder]
        if self.in_memory:
            tiers = [*setting.tiers, *tiers]
        self._made = Checkpointer(
            model=state.trained,
            optimizer=state.optimizer,
            extra=extra,  # type: ignore[arg-type]
            tiers=tiers,
            every=setting.every,
            job=_JOB,
            keep=setting.keep,
            slots=max(2, setting.most_in_flight // 2),
        )
        self._steps: Iterator[int] = iter(())
        self._open: list[Handle] = []
        self._seen = 0
        self._stalls: dict[int, float] = {}  # What has been noted, by version

    def restore(self) -> int:
        versions: Sequence[Found] = ()
        if not self.state.rank:
            versions = VersionFolder(self.setting.folder).found(_JOB)
        with _warnings(self.setting.note):
            step = self._made.restore_latest(allow_fresh=True)
            self._steps = self._made.steps()
            next(self._steps)
        damaged = sum(one.manifest is not None and one.version > step for one in versions)
        if damaged:  # else a newer one that is recorded would have been taken
            self.setting.note("damaged", checkpoints=damaged)
        return step

    def save(self, step: int) -> None:
        """It is taken as the iteration ends, unless ranks end here by plan: then after the loop."""
        self.stepped(step)
        if not due(step, self.setting.every):
            self._steps = iter(())  # leaves the loop, as break does
            self._made.save(block=True)
            self._look(in_step=False)

    def stepped(self, step: int) -> None:
        self._look(in_step=True)
        if self._made.version < step:
            next(self._steps, None)
        self._look(in_step=False)

    def _look(self, *, in_step: bool) -> None:
        if self.state.rank:
            return
        for handle in self._made.handles:
            if handle.version > self._seen:
                self._seen = handle.version
                self._open.append(handle)
        for handle in self._open:
            before_s = self._stalls.get(handle.version, 0.0)
            now_s = handle.stall_s
            if now_s > before_s:
                self._stalls[handle.version] = now_s
                self.stalled(
                    handle.version, now_s - before_s, snapshot_s=now_s - before_s, in_step=in_step
                )
        self._record_done()

    def _record_done(self) -> None:
        for handle in [one for one in self._open if one.done]:
            self._open.remove(handle)
            stall_s = self._stalls.pop(handle.version, 0.0)
            row = CheckpointRow(
                handle.version, snapshot_s=stall_s, stall_s=stall_s, bytes=handle.size
            )
            row.background_s = max(max(handle.times.values(), default=0.0) - stall_s, 0.0)
            if handle.skipped:
                row.error = "skipped"
            elif handle.lost:
                row.error = "lost"
            self.setting.record(row)

    def close(self) -> None:
        """Finish what is in flight; a newest checkpoint that is lost is recorded as such."""
        self._look(in_step=False)
        try:
            self._made.close()
        except CheckpointError as error:
            if not any(handle.lost for handle in self._made.handles[-1:]):
                raise
            self.setting.note("warned", text=str(error))
        self._record_done()


class DeepvmTcp(Deepvm):
    """``Checkpointer`` into the memory of a node, and after that into the folder."""

    in_memory = True
