"""A thread writes copies during training (ECRL 4.4): barrier, capture, barrier, enqueue."""

import queue
import threading
import time

from deepvm.core.json_types import JsonDict
from deepvm.errors import CheckpointError
from deepvm.lab.strategies.blocking import BlockingStrategy
from deepvm.lab.strategies.state import State
from deepvm.lab.strategies.strategy import CheckpointRow, Setting


class OverlappedStrategy(BlockingStrategy):
    """Snapshot, then background write; training blocks when the queue is full."""

    def __init__(self, state: State, setting: Setting) -> None:
        super().__init__(state, setting)
        self._waiting: queue.Queue[tuple[CheckpointRow, JsonDict] | None] = queue.Queue()
        # Held while training waits: until it continues, its checkpoint's row is incomplete
        self._waited = threading.Lock()
        self._room = threading.Semaphore(setting.most_in_flight)
        self._thread = threading.Thread(target=self._write_all, name="checkpoints", daemon=True)
        self._refused: CheckpointError | None = None
        self._late: tuple[CheckpointRow, JsonDict | None] | None = None
        if not state.rank:
            self._thread.start()

    def save(self, step: int) -> None:
        if self._refused is not None:
            raise self._refused
        began_s = time.perf_counter()
        self.state.barrier()
        row = CheckpointRow(step)
        captured = self.captured(row, clone=True)
        if "uncloned" in self.setting.controls:
            self._late = (row, captured)
            return
        if captured is not None:
            copied_s = time.perf_counter()
            self._room.acquire()
            row.backpressure_s = time.perf_counter() - copied_s
        self.state.barrier()
        # After the barrier: while ranks wait, the thread would only compete with them
        with self._waited:
            if captured is not None:
                found_s = time.perf_counter()
                self._waiting.put((row, captured))
                row.enqueue_s = time.perf_counter() - found_s
            row.stall_s = time.perf_counter() - began_s
        if captured is not None:
            self.stalled(step, row.stall_s, snapshot_s=row.snapshot_s, write_s=row.enqueue_s)

    def stepped(self, step: int) -> None:
        """An intentional mistake: the optimizer's state is written after it has changed."""
        if self._late is None:
            return
        (row, captured) = self._late
        self._late = None
        if captured is not None:
            self.put(row, {**captured, "optimizer": self.state.optimizer.state_dict()})
            self.setting.record(row)
        self.state.barrier()

    def _write_all(self) -> None:
        for row, captured in iter(self._waiting.get, None):
            began_s = time.perf_counter()
            try:
                self.put(row, captured)
            except CheckpointError as error:
                # A newer attempt has started: the training learns of it at its next one
                row.error = str(error)
                self._refused = error
            except RuntimeError as error:
                # A rank has died before its random numbers came: training ends as well
                row.error = str(error)
            row.background_s = time.perf_counter() - began_s
            with self._waited:
                self.setting.record(row)
            self._room.release()

    def close(self) -> None:
        if self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join()
        if self._refused is not None:
            raise self._refused
