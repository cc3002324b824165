"""From training memory to the tiers: one thread copies into slots, one per tier sends them."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from queue import SimpleQueue

from deepvm.checkpoint.format.checksums import UpTo
from deepvm.checkpoint.format.layout import Layout
from deepvm.checkpoint.format.manifest import Shard
from deepvm.checkpoint.loggers import log
from deepvm.checkpoint.snapshot.host_buffer import FillProgress, Slot
from deepvm.checkpoint.tiers.base import Tier, all_settled
from deepvm.checkpoint.training.save_handle import Handle
from deepvm.errors import CheckpointError, MemoryOnlyError, TierBusyError
from deepvm.io.threads import start_thread


class Pipeline:
    """A checkpointer's background threads and slots, one slot per checkpoint in flight."""

    def __init__(self, tiers: Sequence[Tier], slots: int = 2) -> None:
        self.tiers = tuple(tiers)
        self.counts = {"saved": 0, "skipped": 0, "failed": 0, "bytes": 0}
        self._most = slots
        self._slots: list[Slot] = []
        self._free: list[Slot] = []
        self._change = threading.Condition()
        self._queues: list[SimpleQueue[Callable[[], None] | None]] = [
            SimpleQueue() for _ in range(len(tiers) + 1)
        ]
        self._threads: list[threading.Thread] = []
        self._closing = False
        self.under_way = 0
        self._urgent = 0
        self._alone = False
        self._warned_of_memory = False

    def renew(self, make: Callable[[], Slot]) -> None:
        with self._change:
            self._make = make
            old = self._free
            self._slots = []
            self._free = []
        for slot in old:
            slot.release()

    def take(self, timeout_s: float = 0, *, urgent: bool = False) -> Slot | None:
        """A free slot, or None after ``timeout_s``; ``urgent``: allow one slot more."""
        most = self._most + urgent
        with self._change:
            # Slots of an earlier layout take memory until they are free.
            if not self._change.wait_for(
                lambda: self.under_way < most and (self._free or len(self._slots) < most), timeout_s
            ):
                return None
            if self._free:
                return self._free.pop()
            slot = _made(self._make)
            if slot is not None:
                self._slots.append(slot)
            return slot

    def hurry(self, version: int, *, alone: bool) -> None:
        """Drop older checkpoints not yet being sent, or (``alone``) all."""
        self._urgent = version
        self._alone = alone

    def overtaken(self, version: int, *, sending: bool) -> bool:
        return version < self._urgent and (self._alone or not sending)

    def warm(self) -> None:
        """In the background: allocate memory before the first checkpoint needs it."""

        def work() -> None:
            slot = self.take()
            if slot is not None:
                slot.touch()
                self.give_back(slot)

        self.background(work)

    def background(self, work: Callable[[], None]) -> None:
        if not self._threads:
            for name, queue in zip(
                ("copy", *(tier.url for tier in self.tiers)), self._queues, strict=True
            ):
                self._threads.append(start_thread(_serve, queue, name=f"deepvm-{name}"))
        self._queues[0].put(work)

    def fill(self, slot: Slot, layout: Layout, copy: Callable[[UpTo], None]) -> FillProgress:
        """Fill a slot in the background; ``copy`` gets a function that reports progress."""
        # Where each rank has a part, anyone who joins them fills in the checksums.
        filling = FillProgress(slot.view, layout, shared=len(self.tiers) > 1 and layout.world == 1)

        def work() -> None:
            try:
                copy(filling.reached)
                filling.reached(len(slot.view))
            except BaseException as error:
                filling.failed(CheckpointError(f"the state could not be copied: {error}"))

        self.background(work)
        # Let it start: without this it waits 5 ms for the interpreter (sys.getswitchinterval)
        time.sleep(0)
        return filling

    def send(self, slot: Slot, shard: Shard, handle: Handle, filling: FillProgress) -> None:
        """Send a slot to every tier while it is filled, then free it; ``shard``: its memory."""
        with self._change:
            self.under_way += 1
        sending = _Sending(self, slot, replace(shard, ready=filling.ready), handle)
        self.background(partial(sending.copied, filling))
        for number, queue in enumerate(self._queues[1:]):
            queue.put(partial(sending.send, number))

    def sent(self) -> None:
        with self._change:
            self.under_way -= 1
            self._change.notify_all()

    def warn_of_memory(self, reason: MemoryOnlyError) -> None:
        if not self._warned_of_memory:
            self._warned_of_memory = True
            log.warning(
                "%s; or add a folder or a bucket to tiers: until then, training is lost with the"
                " node",
                reason,
            )

    def give_back(self, slot: Slot) -> None:
        """Return an unused slot; one whose memory became a checkpoint is replaced."""
        with self._change:
            known = slot in self._slots
            # Its file became a checkpoint, which must not change
            spent = slot.home is not None and not slot.home.exists()
            if known and not spent:
                self._free.append(slot)
                self._change.notify_all()
                return
            make = self._make
        slot.release()
        fresh = None
        if known and not self._closing:
            # Here in the background, so that the next checkpoint need not wait for it
            fresh = _made(make)
        with self._change:
            if slot in self._slots:
                self._slots.remove(slot)
                if fresh is not None:
                    self._slots.append(fresh)
                    self._free.append(fresh)
            elif fresh is not None:  # the layout changed meanwhile
                fresh.release()
            self._change.notify_all()

    def settle(self, limit_s: float) -> bool:
        """Wait until every checkpoint is sent, not until a node's disk has it; whether in time."""
        with self._change:
            return self._change.wait_for(lambda: not self.under_way, limit_s)

    def close(self, timeout_s: float) -> bool:
        """Finish what is in flight, then stop; returns whether that was done within the time."""
        deadline = time.monotonic() + timeout_s
        self._closing = True
        done = True
        self._queues[0].put(None)
        for number, thread in enumerate(self._threads):
            thread.join(max(deadline - time.monotonic(), 0.0))
            done = done and not thread.is_alive()
            if not number:  # the copies are done
                for queue in self._queues[1:]:
                    queue.put(None)
        self._threads = []
        with self._change:
            free = self._free
            self._free = []
        for slot in free:
            slot.release()
        settled = all_settled((t.settle for t in self.tiers), deadline - time.monotonic())
        for tier in self.tiers:
            tier.close()
        return done and settled


class _Sending:
    """A checkpoint in flight."""

    def __init__(self, pipeline: Pipeline, slot: Slot, shard: Shard, handle: Handle) -> None:
        self._pipeline = pipeline
        self._slot = slot
        self._shard = shard
        self._handle = handle
        self._tiers = pipeline.tiers
        self._lock = threading.Lock()
        self._left = len(self._tiers) + 1
        self._errors: list[CheckpointError] = []
        self._lost: dict[int, CheckpointError] = {}

    def copied(self, filling: FillProgress) -> None:
        if filling.error is None:
            self._handle.copied()
        else:
            self._handle.failed(CheckpointError(f"version {self._shard.version}: {filling.error}"))
        self._done()

    def send(self, number: int) -> None:
        tier = self._tiers[number]
        handle = self._handle
        shard = replace(self._shard, lost=partial(self._lose, number), ready=self._ready)
        error: CheckpointError | None = None
        start = time.perf_counter()
        try:
            self._check(sending=False)
            if not tier.streams:
                shard.ready(shard.layout.size)
            near = not tier.away and any(other.away for other in self._tiers)
            tier.put(shard, partial(handle.reached, away=not near))
            own = sum(segment.length for segment in shard.layout.shards[shard.rank])
            handle.tell(
                "sent", tier=tier.url, bytes=own, took_s=round(time.perf_counter() - start, 6)
            )
            if near:
                why = (
                    f"version {shard.version} is on {tier.url} alone, which may be lost with this"
                    " machine"
                )
                shard.lost(CheckpointError(why))
        except TierBusyError as busy:
            error = busy
            log.info("version %d is skipped by %s: %s", shard.version, tier.url, busy)
        except CheckpointError as failure:
            error = failure
            log.warning("version %d is not on %s: %s", shard.version, tier.url, failure)
        except Exception as failure:  # a bug in a tier must not end a thread that others wait for
            error = CheckpointError(f"{tier.url}: {type(failure).__name__}: {failure}")
            log.exception("version %d is not on %s", shard.version, tier.url)
        if error is not None:
            handle.refused = error
            shard.lost(error)
        self._done(error)

    def _ready(self, end: int) -> None:
        self._check(sending=True)
        self._shard.ready(end)

    def _check(self, *, sending: bool) -> None:
        """Raise TierBusyError if a newer checkpoint has no time to wait for this one."""
        if self._pipeline.overtaken(self._shard.version, sending=sending):
            self._handle.superseded = True
            raise TierBusyError("a newer checkpoint is saved before a preemption")

    def _lose(self, number: int, reason: CheckpointError) -> None:
        with self._lock:
            self._lost[number] = reason
        self._fail_if_lost()

    def _fail_if_lost(self) -> None:
        """When no tier will acknowledge more, fail what is still awaited."""
        with self._lock:
            if self._left or len(self._lost) < len(self._tiers):
                return
        # The reason of a tier away from this machine, if any, which could have promised most.
        reason = min(self._lost.items(), key=lambda lost: not self._tiers[lost[0]].away)[1]
        self._handle.failed(reason)
        durable = self._handle.durable.exception() is None  # perhaps in a folder of this machine
        if isinstance(reason, MemoryOnlyError) and not durable and not self._shard.rank:
            self._pipeline.warn_of_memory(reason)

    def _done(self, error: CheckpointError | None = None) -> None:
        with self._lock:
            self._errors += [] if error is None else [error]
            self._left -= 1
            if self._left:
                return
        self._pipeline.sent()
        counts = self._pipeline.counts
        if len(self._errors) == len(self._tiers):
            self._handle.skipped = all(isinstance(e, TierBusyError) for e in self._errors)
            counts["skipped" if self._handle.skipped else "failed"] += 1
            self._handle.failed(self._errors[0])
        else:
            counts["saved"] += 1
            counts["bytes"] += self._shard.layout.size
            self._fail_if_lost()
        self._pipeline.give_back(self._slot)


def _made(make: Callable[[], Slot]) -> Slot | None:
    """A new slot; None if there is no space now: training continues, and a version is skipped."""
    try:
        return make()
    except CheckpointError as error:
        log.warning("%s", error)
        return None


def _serve(queue: SimpleQueue[Callable[[], None] | None]) -> None:
    for work in iter(queue.get, None):
        try:
            work()
        except Exception:  # a bug must not end the thread that others wait for
            log.exception("something in the background failed")
