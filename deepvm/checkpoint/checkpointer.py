"""Checkpoints of a training job in three lines; see :class:`Checkpointer`."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from deepvm.checkpoint.ahead import Layers
from deepvm.checkpoint.arena import Slot, checksum
from deepvm.checkpoint.exits import close_at_exit
from deepvm.checkpoint.folder import check_job
from deepvm.checkpoint.handle import Handle
from deepvm.checkpoint.journal import Journal
from deepvm.checkpoint.pipeline import Pipeline
from deepvm.checkpoint.plan import Plan, make_plan
from deepvm.checkpoint.ranks import Ranks, compare_replicas
from deepvm.checkpoint.restore import restore_newest
from deepvm.checkpoint.schedule import parse_every
from deepvm.checkpoint.snapshot import Bytes, Copying
from deepvm.checkpoint.state import RECORDS, Stateful, TrainingState, pack
from deepvm.checkpoint.strategies import choose
from deepvm.checkpoint.tiers.base import Shard, Tier
from deepvm.checkpoint.tiers.open import open_tier
from deepvm.checkpoint.tree import Parts, take_apart
from deepvm.core.savepolicy import EverySteps, Never, SaveContext
from deepvm.errors import CheckpointError, RequestError

COMPARE_EVERY = 10
"""Versions of several ranks of which one is compared with that of a neighbour."""
WAIT_S = 600.0
"""Seconds after which whoever waits for a copy or a tier is told that something is wrong."""


class Checkpointer:
    """Saves the state after every so many optimizer steps, in the background, and restores the newest good version.

    Version v is the state at the end of the iteration with optimizer step v (ACUTE IV-D, Check-Mem): random states and
    samplers as the step left them, everything else as the next forward finds it, so schedulers, GradScalers and moving
    averages that follow the step are in. The copy of parameters and optimizer state begins with that forward and runs
    beside it; the next ``optimizer.step`` waits until it has ended (layer by layer it begins during backward). Whoever
    changes parameters during forward or backward, otherwise than by the optimizer, calls :meth:`wait` first.
    """

    def __init__(
        self,
        *,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        extra: Mapping[str, Stateful] | None = None,
        tiers: Sequence[str | Tier],
        every: int | str | None = None,
        job: str | None = None,
        keep: int = 2,
        keep_every: int = 0,
        slots: int = 2,
        journal: str | Path | None = None,
        strategy: str = "C",
    ) -> None:
        """Hook into the optimizer; nothing is sent or written yet.

        Args:
            model: what is trained; inside DistributedDataParallel as well.
            optimizer: of its parameters; any.
            extra: schedulers, GradScaler, samplers ...: what has ``state_dict`` and ``load_state_dict``, by name.
            tiers: where versions go: ``file:///folder``, ``tcp://host:port`` (or several nodes that share each version:
                ``tcp://host:port,host:port``), ``mpi://rank``, ``s3://bucket/prefix``.
            every: steps (100), time ("30s", "10min"), or "auto": as often as pays, for at most 3 % of the time (see
                :class:`deepvm.core.savepolicy.Auto`); None: only when :meth:`save` is called.
            job: whose versions these are; ``DEEPVM_JOB``, else ``job``.
            keep: how many of the newest versions a folder or bucket keeps; a memory node decides that itself.
            keep_every: for each so many steps it keeps one more; 0 for none.
            slots: versions that may be under way at once; each takes the memory of the state.
            journal: a file to which rank 0 adds a line of JSON for each event.
            strategy: how a version leaves the training's memory (LightCheck III-A): ``C`` into memory of this machine;
                ``G`` into a copy on the device first; ``D`` straight into a file of the first ``file://`` tier, for one
                rank, worth having where that lies in memory or on persistent memory, not on a disk; ``layerwise``: each
                layer is updated during backward, and copied at once. See :mod:`deepvm.checkpoint.snapshot` and, for
                what it needs of the training, :mod:`deepvm.checkpoint.layerwise`.

        Raises:
            RequestError: an argument cannot be used.
            CheckpointError: a tier cannot be reached or refuses.
        """
        if not tiers:
            raise RequestError("tiers", list(tiers), "at least one, such as file:///mnt/checkpoints")
        if isinstance(slots, bool) or slots < 1:
            raise RequestError("slots", slots, "a whole number from 1; 2 overlap one version with the next")
        self._ranks = Ranks()
        self.job = check_job(job or os.environ.get("DEEPVM_JOB") or "job")
        self._state = TrainingState(model, optimizer, extra)
        self._schedule = parse_every(every)
        session = self._ranks.session()
        opened = [t if isinstance(t, Tier) else open_tier(t, session, keep, keep_every) for t in tiers]
        self._pipeline = Pipeline(opened, slots)
        self._journal = Journal(None if self._ranks.rank else journal, self.job)
        self._strategy = choose(strategy, self._pipeline.tiers, self.job, self._ranks.world)
        self._layers = Layers(self._strategy, self._pipeline, self._state)
        self._copying: Copying | None = None
        self._version = 0
        self._plan: Plan | None = None
        self._bytes = Bytes()
        self._digest = self._taken = self._disagreements = 0
        self._records: list[torch.Tensor] = []
        self._reserved: Slot | None = None
        self._seen = (0, 0, 0)
        self._last: Handle | None = None
        self._last_step, self._last_s, self._plan_s = 0, time.monotonic(), 0.0
        self._early: dict[str, Any] | None = None
        self._due, self._gate_s = False, 0.0
        if strategy == "layerwise":
            self._layers.divide(model, self._ranks.world, self._before_layer)
        self._hooks: list[Any] = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
            self._state.model.register_forward_pre_hook(self._before_forward),
            optimizer.register_load_state_dict_pre_hook(lambda *_: self.wait()),
            self._state.model.register_load_state_dict_pre_hook(lambda *_: self.wait()),
        ]
        self._closed = False
        take_apart(self._state.tree(0, self._state.early()))  # what cannot be saved is refused now, not at step 100
        close_at_exit(self.close)

    @property
    def version(self) -> int:
        """Optimizer steps done, those of the restored version included."""
        return self._version

    @property
    def metrics(self) -> dict[str, float]:
        """Versions saved, skipped and failed, bytes, and seconds for which training stood still."""
        return {**self._pipeline.counts, "stall_s": self._gate_s, "disagreements": self._disagreements}

    def save(self, block: bool = False, best: bool = False) -> Handle:
        """Save the present state, whatever the schedule says.

        Args:
            block: wait for a free slot, and until a tier has acknowledged the version; the emergency save.
            best: it is the best so far: kept, beside the newest, until a better one is saved.

        Returns:
            The handle; ``skipped`` where there was no room and ``block`` is not set.

        Raises:
            CheckpointError: with ``block``: no tier took it.
            RequestError: layer by layer, between backward and ``optimizer.step``.
        """
        if self._layers.updates is not None and self._layers.updates.begun:
            raise RequestError("save()", "between backward and step", "before or after: some layers are a step ahead")
        self._due = False  # this one is it
        last = self._last
        handle = last if last is not None and last.version == self._version and not last.skipped else None
        if handle is None or handle.lost or (best and not handle.best):
            handle = self._save(WAIT_S if block else 0.0, best)
        if block:
            local = all(tier.volatile for tier in self._pipeline.tiers)
            handle.await_safe(local, WAIT_S)
        return handle

    def wait(self) -> None:
        """Wait until the copy under way has ended, before changing parameters otherwise than by the optimizer.

        Raises:
            CheckpointError: the copy does not end.
        """
        self._before_forward()
        self._await(self._copying, *self._layers.copies.values())
        self._bytes.forget()

    def _await(self, *copies: Copying | None) -> None:
        waiting = [c for c in copies if c is not None and not c.open]
        if not waiting:
            return
        start = time.perf_counter()
        if not all(c.wait(WAIT_S) for c in waiting):
            raise CheckpointError(f"the copy of a version did not end in {WAIT_S:.0f} s")
        waited = time.perf_counter() - start
        self._gate_s += waited
        if self._last is not None:
            self._last.stall_s += waited

    def restore_latest(self) -> int:
        """Restore the newest complete and undamaged version of all tiers.

        Returns:
            The version, 0 when there is none; the next optimizer step makes the one after it.

        Raises:
            CheckpointError: no tier answers, what was found is of another model, or versions are there and none of them
                can be had now.
        """
        self.wait()
        self._version = restore_newest(self._state, self._pipeline.tiers, self.job, self._ranks)
        self._journal("restored", version=self._version)
        return self._version

    def close(self, limit_s: float = WAIT_S) -> None:
        """Finish what is under way and let go of the optimizer. Doing it twice is harmless.

        Args:
            limit_s: seconds to wait for the tiers.

        Raises:
            CheckpointError: it could not be finished in time.
        """
        if self._closed:
            return
        self._closed = True
        self._before_forward()
        for hook in self._hooks:
            hook.remove()
        if self._layers.updates is not None:
            self._layers.updates.close()
        ended = self._pipeline.close(limit_s)
        self._strategy.close()
        self._journal.closed(self.metrics)
        if not ended:
            raise CheckpointError(f"versions under way were not finished in {limit_s:.0f} s")

    def __enter__(self) -> Checkpointer:
        """Use it with ``with``."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _before_step(self, *_: Any) -> None:
        if self._layers.updates is None:  # else each layer has waited for its own copy
            self._before_layer(())

    def _before_layer(self, copies: Sequence[Copying]) -> None:
        self._before_forward()
        self._await(self._copying, *copies)

    def _after_step(self, *_: Any) -> None:
        start = time.perf_counter()
        self._version += 1
        self._layers.turn()
        self._due = self._layers.has_slot or self._is_due(self._version)
        self._early = None
        if self._due and self._ranks.world == 1:
            self._early = self._state.early()
        elif self._due:  # here every rank comes by; before the next forward perhaps not
            self._due = self._agree(0.0)
        elif self._plan is None and self._ranks.world == 1 and not isinstance(self._schedule, Never):
            tree = self._state.tree(self._version, self._state.early())
            self._renew(tree, take_apart(tree))
            self._pipeline.warm()
        if self._ranks.world > 1:
            self._look_ahead()
        self._gate_s += time.perf_counter() - start

    def _is_due(self, version: int) -> bool:
        due = self._schedule.due(replace(self._context(), step=version))
        return due if isinstance(self._schedule, (EverySteps, Never)) else bool(self._ranks.told(due))

    def _look_ahead(self) -> None:
        """Layer by layer: have a slot for the next version, if one is due, before backward begins. Collective."""
        if self._layers.updates is None or self._layers.updates.begun or not (self._plan and self._plan.image.lasting):
            return
        # Comparing replicas needs all of the state to stand still.
        compares = self._ranks.world > 1 and not self._taken % COMPARE_EVERY
        if not compares and self._is_due(self._version + 1):
            self._layers.prepare(self._bytes.storages, self._ranks)

    def _context(self) -> SaveContext:
        """What a policy may know; ``last`` is what was begun last, also if it was skipped."""
        last = self._last
        busy = max(last.times.values(), default=0.0) if last is not None else 0.0
        stall = max(last.stall_s - self._plan_s, 0.0) if last is not None else 0.0  # a layout is made once
        return SaveContext(self._version, time.monotonic(), self._last_step, self._last_s, stall, busy)

    def _before_forward(self, *_: Any) -> None:
        if self._due:
            self._due = False
            self._save(0.0)
        if self._ranks.world == 1:
            self._look_ahead()

    def _save(self, patience_s: float, best: bool = False) -> Handle:
        self._await(self._copying)
        start = time.perf_counter()
        handle = Handle(self._version, best=best, tell=self._journal.of(self._version))
        self._last_step, self._last_s, self._plan_s = self._version, time.monotonic(), 0.0
        early, self._early = self._early, None
        if self._ranks.world > 1:
            if self._reserved is None:
                self._agree(patience_s)
            slot, self._reserved = self._reserved, None
            tree = self._state.tree(self._version, {RECORDS: self._records})
            parts = take_apart(tree)
            if slot is not None and not self._fits(parts):
                self._layers.give_back(slot)
                slot = None
        else:
            tree = self._state.tree(self._version, self._state.early() if early is None else early)
            parts = take_apart(tree)
            if not self._fits(parts):
                self._renew(tree, parts)
            slot = self._layers.take(patience_s)
        if slot is None:
            self._pipeline.counts["skipped"] += 1
            handle.skipped = True
            handle.failed(CheckpointError(f"version {handle.version} was skipped: those before it are under way"))
            return handle
        self._last = handle
        self._snapshot(handle, parts, slot)
        took_s = time.perf_counter() - start
        handle.stall_s, self._gate_s = handle.stall_s + took_s, self._gate_s + took_s
        return handle

    def _fits(self, parts: Parts) -> bool:
        return self._plan is not None and parts.structure == self._plan.structure

    def _agree(self, patience_s: float) -> bool:
        """Take a slot if every rank can; all ranks save this version or none. Collective.

        Raises:
            CheckpointError: the ranks do not hold the same state.
        """
        self._disagreements += compare_replicas(self._ranks, self._seen)
        self._seen = (0, 0, 0)
        record = self._state.record()
        parts = take_apart(self._state.tree(self._version, {RECORDS: self._records}))
        renewed = not self._fits(parts)
        if renewed:
            bare = take_apart(self._state.tree(self._version, {})).structure
            self._digest = int.from_bytes(hashlib.sha256(repr(bare).encode()).digest()[:7], "big")
        slot = None if renewed else self._layers.take(patience_s)
        told = [renewed or slot is not None, self._digest, -self._digest, -len(record), not renewed]
        ready, digest, other, size, agreed = self._ranks.least(told)
        if digest != -other:
            raise CheckpointError("the ranks hold different models, optimizers or extras; all must be built alike")
        capacity = len(self._records[0]) if self._records else 0
        if not agreed or capacity < -size + 8:
            if slot is not None:
                self._layers.give_back(slot)
            # Room to grow: a layout costs more than a few bytes.
            self._records = [
                torch.zeros(-size + -size // 4 + 1024, dtype=torch.uint8) for _ in range(self._ranks.world)
            ]
            tree = self._state.tree(self._version, {RECORDS: self._records})
            self._renew(tree, take_apart(tree))
            slot = self._pipeline.take(patience_s)
        elif not ready:
            if slot is not None:
                self._layers.give_back(slot)
            self._pipeline.counts["skipped"] += 1
            self._journal("skipped", version=self._version, error="a rank had no room")
            return False
        own = self._records[self._ranks.rank]
        own.copy_(pack(record, len(own)))
        self._reserved = slot
        return slot is not None

    def _renew(self, tree: Any, parts: Parts) -> None:
        start = time.perf_counter()
        self._layers.drop()
        plan = self._plan = make_plan(tree, parts, self._state, self._ranks, self._records)
        self._pipeline.renew(lambda: self._strategy.slot(plan.image, plan.layout, self._ranks.rank))
        self._taken = 0  # a new layout is compared at once
        self._plan_s = time.perf_counter() - start if plan.image.lasting else 0.0

    def _snapshot(self, handle: Handle, parts: Parts, slot: Slot) -> None:
        assert self._plan is not None
        sources = self._bytes.of(parts.storages)
        gated = self._state.gated()
        free = {n for n, storage in enumerate(parts.storages) if storage._cdata in gated}
        done, check = self._layers.done(parts.storages)
        pending = free - done
        later = [n for n, piece in enumerate(slot.pieces) if piece.storage in pending]
        if not self._ranks.rank:
            slot.image.write_numbers(slot.view, parts.numbers)
        rank, layout = self._ranks.rank, self._plan.layout
        shard = Shard(self.job, handle.version, rank, layout, slot.view, home=slot.home, best=handle.best)
        self._taken += 1
        compare = self._plan.compared(free) if self._taken % COMPARE_EVERY == 1 else []
        now = [n for n, piece in enumerate(slot.pieces) if piece.storage not in free]
        copying = self._copying = Copying(self._strategy, slot, sources, later, now, hold=bool(compare))

        def also() -> None:
            if compare:
                own, neighbour = (checksum(sources, pieces) for pieces in compare)
                self._seen = (handle.version, own, neighbour)

        def copy(reached: Callable[[int], None]) -> None:
            check()
            copying.run(reached, also)

        self._pipeline.send(slot, shard, handle, copy)
