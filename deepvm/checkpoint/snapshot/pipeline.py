"""From the training's memory to the tiers: one thread copies into slots, one thread per tier sends them.

A version for which there is no slot is skipped, not waited for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from queue import SimpleQueue

from deepvm.checkpoint.format.layout import Layout
from deepvm.checkpoint.format.shard import Shard
from deepvm.checkpoint.snapshot.host_buffer import Filling, Slot
from deepvm.checkpoint.tiers.base import Tier
from deepvm.checkpoint.training.save_handle import Handle
from deepvm.errors import CheckpointError, TierBusyError

log = logging.getLogger("deepvm.checkpoint")


class Pipeline:
    """The background threads of a checkpointer, and its slots."""

    def __init__(self, tiers: Sequence[Tier], slots: int = 2) -> None:
        """Start nothing yet.

        Args:
            tiers: where versions go.
            slots: how many versions may be in flight.
        """
        self.tiers = tuple(tiers)
        self._away = any(tier.away for tier in self.tiers)
        self.counts = {"saved": 0, "skipped": 0, "failed": 0, "bytes": 0}
        self._most = slots
        self._slots: list[Slot] = []
        self._free: list[Slot] = []
        self._change = threading.Condition()
        self._queues: list[SimpleQueue[Callable[[], None] | None]] = [SimpleQueue() for _ in range(len(tiers) + 1)]
        self._threads: list[threading.Thread] = []
        self._sent: deque[Handle] = deque(maxlen=64)
        self._closing = False
        self._under_way = 0

    def renew(self, make: Callable[[], Slot]) -> None:
        """The layout changed: release slots of the old one as they become free."""
        with self._change:
            self._make = make
            old, self._slots, self._free = self._free, [], []
        for slot in old:
            slot.release()

    def take(self, timeout_s: float = 0) -> Slot | None:
        """A free slot, or None if there is none in time."""
        with self._change:
            ready = self._change.wait_for(self._has_room, timeout_s)
            if not ready:
                return None
            if self._free:
                return self._free.pop()
            try:
                slot = self._make()
            except CheckpointError as error:  # no space now: training goes on, and the version is skipped
                log.warning("%s", error)
                return None
            self._slots.append(slot)
            return slot

    def warm(self) -> None:
        """In the background: allocate memory before the first version needs it."""

        def work() -> None:
            slot = self.take()
            if slot is not None:
                slot.touch()
                self.give_back(slot)

        self.background(work)

    def background(self, work: Callable[[], None]) -> None:
        """Queue work for the thread that copies."""
        self._start()
        self._queues[0].put(work)

    def _has_room(self) -> bool:
        # Slots of an earlier layout take memory until they are free.
        return self._under_way < self._most and (bool(self._free) or len(self._slots) < self._most)

    def fill(self, slot: Slot, layout: Layout, copy: Callable[[Callable[[int], None]], None]) -> Filling:
        """Fill a slot in the background.

        Args:
            slot: memory for a version.
            layout: of the version.
            copy: called in the background with a function to report progress to.
        """
        # Where each rank has a part, whoever joins them fills in the checksums.
        filling = Filling(slot.view, layout, shared=len(self.tiers) > 1 and layout.world == 1)

        def work() -> None:
            try:
                copy(filling.reached)
                filling.reached(len(slot.view))
            except BaseException as error:
                filling.failed(CheckpointError(f"the state could not be copied: {error}"))

        self.background(work)
        return filling

    def send(self, slot: Slot, shard: Shard, handle: Handle, filling: Filling) -> None:
        """Send a slot to every tier while it is being filled; it is freed when all are done.

        Args:
            slot: the memory of ``shard``.
            shard: what the tiers get.
            handle: reports progress to the user.
            filling: from :meth:`fill`.
        """
        self._sent.append(handle)
        with self._change:
            self._under_way += 1
        shard = replace(shard, ready=filling.ready)
        state = _Sending(len(self.tiers) + 1)
        self.background(lambda: self._copied(filling, slot, shard, handle, state))
        for number, tier in enumerate(self.tiers, start=1):
            sent = replace(shard, lost=lambda reason, n=number: self._lost(state, handle, n, reason))  # type: ignore[misc]
            self._queues[number].put(lambda tier=tier, sent=sent: self._send_one(tier, slot, sent, handle, state))  # type: ignore[misc]

    def _copied(self, filling: Filling, slot: Slot, shard: Shard, handle: Handle, state: _Sending) -> None:
        if filling.error is None:
            handle.copied()
        else:
            handle.failed(CheckpointError(f"version {shard.version}: {filling.error}"))
        self._done(state, slot, shard, handle)

    def _send_one(self, tier: Tier, slot: Slot, shard: Shard, handle: Handle, state: _Sending) -> None:
        error: CheckpointError | None = None
        start = time.perf_counter()
        try:
            if not tier.streams:
                shard.ready(shard.layout.size)
            near = self._away and not tier.away
            tier.put(shard, partial(handle.reached, away=not near))
            own = sum(segment.length for segment in shard.layout.shards[shard.rank])
            handle.tell("sent", tier=tier.url, bytes=own, took_s=round(time.perf_counter() - start, 6))
            if near:
                why = f"version {shard.version} is on {tier.url} alone, which may be lost with this machine"
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
            shard.lost(error)
        self._done(state, slot, shard, handle, error)

    def _lost(self, state: _Sending, handle: Handle, tier: int, reason: CheckpointError) -> None:
        """A tier will acknowledge nothing more; when no tier will, fail what is still awaited."""
        with state.lock:
            state.lost[tier] = reason
            if state.left or len(state.lost) < len(self.tiers):
                return
            reason = self._why(state)
        handle.failed(reason)

    def _why(self, state: _Sending) -> CheckpointError:
        """The reason to report: that of a tier away from this machine, if any, which could have promised most."""
        return min(state.lost.items(), key=lambda found: not self.tiers[found[0] - 1].away)[1]

    def _done(
        self, state: _Sending, slot: Slot, shard: Shard, handle: Handle, error: CheckpointError | None = None
    ) -> None:
        """The copy, or a tier, no longer needs the slot."""
        with state.lock:
            state.errors += [] if error is None else [error]
            state.left -= 1
            if state.left:
                return
        with self._change:
            self._under_way -= 1
            self._change.notify_all()
        self._conclude(handle, shard, state)
        self.give_back(slot)

    def _conclude(self, handle: Handle, shard: Shard, state: _Sending) -> None:
        errors = state.errors
        if len(errors) == len(self.tiers):
            busy = all(isinstance(e, TierBusyError) for e in errors)
            self.counts["skipped" if busy else "failed"] += 1
            handle.skipped = busy
            handle.failed(errors[0])
        else:
            self.counts["saved"] += 1
            self.counts["bytes"] += shard.layout.size
            with state.lock:
                reason = self._why(state) if len(state.lost) == len(self.tiers) else None
            if reason is not None:
                handle.failed(reason)

    def give_back(self, slot: Slot) -> None:
        """Take back an unused slot; one whose memory became a version is replaced."""
        with self._change:
            known = any(slot is s for s in self._slots)
            spent = slot.spent
            if known and not spent:
                self._free.append(slot)
                self._change.notify_all()
                return
            make = self._make
        slot.release()
        fresh: Slot | None = None
        if known and not self._closing:
            try:
                fresh = make()  # here in the background, so that the next version need not wait for it
            except CheckpointError as error:
                log.warning("%s", error)
        with self._change:
            if any(slot is s for s in self._slots):
                self._slots = [s for s in self._slots if s is not slot] + ([] if fresh is None else [fresh])
                self._free += [] if fresh is None else [fresh]
            elif fresh is not None:  # the layout changed meanwhile
                fresh.release()
            self._change.notify_all()

    def _start(self) -> None:
        if self._threads:
            return
        for number, queue in enumerate(self._queues):
            name = f"deepvm-{'copy' if not number else self.tiers[number - 1].url}"
            thread = threading.Thread(target=_serve, args=(queue,), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def settle(self, limit_s: float) -> bool:
        """Wait until every version is copied and sent, so that a restore finds it; returns whether all were in time.

        What a node still writes to its disk is not waited for: it is in its memory.
        """
        with self._change:
            return self._change.wait_for(lambda: not self._under_way, limit_s)

    def close(self, timeout_s: float) -> bool:
        """Finish what is in flight, then stop; returns whether that was done within the time, shared by all tiers."""
        deadline = time.monotonic() + timeout_s
        self._closing = True
        for queue in self._queues[:1]:
            queue.put(None)
        done = True
        for number, thread in enumerate(self._threads):
            thread.join(max(deadline - time.monotonic(), 0.0))
            done = done and not thread.is_alive()
            if not number:  # the copies are done
                for queue in self._queues[1:]:
                    queue.put(None)
        self._threads = []
        with self._change:
            free, self._free = self._free, []
        for slot in free:
            slot.release()
        done = all([tier.settle(max(deadline - time.monotonic(), 0.0)) for tier in self.tiers]) and done
        for tier in self.tiers:
            tier.close()
        for handle in self._sent:
            handle.failed(CheckpointError(f"version {handle.version}: no tier has promised that"))
        return done


class _Sending:
    """Who still works on a version (its copy, the tiers), and which tiers will acknowledge nothing more, and why."""

    def __init__(self, count: int) -> None:
        self.lock, self.left = threading.Lock(), count
        self.errors: list[CheckpointError] = []
        self.lost: dict[int, CheckpointError] = {}


def _serve(queue: SimpleQueue[Callable[[], None] | None]) -> None:
    while True:
        work = queue.get()
        if work is None:
            return
        try:
            work()
        except Exception:  # a bug must not end the thread that others wait for
            log.exception("something in the background failed")
