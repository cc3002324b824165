"""Take snapshots: what is copied when, on one rank or several.

The checkpointer decides when to take one.

A snapshot starts after its optimizer step: a slot is taken, what anything may change is copied at
once, and what only the optimizer changes is copied in the background. When the next forward begins,
numbers, schedulers and moving averages are read, and the slot goes to the tiers.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch

from deepvm.checkpoint.format.byte_samples import ByteSamples
from deepvm.checkpoint.format.flatten import FlatState, flatten
from deepvm.checkpoint.format.shard import Shard
from deepvm.checkpoint.format.sharded import storage_of
from deepvm.checkpoint.format.tensor_bytes import as_bytes, bytes_of
from deepvm.checkpoint.snapshot.copying import LayerSlots, SnapshotCopy, StorageBytes
from deepvm.checkpoint.snapshot.host_buffer import Slot, Sources, checksum
from deepvm.checkpoint.snapshot.pending_snapshot import (
    PendingSnapshot,
    SnapshotLayout,
    changed_since,
    seen_now,
)
from deepvm.checkpoint.snapshot.pipeline import Pipeline
from deepvm.checkpoint.training.hooks import without_autograd
from deepvm.checkpoint.training.ranks import MEETINGS, Ranks, compare_replicas
from deepvm.checkpoint.training.save_handle import Handle, Journal, with_newest
from deepvm.checkpoint.training.state import RECORDS, TrainingState, pack, tensors_of
from deepvm.errors import CheckpointError, RequestError

COMPARE_EVERY = 10
"""With several ranks, one version in so many is compared with the neighbour's replica."""
WAIT_S = 600.0
"""Seconds after which waiting for a copy is an error."""
# A version of a new layout waits for a slot: its slot of the old layout is freed at once
_RENEW_S = 5.0
_SMALL_BYTES = 4 * 2**20
"""Host memory that is copied at once at a boundary: it takes a millisecond."""
_CHANGED = (
    "{} tensors were changed in forward or backward, otherwise than by an optimizer, while they"
    " were copied; from now on training waits for their copies"
)

log = logging.getLogger("deepvm.checkpoint")


class Snapshotter:
    """Makes versions, one at a time.

    Attributes:
        last: handle of the version started last. last_due: also if it was skipped or refused.
        pending: the version not sent yet.
        handles: of the newest versions, oldest first; replaced with every change, so that any
            thread may read it.
        changed: the storages, by ``_cdata``, that changed between the last version's step and its
            sending.
        bytes: the storages of the last version. disagreements: how many replicas differed.
        last_step, last_s: the version started (even if skipped) or restored last, and when.
        layout_s: seconds of it spent on a new layout.
        stall_s: seconds for which training was stalled by all of this.
    """

    def __init__(
        self,
        state: TrainingState,
        pipeline: Pipeline,
        ranks: Ranks,
        layers: LayerSlots,
        journal: Journal,
        job: str,
    ) -> None:
        """Start nothing yet."""
        self._state = state
        self._pipeline = pipeline
        self._ranks = ranks
        self._layers = layers
        self._journal = journal
        self._job = job
        self.layout: SnapshotLayout | None = None
        self.last: Handle | None = None
        self.last_due: Handle | None = None
        self.handles: tuple[Handle, ...] = ()
        self.pending: PendingSnapshot | None = None
        self.changed: set[int] = set()
        self.bytes = StorageBytes()
        self.taken = self.disagreements = self._digest = self._attempt = 0
        self.last_step = 0
        self.last_s = time.monotonic()
        self.layout_s = 0.0
        self.stall_s = 0.0
        self._copying: SnapshotCopy | None = None
        self._records: list[torch.Tensor] = []
        self._record = b""
        self._reserved: Slot | None = None
        self._restless: set[int] = set()
        self._seen = (0, 0, 0)
        self._fingerprint: Any = None

    def gate(self, *copies: SnapshotCopy) -> None:
        """Wait until the state may change: for the copy in progress, and for these.

        Raises CheckpointError.
        """
        waiting = [c for c in (self._copying, *copies) if c is not None and not c.open]
        if not waiting:
            return
        start = time.perf_counter()
        if not all(c.wait(WAIT_S) for c in waiting):
            raise CheckpointError(f"the copy of a version did not end in {WAIT_S:.0f} s")
        self._stalled(start, self.last)

    def _stalled(self, start: float, handle: Handle | None) -> None:
        took_s = time.perf_counter() - start
        self.stall_s += took_s
        if handle is not None:
            handle.stall_s += took_s

    def settle(self) -> None:
        """Wait until the tiers have what was sent: it must not follow a restore. Collective.

        Raises CheckpointError.
        """
        for _ in range(MEETINGS):
            if self._ranks.minimum([self._pipeline.settle(WAIT_S / MEETINGS)])[0]:
                return
        late = (
            ", ".join(str(handle.version) for handle in self.handles if not handle.done)
            or "of other ranks"
        )
        raise CheckpointError(
            f"versions {late} are under way after {WAIT_S:.0f} s; nothing was restored: try again"
        )

    def forget(self, version: int) -> None:
        """The state was replaced by a restored checkpoint: forget what was saved last."""
        self.last = self.last_due = self._fingerprint = None
        self.last_step = version
        self.last_s = time.monotonic()
        self.layout_s = 0.0
        self.bytes.forget()

    def lay_out(self, version: int) -> None:
        """Prepare layout and memory before the first version needs them."""
        tree = self._tree(version)[1]
        self._renew(tree, flatten(tree))
        self._pipeline.warm()

    def begin(
        self,
        version: int,
        patience_s: float,
        *,
        best: bool = False,
        handle: Handle | None = None,
        deadline: float | None = None,
        at_boundary: bool = False,
    ) -> Handle:
        """Take a slot, waiting at most ``patience_s``, and start copying the result of the step.

        See :meth:`finish`.

        ``handle``: that of a request. ``deadline``: before it, by ``time.time()``, older versions
        give way.
        ``at_boundary``: between two iterations; what no optimizer has is copied at once, and so are
        small states. Collective. Raises CheckpointError: the ranks' states differ.
        """
        urgent = deadline is not None
        if self._ranks.world > 1:
            self._agree(version, patience_s, deadline)
        elif deadline is not None:
            self._pipeline.hurry(version, alone=time.time() + 2 * self.usual_s > deadline)
        self.gate()
        start = time.perf_counter()
        handle = handle or Handle(version)
        handle.begins(version, best=best, tell=partial(self._journal, version=version))
        self.handles = with_newest(self.handles, handle)
        self.last_due = handle
        self.last_step = version
        self.last_s = time.monotonic()
        self.layout_s = 0.0
        try:
            early, tree = self._tree(version)
            parts = flatten(tree)
            owned = self._state.owned(at_boundary)
            seen = seen_now(parts, owned.gated | owned.buffers)
            pending = PendingSnapshot(handle, tree["model"], early, patience_s, parts, owned, seen)
            pending.at_boundary = at_boundary
            if self._fits(parts) and not self._copy(pending, patience_s, urgent):
                return self._skipped(handle)
            # While the copy is under way, which only reads, too
            pending.samples = self._samples(parts, owned.gated | owned.buffers)
        except RequestError as error:  # an extra can no longer be saved
            return self._failed(handle, error)
        # Without a fitting layout, the next forward makes one: until then more than numbers may
        # change. That forward may go unseen, and buffers must be those of the step.
        if pending.slot is None:
            kept = {
                k: v.clone() for k, v in tree["model"].items() if _is_on(v, pending.owned.buffers)
            }
            tree["model"].update(kept)  # the dict is ours, only its tensors are the model's
        self.pending = pending
        self.last = handle
        self._stalled(start, handle)
        return handle

    @property
    def usual_s(self) -> float:
        """How long a version takes at most; 0 while unknown."""
        return max((s for known in self.handles for s in known.times.values()), default=0.0)

    def _samples(self, parts: FlatState, storages: Collection[int]) -> ByteSamples:
        """Samples of these storages by ``_cdata``; none of a sharded model, whose memory moves."""
        if parts.regions:
            return ByteSamples((), ())
        pairs = zip(parts.storages, self.bytes.of(parts.storages), strict=True)
        chosen = [(storage, source) for storage, source in pairs if storage._cdata in storages]
        return ByteSamples([storage for storage, _ in chosen], [source for _, source in chosen])

    def _copy(self, pending: PendingSnapshot, patience_s: float, urgent: bool = False) -> bool:
        """Start copying into a slot, if there is one."""
        assert self.layout is not None
        # No rank takes a slot alone: all save this version or none.
        reserved = self._reserved
        self._reserved = None
        if self._ranks.world == 1:
            slot = self._layers.take(patience_s, urgent=urgent)
        else:
            slot = reserved
        if slot is None:
            return False
        try:
            storages = pending.parts.storages
            sources = self.bytes.of(storages)
            background, at_once, pending.late = pending.divide(self._restless)
            done, check = self._layers.done(storages)
            waiting = background - done
            later = [n for n, piece in enumerate(slot.pieces) if piece.storage in waiting]
            now = [n for n, piece in enumerate(slot.pieces) if piece.storage in at_once]
            self.taken += 1
            due = self.taken % COMPARE_EVERY == 1
            if due:
                compare = [
                    [p for p in pieces if p.storage in background] for pieces in self.layout.compare
                ]
            else:
                compare = []
            strategy = self._layers.strategy
            if pending.at_boundary and not compare and _is_small(slot, sources, later):
                now = sorted(now + later)
                later = []
            copying = self._copying = SnapshotCopy(
                strategy, slot, sources, later, now, hold=bool(compare)
            )

            def also() -> None:
                if compare:
                    own, neighbour = (checksum(sources, pieces) for pieces in compare)
                    self._seen = (pending.handle.version, own, neighbour)

            def copy(reached: Callable[[int], None]) -> None:
                check()
                copying.run(reached, also)

            pending.slot = slot
            pending.copying = copying
            pending.still = {storages[n]._cdata for n in at_once}
            pending.filling = self._pipeline.fill(slot, self.layout.shares, copy)
        except BaseException:
            self._layers.give_back(slot)
            raise
        return True

    def finish(self, in_step: bool = False, at_once: bool = False) -> None:
        """Read what follows the step (numbers, schedulers, averages), and send the version.

        ``in_step``: the next forward has run; what it changed belongs to the next version.
        ``at_once``: nothing has happened since :meth:`begin`.
        """
        pending = self.pending
        if pending is None:
            return
        start = time.perf_counter()
        handle = pending.handle
        with without_autograd():
            try:
                parts = pending.parts
                if at_once or in_step:
                    replaced = {}
                else:
                    replaced = self._take_replaced(pending)
                if not at_once or pending.slot is None:
                    tree = {
                        **self._state.tree(handle.version, pending.early),
                        "model": pending.model,
                    }
                    parts = flatten(tree)
                    if pending.slot is None or not self._fits(parts):
                        self._start_again(pending, tree, parts)
                if pending.slot is not None:
                    if at_once:
                        self.changed = set()
                    else:
                        self.changed = self._copy_changed(pending, in_step, replaced)
                    self._watch(pending)
                    self._send(pending, parts)
            except Exception as error:
                if not in_step and not isinstance(error, (RequestError, CheckpointError)):
                    raise  # something odd is going on in forward; before the step it is over
                self._drop(pending)
                self._failed(handle, error)
            except BaseException as error:  # an interrupt handler may save again at once
                self.pending = None
                self._drop(pending)
                handle.failed(
                    CheckpointError(
                        f"version {handle.version} was interrupted: {type(error).__name__}"
                    )
                )
                raise
        self.pending = None
        self._stalled(start, handle)

    def _start_again(self, pending: PendingSnapshot, tree: Any, parts: FlatState) -> None:
        """The layout changed since the step, or there was none."""
        # Its own slot is freed at once
        if pending.slot is None:
            patience_s = pending.patience_s
        else:
            patience_s = _RENEW_S
        self._drop(pending)
        # All ranks must agree on a layout, which they do in the next step
        if self._ranks.world > 1:
            reserved = self._reserved
            self._reserved = None
            self._layers.give_back(reserved)
            raise CheckpointError("the layout of the state has changed after the step")
        self._renew(tree, parts)
        pending.parts = parts
        if not self._copy(pending, patience_s):
            self._skipped(pending.handle)

    def _take_replaced(self, pending: PendingSnapshot) -> dict[int, torch.UntypedStorage]:
        """Take buffers into the version that were replaced since its step.

        Returns the new memory by the old.
        """
        replaced = {}
        for name, buffer in self._state.model.named_buffers():
            before: Any = pending.model.get(name)
            if (
                _is_on(before, pending.owned.buffers)
                and storage_of(before)._cdata != storage_of(buffer)._cdata
            ):
                replaced[storage_of(before)._cdata] = storage_of(buffer)
                pending.model[name] = buffer.detach()
        return replaced

    def _copy_changed(
        self, pending: PendingSnapshot, in_step: bool, replaced: dict[int, torch.UntypedStorage]
    ) -> set[int]:
        """Copy what changed since the step, such as clipped weights: it belongs to it.

        Returns the storages.
        """
        assert pending.slot is not None and pending.copying is not None
        now = {c: storage_of(p) for c, p in pending.owned.parameters.items()} | replaced
        found = changed_since(pending.seen) | {
            c for c, storage in now.items() if storage._cdata != c
        }
        found |= pending.samples.changed()
        if in_step and found:
            found -= pending.still  # what forward changed belongs to the next version
            stray = found - self._state.updated()
            if stray:
                self._restless |= stray
                raise CheckpointError(_CHANGED.format(len(stray)))
        if found:
            self.gate(*self._layers.copies.values())
            sources = [
                as_bytes(now.get(s._cdata, s)) if s._cdata in found else None
                for s in pending.parts.storages
            ]
            again = [
                n
                for n, piece in enumerate(pending.slot.pieces)
                if sources[piece.storage] is not None
            ]
            pending.slot.copy(sources, again)
            pending.samples = self._samples(pending.parts, pending.owned.gated)
        return found

    def _watch(self, pending: PendingSnapshot) -> None:
        """Until its copy ends the state must not change, except for what was copied at once."""
        assert pending.copying is not None
        still = pending.owned.buffers.union(pending.still)
        samples = pending.samples
        seen = [(t, t._version) for t, _ in pending.seen if storage_of(t)._cdata not in still]

        def changed() -> str:
            strange = changed_since(seen) | (samples.changed() - still)
            self._restless |= strange
            if strange:
                return _CHANGED.format(len(strange))
            return ""

        pending.copying.watch(changed)

    def _send(self, pending: PendingSnapshot, parts: FlatState) -> None:
        assert self.layout is not None and pending.slot is not None
        assert pending.filling is not None
        slot = pending.slot
        handle = pending.handle
        late = pending.late
        if not self._ranks.rank:
            slot.image.write_numbers(slot.view, parts.numbers)
        sources = [as_bytes(s) if n in late else None for n, s in enumerate(parts.storages)]
        slot.copy(sources, [n for n, piece in enumerate(slot.pieces) if piece.storage in late])
        rank = self._ranks.rank
        layout = self.layout.shares
        handle.size = layout.size
        shard = Shard(
            self._job,
            handle.version,
            rank,
            layout,
            slot.view,
            home=slot.home,
            best=handle.best,
            attempt=self._attempt,
        )
        self._pipeline.send(slot, shard, handle, pending.filling)
        pending.slot = None
        self._fingerprint = self._fingerprint_of(parts, pending)

    def _drop(self, pending: PendingSnapshot) -> None:
        slot = pending.slot
        pending.slot = None
        if slot is not None:
            self.gate()
            self._layers.give_back(slot)

    def _fingerprint_of(self, parts: FlatState, pending: PendingSnapshot) -> Any:
        """A fingerprint of the state; None where it would take reading all of it."""
        buffers = pending.owned.buffers
        known = pending.owned.gated | buffers | pending.own
        if any(s._cdata not in known for s in parts.storages):
            return None
        seen = [(t, v if _is_on(t, buffers) else t._version) for t, v in pending.seen]
        return parts.structure, parts.numbers, seen, pending.samples, self._record or pending.early

    def same(self, version: int) -> bool:
        """Whether the state is still that of the last version, and need not be saved again."""
        last = self.last
        if (
            last is None
            or last.version != version
            or last.skipped
            or last.lost
            or self._fingerprint is None
        ):
            return False
        early, tree = self._tree(version)
        parts = flatten(tree)
        structure, numbers, seen, samples, early_before = self._fingerprint
        if (
            parts.structure != structure
            or parts.numbers != numbers
            or changed_since(seen)
            or samples.changed()
        ):
            return False
        if self._ranks.world > 1:
            return bool(self._state.record() == early_before)
        pairs = zip(tensors_of(early), tensors_of(early_before), strict=True)  # of equal structure
        return all(
            bytes_of(now.cpu().contiguous()) == bytes_of(before.cpu().contiguous())
            for now, before in pairs
        )

    def _tree(self, version: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """What is read right after the step, and with it the state as it is saved."""
        if self._ranks.world > 1:
            early = {RECORDS: self._records}
        else:
            early = self._state.early()
        return early, self._state.tree(version, early)

    def _fits(self, parts: FlatState) -> bool:
        return self.layout is not None and self.layout.fits(parts)

    def _skipped(self, handle: Handle) -> Handle:
        self._pipeline.counts["skipped"] += 1
        handle.skipped = True
        handle.failed(
            CheckpointError(f"version {handle.version} was skipped: those before it are under way")
        )
        return handle

    def _failed(self, handle: Handle, error: Exception) -> Handle:
        self._pipeline.counts["failed"] += 1
        log.error("version %d is not saved: %s", handle.version, error)
        handle.failed(CheckpointError(f"version {handle.version} is not saved: {error}"))
        return handle

    def _agree(self, version: int, patience_s: float, deadline: float | None) -> None:
        """Take a slot for :meth:`begin` if every rank can. Collective.

        Raises CheckpointError: their states differ.

        With a ``deadline`` all ranks drop all older versions, unless each sees that all of them
        fit: one that only some ranks dropped would be sent for nothing.
        """
        urgent = deadline is not None
        usual_s = self.usual_s
        left = self._pipeline.under_way
        fits = not left or (usual_s > 0 and time.time() + (left + 1) * usual_s <= (deadline or 0.0))
        self.disagreements += compare_replicas(self._ranks, self._seen)
        self._seen = (0, 0, 0)
        slot = None
        record = b""
        renewed = False
        whole = True
        try:
            record = self._state.record()
            parts = flatten(self._tree(version)[1])
            renewed = not self._fits(parts)
            if renewed:
                bare = flatten(self._state.tree(version, {})).structure
                self._digest = int.from_bytes(
                    hashlib.sha256(repr(bare).encode()).digest()[:7], "big"
                )
            else:
                slot = self._layers.take(patience_s, urgent=urgent)
        except RequestError as error:
            # An extra that cannot be saved: the other ranks must not wait for this one
            log.error("version %d is not saved: %s", version, error)
            whole = False
        status = [
            whole,
            renewed or slot is not None,
            self._digest,
            -self._digest,
            -len(record),
            not renewed,
            fits,
        ]
        all_whole, ready, digest, other, size, agreed, all_fit, newest = self._ranks.minimum(
            [*status, -self._attempt]
        )
        if urgent and not all_fit:
            self._pipeline.hurry(version, alone=True)
        self._attempt = 1 - newest
        if all_whole and digest != -other:
            self._layers.give_back(slot)
            raise CheckpointError(
                "the ranks hold different models, optimizers or extras; all must be built alike"
            )
        capacity = len(self._records[0]) if self._records else 0
        if all_whole and (not agreed or capacity < -size + 8):
            self._layers.give_back(slot)
            # Room to grow: a layout costs more than a few bytes.
            room = -size + -size // 4 + 1024
            self._records = [
                torch.zeros(room, dtype=torch.uint8, device="cpu") for _ in range(self._ranks.world)
            ]
            tree = self._tree(version)[1]
            self._renew(tree, flatten(tree))
            slot = self._pipeline.take(patience_s, urgent=urgent)
            (ready,) = self._ranks.minimum([slot is not None])
        if not (all_whole and ready):
            self._layers.give_back(slot)
            return
        own = self._records[self._ranks.rank]
        own.copy_(pack(record, len(own)))
        self._record = record
        self._reserved = slot

    def _renew(self, tree: Any, parts: FlatState) -> None:
        start = time.perf_counter()
        self._layers.drop()
        layout = self.layout = SnapshotLayout.of(
            tree, parts, self._state, self._ranks, self._records
        )
        self.disagreements += layout.disagreements
        readable = any(tier.reads_memory for tier in self._pipeline.tiers)
        self._pipeline.renew(
            lambda: self._layers.strategy.slot(
                layout.image, layout.shares, self._ranks.rank, readable=readable
            )
        )
        self.taken = 0  # a new layout is compared at once
        if layout.image.lasting:
            self.layout_s = time.perf_counter() - start
        else:
            self.layout_s = 0.0


def _is_on(value: Any, storages: set[int]) -> bool:
    return isinstance(value, torch.Tensor) and storage_of(value)._cdata in storages


def _is_small(slot: Slot, sources: Sources, numbers: Sequence[int]) -> bool:
    """Whether these pieces are in host memory, and copied in a moment."""
    parts = [slot.pieces[number] for number in numbers]
    return sum(p.length for p in parts) <= _SMALL_BYTES and all(
        p.of(sources).device.type == "cpu" for p in parts
    )
