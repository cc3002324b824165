"""Take snapshots: what is copied when, on one rank or several.

A snapshot starts after its optimizer step: a slot is taken, what anything may change is copied at
once, and what only the optimizer changes is copied in the background. When the next forward starts,
numbers, schedulers and moving averages are read, and the slot goes to the tiers.
"""

import hashlib
import time
from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from deepvm.checkpoint.format.checksums import UpTo
from deepvm.checkpoint.format.flatten import FlatState, State, StateDict, flatten
from deepvm.checkpoint.format.layout import Layout, Segment
from deepvm.checkpoint.format.manifest import Shard
from deepvm.checkpoint.format.sharded import (
    Part,
    holders_of,
    is_sharded,
    local,
    parts_of,
    storage_of,
    writers,
)
from deepvm.checkpoint.format.tensor_bytes import ByteSamples, as_bytes, bytes_of
from deepvm.checkpoint.format.torch_zip import Image, lay_out
from deepvm.checkpoint.loggers import log
from deepvm.checkpoint.snapshot.copying import LayerSlots, SnapshotCopy, StorageBytes
from deepvm.checkpoint.snapshot.host_buffer import (
    FillProgress,
    Piece,
    Slot,
    Sources,
    checksum,
    pieces_of,
)
from deepvm.checkpoint.snapshot.pipeline import Pipeline
from deepvm.checkpoint.training.hooks import without_autograd
from deepvm.checkpoint.training.ranks import MEETINGS, Ranks, compare_replicas, shards
from deepvm.checkpoint.training.save_handle import Handle, Journal, with_newest
from deepvm.checkpoint.training.state import RECORDS, StorageRoles, TrainingState, pack, tensors_of
from deepvm.errors import CheckpointError, RequestError
from deepvm.records import dataclass, field

# With several ranks, one checkpoint in so many is compared with the neighbor's replica
COMPARE_EVERY = 10
WAIT_S = 600.0  # Seconds after which waiting for a copy is an error
# A checkpoint of a new layout waits for a slot: its slot of the old layout is freed at once
_RENEW_S = 5.0
_SMALL_BYTES = 4 * 2**20  # Host memory that is copied at once at a boundary: it takes a millisecond
_CHANGED = (
    "{} tensors were changed in forward or backward, otherwise than by an optimizer, while they"
    " were copied; from now on training waits for their copies"
)
Seen = list[tuple[Tensor, int]]  # Tensors with their version counters


@dataclass(frozen=True)
class SnapshotLayout:
    """The file of all checkpoints of one structure."""

    structure: list[Hashable]  # empty if each checkpoint needs its own layout
    image: Image
    shares: Layout  # which rank copies what
    compare: tuple[tuple[Piece, ...], ...] = ()  # pieces of this rank and of its neighbor
    disagreements: int = 0

    @classmethod
    def of(
        cls,
        tree: Any,
        parts: FlatState,
        state: TrainingState,
        ranks: Ranks,
        records: Sequence[Tensor],
    ) -> "SnapshotLayout":
        image = lay_out(tree, parts, ranks.world)
        if ranks.world == 1:
            return cls(parts.structure if image.lasting else [], image, image.layout())
        # Each rank sends its parts of what is sharded, and its record, rank 0 buffers and numbers;
        # the rest is shared.
        held = ranks.gather_objects(parts_of(parts.regions))
        numbers = {s._cdata: n for n, s in enumerate(parts.storages) if n not in parts.regions}
        owners = {numbers[cdata]: 0 for cdata in state.owned().buffers if cdata in numbers}
        owners |= {numbers[t.untyped_storage()._cdata]: r for r, t in enumerate(records)}
        owned = [(Segment(image.storages[n], image.sizes[n]), r) for n, r in owners.items()]
        owned += [(image.pickle, 0), *writers(parts.regions, image.storages, held)]
        layout = Layout(image.size, shards(image.size, ranks.world, owned), image.fields)
        compare = tuple(
            tuple(p for p in pieces_of(image, layout, rank) if p.storage not in parts.regions)
            for rank in (ranks.rank, (ranks.rank + 1) % ranks.world)
        )
        return cls(parts.structure, image, layout, compare, _compare_parts(parts, held, ranks))


def _compare_parts(parts: FlatState, held: Sequence[Mapping[int, Part]], ranks: Ranks) -> int:
    """Compare parts that several ranks hold: one is saved for all; how many differ. Collective.

    Experts or pipeline stages that are sharded under one name are no copies of each other.
    """
    all_held = [(n, those) for n in parts.regions for those in holders_of(n, held).values()]
    several = [(n, those) for n, those in all_held if len(those) > 1]
    own: dict[int, int] = {}
    for number, those in several:
        if ranks.rank in those:
            runs = parts.regions[number].runs()
            pieces = [Piece(0, run.start, run.length, run.place) for run in runs]
            own[number] = checksum([as_bytes(parts.storages[number])], pieces)
    sums = ranks.gather_objects(own) if several else []
    different = [(n, those) for n, those in several if len({sums[rank][n] for rank in those}) > 1]
    for number, those in different[:1]:
        log.error(
            "ranks %s hold different values of %s%s, as if they were copies: checkpoints have"
            " those of"
            " one of them; give what is not a copy a name of its own, or save with DeepVMWriter",
            *(", ".join(map(str, those)), parts.place_of(number)),
            f" and {len(different) - 1} more" if len(different) > 1 else "",
        )
    return len(different)


@dataclass
class PendingSnapshot:
    """A checkpoint not sent yet."""

    handle: Handle
    model: StateDict  # the state_dict after the step, with the model's own tensors
    early: State  # samplers and random states after the step, or the ranks' records
    patience_s: float
    parts: FlatState
    owned: StorageRoles
    seen: Seen = field(default_factory=list)  # the tensors of model and optimizers
    # Of what is copied in the background
    samples: ByteSamples = field(default_factory=lambda: ByteSamples((), ()))
    at_boundary: bool = False  # nothing of the next iteration has happened
    slot: Slot | None = None
    filling: FillProgress | None = None
    copying: SnapshotCopy | None = None
    still: set[int] = field(default_factory=set)  # storages copied at once, by ``_cdata``
    late: set[int] = field(default_factory=set)  # numbers of those copied last, before sending

    @cached_property
    def own(self) -> set[int]:
        """The storages of ``model`` and ``early``, by ``_cdata``."""
        return {storage_of(tensor)._cdata for tensor in tensors_of((self.model, self.early))}

    def divide(self, restless: Collection[int]) -> tuple[set[int], set[int], set[int]]:
        """Storage numbers, by when they are copied: in the background, at once, before sending.

        Only an optimizer changes the first, unless they are ``restless`` (by ``_cdata``); anything
        may change the second; the last follow the step: schedulers, moving averages.
        """
        own = self.own
        gated = self.owned.gated
        cdata = {number: storage._cdata for number, storage in enumerate(self.parts.storages)}
        background = {n for n, c in cdata.items() if c in gated and c not in restless}
        at_once = {n for n, c in cdata.items() if n not in background and (c in own or c in gated)}
        return background, at_once, cdata.keys() - background - at_once


def seen_now(parts: FlatState, storages: Collection[int]) -> Seen:
    """The tensors on these storages (by ``_cdata``), with their version counters."""
    # Anyone who changes a DTensor's part by itself counts there.
    tensors = chain(parts.tensors, (local(t) for t in parts.tensors if is_sharded(t)))
    counted = (t for t in tensors if not t.is_inference())
    return [(t, t._version) for t in counted if storage_of(t)._cdata in storages]


def changed_since(seen: Seen) -> set[int]:
    """The storages, by ``_cdata``, changed in place since then, except through ``.data``."""
    return {storage_of(tensor)._cdata for tensor, version in seen if tensor._version != version}


@dataclass(eq=False, repr=False)
class Snapshotter:
    """Makes checkpoints, one at a time."""

    _state: TrainingState
    _pipeline: Pipeline
    _ranks: Ranks
    _layers: LayerSlots
    _journal: Journal
    _job: str

    def __post_init__(self) -> None:
        self.layout: SnapshotLayout | None = None
        self.last: Handle | None = None  # of the checkpoint started last
        self.last_due: Handle | None = None  # also if it was skipped or refused
        self.handles: tuple[Handle, ...] = ()  # any thread may read it: replaced, not changed
        self.pending: PendingSnapshot | None = None
        self.changed = set[int]()  # storages, by _cdata, since the last checkpoint's step
        self.bytes = StorageBytes()
        self.taken = self.disagreements = self._digest = self._attempt = 0
        self.last_step = 0  # started (even if skipped) or restored last
        self.last_s = time.monotonic()
        self.layout_s = 0.0  # of the last checkpoint, spent on a new layout
        self.stall_s = 0.0
        self._copying: SnapshotCopy | None = None
        self._records: list[Tensor] = []
        self._record = b""
        self._reserved: Slot | None = None
        self._restless: set[int] = set()
        self._seen = (0, 0, 0)
        self._fingerprint: Any = None

    def gate(self, *copies: SnapshotCopy) -> None:
        """Wait until the state may change: for the copy in progress, and for these."""
        waiting = [c for c in (self._copying, *copies) if c is not None and not c.open]
        if not waiting:
            return
        start = time.perf_counter()
        if not all(c.wait(WAIT_S) for c in waiting):
            raise CheckpointError(f"the copy of a checkpoint did not end in {WAIT_S:.0f} s")
        self._stalled(start, self.last)

    def _stalled(self, start: float, handle: Handle | None) -> None:
        took_s = time.perf_counter() - start
        self.stall_s += took_s
        if handle is not None:
            handle.stall_s += took_s

    def settle(self) -> None:
        """Wait until the tiers have what was sent: it must not follow a restore. Collective."""
        for _ in range(MEETINGS):
            if self._ranks.minimum([self._pipeline.settle(WAIT_S / MEETINGS)])[0]:
                return
        late = ", ".join(str(handle.version) for handle in self.handles if not handle.done)
        raise CheckpointError(
            f"checkpoints {late or 'of other ranks'} are under way after {WAIT_S:.0f} s;"
            " nothing was"
            " restored: try again"
        )

    def forget(self, version: int) -> None:
        self.last = self.last_due = self._fingerprint = None
        self._counts_from(version)
        self.bytes.forget()

    def _counts_from(self, version: int) -> None:
        self.last_step = version
        self.last_s = time.monotonic()
        self.layout_s = 0.0

    def lay_out(self, version: int) -> None:
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
        """Take a slot, and start copying the result of the step; see :meth:`finish`. Collective.

        ``deadline``: before it, by ``time.time()``, older checkpoints give way. ``at_boundary``:
        between two iterations; what no optimizer has is copied at once, and so are small states.
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
        self._counts_from(version)
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
            model = tree["model"]  # the dict is ours, only its tensors are the model's
            model |= {k: v.clone() for k, v in model.items() if _is_on(v, owned.buffers)}
        self.pending = pending
        self.last = handle
        self._stalled(start, handle)
        return handle

    @property
    def usual_s(self) -> float:
        """How long a checkpoint takes at most; 0 while unknown."""
        return max((s for known in self.handles for s in known.times.values()), default=0.0)

    def _samples(self, parts: FlatState, storages: Collection[int]) -> ByteSamples:
        if parts.regions:  # a sharded model's memory moves
            return ByteSamples((), ())
        pairs = zip(parts.storages, self.bytes.of(parts.storages), strict=True)
        chosen = [(storage, source) for storage, source in pairs if storage._cdata in storages]
        return ByteSamples([storage for storage, _ in chosen], [source for _, source in chosen])

    def _copy(self, pending: PendingSnapshot, patience_s: float, urgent: bool = False) -> bool:
        assert self.layout is not None
        # No rank takes a slot alone: all save this checkpoint or none.
        reserved = self._reserved
        self._reserved = None
        slot = reserved
        if self._ranks.world == 1:
            slot = self._layers.take(patience_s, urgent=urgent)
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
            compare = []
            if self.taken % COMPARE_EVERY == 1:
                compare = [
                    [p for p in pieces if p.storage in background] for pieces in self.layout.compare
                ]
            if pending.at_boundary and not compare and _is_small(slot, sources, later):
                now = sorted(now + later)
                later = []
            copying = self._copying = SnapshotCopy(
                self._layers.strategy, slot, sources, later, now, hold=bool(compare)
            )

            def also() -> None:
                if compare:
                    own, neighbor = (checksum(sources, pieces) for pieces in compare)
                    self._seen = (pending.handle.version, own, neighbor)

            def copy(reached: UpTo) -> None:
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
        """Read what follows the step (numbers, schedulers, averages), and send the checkpoint.

        ``in_step``: the next forward has run. ``at_once``: nothing has since :meth:`begin`.
        """
        pending = self.pending
        if pending is None:
            return
        start = time.perf_counter()
        handle = pending.handle
        with without_autograd():
            try:
                parts = pending.parts
                replaced: dict[int, UntypedStorage] = {}
                if not (at_once or in_step):
                    replaced = self._take_replaced(pending)
                if not at_once or pending.slot is None:
                    tree = self._state.tree(handle.version, pending.early)
                    tree["model"] = pending.model
                    parts = flatten(tree)
                    if pending.slot is None or not self._fits(parts):
                        self._start_again(pending, tree, parts)
                if pending.slot is not None:
                    self.changed = set()
                    if not at_once:
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
                text = f"version {handle.version} was interrupted: {type(error).__name__}"
                handle.failed(CheckpointError(text))
                raise
        self.pending = None
        self._stalled(start, handle)

    def _start_again(self, pending: PendingSnapshot, tree: Any, parts: FlatState) -> None:
        patience_s = pending.patience_s
        if pending.slot is not None:  # it is freed at once
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

    def _take_replaced(self, pending: PendingSnapshot) -> dict[int, UntypedStorage]:
        """Take buffers that were replaced since the step; returns the new memory by the old."""
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
        self, pending: PendingSnapshot, in_step: bool, replaced: dict[int, UntypedStorage]
    ) -> set[int]:
        """Copy what changed since the step, such as clipped weights; returns the storages."""
        assert pending.slot is not None and pending.copying is not None
        now = {c: storage_of(p) for c, p in pending.owned.parameters.items()} | replaced
        found = changed_since(pending.seen) | {
            c for c, storage in now.items() if storage._cdata != c
        }
        found |= pending.samples.changed()
        if in_step and found:
            found -= pending.still  # what forward changed belongs to the next checkpoint
            stray = found - self._state.updated()
            if stray:
                self._restless |= stray
                raise CheckpointError(_CHANGED.format(len(stray)))
        if found:
            self.gate(*self._layers.copies.values())
            pairs = [(s, now.get(s._cdata, s)) for s in pending.parts.storages]
            sources = [as_bytes(new) if old._cdata in found else None for old, new in pairs]
            pieces = enumerate(pending.slot.pieces)
            again = [n for n, piece in pieces if sources[piece.storage] is not None]
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
        layout = self.layout.shares
        handle.size = layout.size
        shard = Shard(
            self._job,
            handle.version,
            self._ranks.rank,
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
        buffers = pending.owned.buffers
        known = pending.owned.gated | buffers | pending.own
        if any(s._cdata not in known for s in parts.storages):
            return None  # it would take reading all of it
        seen = [(t, v if _is_on(t, buffers) else t._version) for t, v in pending.seen]
        return parts.structure, parts.numbers, seen, pending.samples, self._record or pending.early

    def same(self, version: int) -> bool:
        """Whether the state is still that of the last checkpoint, and need not be saved again."""
        last = self.last
        if not (last and last.version == version and self._fingerprint):
            return False
        if last.skipped or last.lost:
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

    def _tree(self, version: int) -> tuple[StateDict, StateDict]:
        if self._ranks.world > 1:
            early = {RECORDS: self._records}
        else:
            early = self._state.early()
        return early, self._state.tree(version, early)

    def _fits(self, parts: FlatState) -> bool:
        known = self.layout
        return (
            known is not None
            and parts.structure == known.structure
            and parts.regions == known.image.regions
        )

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
        """Take a slot if all ranks can; drop older checkpoints before a deadline; collective."""
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
                bare = repr(flatten(self._state.tree(version, {})).structure)
                self._digest = int.from_bytes(hashlib.sha256(bare.encode()).digest()[:7], "big")
            else:
                slot = self._layers.take(patience_s, urgent=urgent)
        except RequestError as error:  # an extra cannot be saved: the others must not wait
            log.error("version %d is not saved: %s", version, error)
            whole = False
        status = [whole, renewed or slot is not None, self._digest, -self._digest, -len(record)]
        status += [not renewed, fits, -self._attempt]
        all_whole, ready, digest, other, size, agreed, all_fit, newest = self._ranks.minimum(status)
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
        self.layout_s = 0.0
        if layout.image.lasting:
            self.layout_s = time.perf_counter() - start


def _is_on(value: Any, storages: set[int]) -> bool:
    return isinstance(value, Tensor) and storage_of(value)._cdata in storages


def _is_small(slot: Slot, sources: Sources, numbers: Sequence[int]) -> bool:
    parts = [slot.pieces[number] for number in numbers]
    return sum(p.length for p in parts) <= _SMALL_BYTES and all(
        p.of(sources).device.type == "cpu" for p in parts
    )
