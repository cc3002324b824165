"""Making versions: who copies what when, on one rank or several; when it is done is for the checkpointer to say.

A version begins behind its optimizer step: a slot is taken, what anything may change is copied, and the copy of what
only the optimizer changes begins in the background. It ends when the next forward begins: then numbers, schedulers and
moving averages are read, and the slot goes to the tiers.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from deepvm.checkpoint.format.flatten import Parts, take_apart
from deepvm.checkpoint.format.shard import Shard
from deepvm.checkpoint.snapshot.host_buffer import Slot, as_bytes, checksum
from deepvm.checkpoint.snapshot.layer_slots import Layers
from deepvm.checkpoint.snapshot.pending_snapshot import (
    CHANGED,
    Begun,
    Division,
    Plan,
    changed_since,
    make_plan,
    seen_now,
)
from deepvm.checkpoint.snapshot.pipeline import Pipeline
from deepvm.checkpoint.snapshot.strategies import Bytes, Copying, Strategy
from deepvm.checkpoint.training.hooks import aside
from deepvm.checkpoint.training.journal import Journal
from deepvm.checkpoint.training.ranks import Ranks, compare_replicas
from deepvm.checkpoint.training.save_handle import Handle, Handles
from deepvm.checkpoint.training.state import RECORDS, TrainingState, pack
from deepvm.errors import CheckpointError, RequestError

COMPARE_EVERY = 10
"""Versions of several ranks of which one is compared with that of a neighbour."""
WAIT_S = 600.0
"""Seconds after which whoever waits for a copy is told that something is wrong."""
SETTLE_ROUNDS = 10
"""Parts of that time after which ranks that wait for tiers meet: one that waits alone is cut off by its group."""
RENEW_S = 5.0
"""Seconds that a version of a new layout waits for a slot: its own of the old layout becomes free at once."""

log = logging.getLogger("deepvm.checkpoint")


class Versions:
    """The version that is being made, and what all of them have in common.

    Attributes:
        last: handle of the version that was begun last. begun: the version that is not sent yet.
        handles: of the newest versions.
        bytes: the storages of the last version. disagreements: replicas that were found to differ.
        last_step, last_s: what was begun last, also if it was skipped, or restored since, and when.
        plan_s: its share for a new layout.
        stall_s: seconds for which training stood still for all of this.
    """

    def __init__(
        self,
        state: TrainingState,
        pipeline: Pipeline,
        ranks: Ranks,
        strategy: Strategy,
        layers: Layers,
        journal: Journal,
        job: str,
    ) -> None:
        """Nothing is begun.

        Args:
            state: what is saved.
            pipeline: where it goes.
            ranks: who has a part in it.
            strategy: how it leaves the training's memory.
            layers: what is copied before the step has ended.
            journal: is told of each version.
            job: whose versions they are.
        """
        self._state, self._pipeline, self._ranks, self._strategy = state, pipeline, ranks, strategy
        self._layers, self._journal, self._job = layers, journal, job
        self.plan: Plan | None = None
        self.last: Handle | None = None
        self.handles = Handles()
        self.begun: Begun | None = None
        self.bytes = Bytes()
        self.taken = self.disagreements = self._digest = self._attempt = 0
        self.last_step, self.last_s, self.plan_s, self.stall_s = 0, time.monotonic(), 0.0, 0.0
        self._copying: Copying | None = None
        self._records: list[torch.Tensor] = []
        self._reserved: Slot | None = None
        self._restless: set[int] = set()
        self._seen = (0, 0, 0)
        self._print: Any = None

    def gate(self, *copies: Copying) -> None:
        """Wait until the state may change: for the copy under way, and for these.

        Raises:
            CheckpointError: a copy does not end.
        """
        waiting = [c for c in (self._copying, *copies) if c is not None and not c.open]
        if not waiting:
            return
        start = time.perf_counter()
        if not all(c.wait(WAIT_S) for c in waiting):
            raise CheckpointError(f"the copy of a version did not end in {WAIT_S:.0f} s")
        waited = time.perf_counter() - start
        self.stall_s += waited
        if self.last is not None:
            self.last.stall_s += waited

    def settle(self) -> None:
        """Wait until the tiers have what was sent: it must not come there behind a restore. Collective.

        Raises:
            CheckpointError: they do not have it in time; on all ranks.
        """
        for _ in range(SETTLE_ROUNDS):
            if self._ranks.least([self._pipeline.settle(WAIT_S / SETTLE_ROUNDS)])[0]:
                return
        late = ", ".join(str(handle.version) for handle in self.handles.now if not handle.done) or "of other ranks"
        raise CheckpointError(f"versions {late} are under way after {WAIT_S:.0f} s; nothing was restored: try again")

    def forget(self, version: int) -> None:
        """The state is another one now, that of a version: what was saved last says nothing about it."""
        self.last = self._print = None
        self.last_step, self.last_s, self.plan_s = version, time.monotonic(), 0.0
        self.bytes.forget()

    def lay_out(self, version: int) -> None:
        """Have a layout, and memory, before the first version needs them."""
        tree = self._state.tree(version, self._state.early())
        self._renew(tree, take_apart(tree))
        self._pipeline.warm()

    def begin(self, version: int, patience_s: float, best: bool = False) -> Handle:
        """Take a slot and begin to copy what the step has made; numbers and the rest are for :meth:`finish`.

        Args:
            version: its number.
            patience_s: how long to wait for a slot.
            best: the training calls it that.
        """
        self.gate()
        start = time.perf_counter()
        handle = Handle(version, best=best, tell=self._journal.of(version))
        self.handles.add(handle)
        self.last_step, self.last_s, self.plan_s = version, time.monotonic(), 0.0
        try:
            early = {RECORDS: self._records} if self._ranks.world > 1 else self._state.early()
            tree = self._state.tree(version, early)
            parts = take_apart(tree)
            owned = self._state.owned()
            seen = seen_now(parts, owned.gated | owned.buffers)
            begun = Begun(handle, tree["model"], early, patience_s, parts, owned, seen)
            if self._fits(parts) and not self._copy(begun, parts, patience_s):
                return self._skipped(handle)
        except RequestError as error:  # an extra has become something that cannot be saved
            return self._failed(handle, error)
        # Without a plan that fits it is made when the next forward begins: until then more may change than numbers.
        # That forward may not be seen, and buffers are those of the step.
        if begun.slot is None:
            kept = {k: v.clone() for k, v in tree["model"].items() if _is_on(v, begun.owned.buffers)}
            tree["model"].update(kept)  # it is ours: only its tensors are the model's
        self.begun, self.last = begun, handle
        took_s = time.perf_counter() - start
        handle.stall_s, self.stall_s = handle.stall_s + took_s, self.stall_s + took_s
        return handle

    def _copy(self, begun: Begun, parts: Parts, patience_s: float) -> bool:
        """Begin the copy into a slot, if there is one."""
        assert self.plan is not None
        # Of several ranks none takes a slot alone: all save this version or none.
        reserved, self._reserved = self._reserved, None
        slot = self._layers.take(patience_s) if self._ranks.world == 1 else reserved
        if slot is None:
            return False
        try:
            sources = self.bytes.of(parts.storages)
            division = Division.of(parts, begun, self._restless)
            done, check = self._layers.done(parts.storages)
            pending = division.background - done
            later = [n for n, piece in enumerate(slot.pieces) if piece.storage in pending]
            now = [n for n, piece in enumerate(slot.pieces) if piece.storage in division.at_once]
            self.taken += 1
            compare = self.plan.compared(division.background) if self.taken % COMPARE_EVERY == 1 else []
            copying = self._copying = Copying(self._strategy, slot, sources, later, now, hold=bool(compare))

            def also() -> None:
                if compare:
                    own, neighbour = (checksum(sources, pieces) for pieces in compare)
                    self._seen = (begun.handle.version, own, neighbour)

            def copy(reached: Callable[[int], None]) -> None:
                check()
                copying.run(reached, also)

            begun.slot, begun.late, begun.copying, begun.storages = slot, division.late, copying, parts.storages
            begun.still = {parts.storages[n]._cdata for n in division.at_once}
            begun.filling = self._pipeline.fill(slot, self.plan.layout, copy)
        except BaseException:
            self._layers.give_back(slot)
            raise
        return True

    def finish(self, in_step: bool = False, at_once: bool = False) -> None:
        """Read what belongs to the step and moves behind it, and send the version.

        Args:
            in_step: the next forward has been; what it changes belongs to the next version.
            at_once: nothing has happened since the version was begun.
        """
        begun = self.begun
        if begun is None:
            return
        start, handle = time.perf_counter(), begun.handle
        with aside():
            try:
                parts = begun.parts
                if not at_once or begun.slot is None:
                    tree = {**self._state.tree(handle.version, begun.early), "model": begun.model}
                    parts = take_apart(tree)
                    if begun.slot is None or not self._fits(parts):
                        self._start_again(begun, tree, parts)
                if begun.slot is not None:
                    self._copy_again(begun, in_step)
                    self._send(begun, parts)
            except Exception as error:
                if not in_step and not isinstance(error, (RequestError, CheckpointError)):
                    raise  # something odd is going on in forward: before the step it is over
                self._drop(begun)
                self._failed(handle, error)
            except BaseException as error:  # whoever interrupts this may save again at once
                self.begun = None
                self._drop(begun)
                handle.failed(CheckpointError(f"version {handle.version} was interrupted: {type(error).__name__}"))
                raise
        self.begun = None
        took_s = time.perf_counter() - start
        handle.stall_s, self.stall_s = handle.stall_s + took_s, self.stall_s + took_s

    def _start_again(self, begun: Begun, tree: Any, parts: Parts) -> None:
        """The layout is another one than the step knew, or it knew none."""
        patience_s = begun.patience_s if begun.slot is None else RENEW_S  # its own slot is free at once
        self._drop(begun)
        if self._ranks.world > 1:  # another layout is for all ranks to agree on, which they do in the next step
            reserved, self._reserved = self._reserved, None
            self._layers.give_back(reserved)
            raise CheckpointError("what is saved has changed behind the step")
        self._renew(tree, parts)
        if not self._copy(begun, parts, patience_s):
            self._skipped(begun.handle)

    def _copy_again(self, begun: Begun, in_step: bool) -> None:
        """What was changed between the step and now, such as weights that are clipped, is part of the version."""
        assert begun.slot is not None and begun.copying is not None
        now = {c: p.untyped_storage() for c, p in begun.owned.parameters.items()}
        found = changed_since(begun.seen) | {c for c, storage in now.items() if storage._cdata != c}
        if in_step and found:
            found -= set(begun.still)  # what forward has changed since belongs to the next version
            stray = found - self._state.updated()
            if stray:
                self._restless |= stray
                raise CheckpointError(CHANGED.format(len(stray)))
        if found:
            self.gate(*self._layers.copies.values())
            sources = [as_bytes(now.get(s._cdata, s)) if s._cdata in found else None for s in begun.storages]
            again = [n for n, piece in enumerate(begun.slot.pieces) if sources[piece.storage] is not None]
            begun.slot.copy(sources, again)
        still = begun.owned.buffers.union(begun.still)
        seen = [(t, t._version) for t, _ in begun.seen if t.untyped_storage()._cdata not in still]

        def changed() -> str:
            strange = changed_since(seen)
            self._restless |= strange
            return CHANGED.format(len(strange)) if strange else ""

        begun.copying.watch(changed)

    def _send(self, begun: Begun, parts: Parts) -> None:
        assert self.plan is not None and begun.slot is not None and begun.filling is not None
        slot, handle, late = begun.slot, begun.handle, set(begun.late)
        if not self._ranks.rank:
            slot.image.write_numbers(slot.view, parts.numbers)
        sources = [as_bytes(s) if n in late else None for n, s in enumerate(parts.storages)]
        slot.copy(sources, [n for n, piece in enumerate(slot.pieces) if piece.storage in late])
        rank, layout = self._ranks.rank, self.plan.layout
        shard = Shard(self._job, handle.version, rank, layout, slot.view, home=slot.home, best=handle.best)
        shard = replace(shard, attempt=self._attempt)
        self._pipeline.send(slot, shard, handle, begun.filling)
        begun.slot = None
        self._print = self._printed(parts, begun)

    def _drop(self, begun: Begun) -> None:
        slot, begun.slot = begun.slot, None
        if slot is not None:
            self.gate()
            self._layers.give_back(slot)

    def _printed(self, parts: Parts, begun: Begun) -> Any:
        """What two equal states have in common; None where it cannot be told without reading all of it."""
        buffers = begun.owned.buffers
        known = begun.owned.gated | buffers | begun.own
        if any(s._cdata not in known for s in parts.storages):
            return None
        return parts.structure, parts.numbers, [(t, v if _is_on(t, buffers) else t._version) for t, v in begun.seen]

    def same(self, version: int) -> bool:
        """Whether the state is that of the last version, so that it need not be saved again."""
        last = self.last
        if last is None or last.version != version or last.skipped or last.lost or self._print is None:
            return False
        early = {RECORDS: self._records} if self._ranks.world > 1 else self._state.early()
        parts = take_apart(self._state.tree(version, early))
        structure, numbers, seen = self._print
        return parts.structure == structure and parts.numbers == numbers and not changed_since(seen)

    def _fits(self, parts: Parts) -> bool:
        return self.plan is not None and parts.structure == self.plan.structure

    def _skipped(self, handle: Handle) -> Handle:
        self._pipeline.counts["skipped"] += 1
        handle.skipped = True
        handle.failed(CheckpointError(f"version {handle.version} was skipped: those before it are under way"))
        return handle

    def _failed(self, handle: Handle, error: Exception) -> Handle:
        self._pipeline.counts["failed"] += 1
        log.error("version %d is not saved: %s", handle.version, error)
        handle.failed(CheckpointError(f"version {handle.version} is not saved: {error}"))
        return handle

    def agree(self, version: int, patience_s: float) -> None:
        """Take a slot for :meth:`begin` if every rank can; all ranks save this version or none. Collective.

        Args:
            version: its number.
            patience_s: how long to wait for a slot.

        Raises:
            CheckpointError: the ranks do not hold the same state.
        """
        self.disagreements += compare_replicas(self._ranks, self._seen)
        self._seen = (0, 0, 0)
        slot, record, renewed, whole = None, b"", False, True
        try:
            record = self._state.record()
            parts = take_apart(self._state.tree(version, {RECORDS: self._records}))
            renewed = not self._fits(parts)
            if renewed:
                bare = take_apart(self._state.tree(version, {})).structure
                self._digest = int.from_bytes(hashlib.sha256(repr(bare).encode()).digest()[:7], "big")
            else:
                slot = self._layers.take(patience_s)
        except RequestError as error:  # an extra that cannot be saved; the other ranks must not wait for this one
            log.error("version %d is not saved: %s", version, error)
            whole = False
        told = [whole, renewed or slot is not None, self._digest, -self._digest, -len(record), not renewed]
        all_whole, ready, digest, other, size, agreed, newest = self._ranks.least([*told, -self._attempt])
        self._attempt = 1 - newest
        if all_whole and digest != -other:
            self._layers.give_back(slot)
            raise CheckpointError("the ranks hold different models, optimizers or extras; all must be built alike")
        capacity = len(self._records[0]) if self._records else 0
        if all_whole and (not agreed or capacity < -size + 8):
            self._layers.give_back(slot)
            # Room to grow: a layout costs more than a few bytes.
            room = -size + -size // 4 + 1024
            self._records = [torch.zeros(room, dtype=torch.uint8, device="cpu") for _ in range(self._ranks.world)]
            tree = self._state.tree(version, {RECORDS: self._records})
            self._renew(tree, take_apart(tree))
            slot = self._pipeline.take(patience_s)
            (ready,) = self._ranks.least([slot is not None])
        if not (all_whole and ready):
            self._layers.give_back(slot)
            return
        own = self._records[self._ranks.rank]
        own.copy_(pack(record, len(own)))
        self._reserved = slot

    def _renew(self, tree: Any, parts: Parts) -> None:
        start = time.perf_counter()
        self._layers.drop()
        plan = self.plan = make_plan(tree, parts, self._state, self._ranks, self._records)
        self._pipeline.renew(lambda: self._strategy.slot(plan.image, plan.layout, self._ranks.rank))
        self.taken = 0  # a new layout is compared at once
        self.plan_s = time.perf_counter() - start if plan.image.lasting else 0.0


def _is_on(value: Any, storages: set[int]) -> bool:
    return isinstance(value, torch.Tensor) and value.untyped_storage()._cdata in storages
