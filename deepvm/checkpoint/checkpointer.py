"""Checkpoints of a training job in three lines; see :class:`Checkpointer`."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from deepvm.checkpoint.arguments import (
    check,
    choose_strategy,
    mtbf_of,
    name_of,
    open_all,
    parse_every,
    warn_of_no_name,
)
from deepvm.checkpoint.format.flatten import take_apart
from deepvm.checkpoint.restore import restore_newest
from deepvm.checkpoint.snapshot.layer_slots import Layers
from deepvm.checkpoint.snapshot.pipeline import Pipeline
from deepvm.checkpoint.snapshot.snapshotter import COMPARE_EVERY, WAIT_S, Versions
from deepvm.checkpoint.snapshot.strategies import Copying
from deepvm.checkpoint.tiers.base import Tier
from deepvm.checkpoint.training.announce import shown
from deepvm.checkpoint.training.hooks import Hook, StepHook, aside, close_at_exit, nested_step
from deepvm.checkpoint.training.journal import Journal
from deepvm.checkpoint.training.ranks import Ranks, SaveRequests
from deepvm.checkpoint.training.save_handle import Handle
from deepvm.checkpoint.training.state import Stateful, TrainingState
from deepvm.checkpoint.training.unseen_steps import Unseen
from deepvm.core.preemption.savepolicy import EverySteps, Never, SaveContext, SaveFacts
from deepvm.errors import CheckpointError, RequestError

log = logging.getLogger("deepvm.checkpoint")


class Checkpointer:
    """Saves the state after every so many optimizer steps, in the background, and restores the newest good version.

    Version v is the state at the end of the iteration with optimizer step v (ACUTE IV-D, Check-Mem): random states and
    samplers as the step left them, everything else as the next forward in training mode finds it, so schedulers,
    GradScalers, moving averages and clipped weights that follow the step are in. The copy of parameters and optimizer
    state begins behind the step; the next one waits until it has ended (layer by layer it begins during backward).

    Parameters that change in forward or backward, otherwise than by an optimizer, are noticed: that version is given
    up, and from then on training waits for their copies. Changes through ``.data`` are not: call :meth:`wait` before.
    All methods but :meth:`request_save` are for the thread that trains.
    """

    def __init__(
        self,
        *,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        extra: Mapping[str, Stateful] | None = None,
        tiers: str | Path | Tier | Sequence[str | Path | Tier],
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
            optimizer: of its parameters; any. Of several the one that steps last in an iteration.
            extra: schedulers, GradScaler, samplers, other optimizers ...: what has ``state_dict`` and
                ``load_state_dict``, by name. Samplers, and what has ``__iter__``, are read behind the step, for each
                rank; all others before the next forward, once for all ranks.
            tiers: where versions go: ``file:///folder``, ``tcp://host:port`` (or several nodes that share each version:
                ``tcp://host:port,host:port``), ``mpi://rank``, ``s3://bucket/prefix``, or a path.
            every: steps (100), time ("30s", "10min"), or "auto": as often as pays, for at most 3 % of the time (see
                :class:`deepvm.core.preemption.savepolicy.Auto`); or another policy of 'deepvm simulate' by its name,
                such as "exact" or "hazard", without that limit; None: only when :meth:`save` is called.
            job: whose versions these are; ``DEEPVM_JOB``, else ``job``, with a warning where others may save as well.
            keep: how many of the newest versions a folder or bucket keeps; a memory node decides that itself.
            keep_every: for each so many steps it keeps one more; 0 for none.
            slots: versions that may be under way at once; each takes the memory of the state.
            journal: a file to which rank 0 adds a line of JSON for each event.
            strategy: how a version leaves the training's memory (LightCheck III-A): ``C`` into memory of this machine;
                ``G`` into a copy on the device first; ``D`` straight into a file of the first ``file://`` tier, for one
                rank, worth having where that lies in memory or on persistent memory, not on a disk; ``layerwise``: each
                layer is updated during backward, and copied at once. See :mod:`deepvm.checkpoint.snapshot.strategies`
                and, for what it needs of the training, :mod:`deepvm.checkpoint.training.layerwise`.

        Raises:
            RequestError: an argument cannot be used.
            CheckpointError: a tier cannot be reached or refuses.
        """
        places = check(model, tiers, slots, keep, keep_every, journal)
        self.job, named = name_of(job)
        self._ranks = Ranks()
        self._state = TrainingState(model, optimizer, extra)
        first, *others = self._steppers = self._state.steppers()
        with aside():  # what cannot be saved is refused now, not at step 100
            take_apart(self._state.tree(0, self._state.early()))
        self._schedule, self._words = parse_every(every), (every, strategy)
        self._mtbf_s, self._since = mtbf_of(self._schedule), time.monotonic()
        opened = open_all(places, self._ranks.session(), keep, keep_every)
        if not (named or self._ranks.rank):
            warn_of_no_name(opened)
        self._pipeline = Pipeline(opened, slots)
        self._journal = Journal(None if self._ranks.rank else journal, self.job)
        self._strategy = choose_strategy(strategy, self._pipeline.tiers, self.job, self._ranks.world)
        self._layers = Layers(self._strategy, self._pipeline, self._state)
        self._versions = Versions(
            self._state, self._pipeline, self._ranks, self._strategy, self._layers, self._journal, self.job
        )
        self._requests = SaveRequests(self._ranks)
        self._version = 0
        self._stepping = self._closed = False
        self._process = os.getpid()  # a forked child has nothing to finish
        self._thread: threading.Thread | None = None
        if strategy == "layerwise":
            self._layers.divide(model, self._ranks.world, self._before_layer)
        named_others = dict(zip(self._state.stepper_names()[1:], others, strict=True))
        self._unseen = Unseen(first, named_others, tells=not (self._ranks.rank or isinstance(self._schedule, Never)))
        self._hooks: list[Any] = [
            first.register_step_pre_hook(StepHook(self._before_step)),
            first.register_step_post_hook(StepHook(self._after_step)),
            self._state.model.register_forward_pre_hook(Hook(self._before_forward)),
            first.register_load_state_dict_pre_hook(Hook(self._before_load)),
            self._state.model.register_load_state_dict_pre_hook(Hook(self._before_load)),
        ]
        for other in others:
            self._hooks.append(other.register_step_pre_hook(StepHook(self._before_change)))
            self._hooks.append(other.register_load_state_dict_pre_hook(Hook(self._before_change)))
        unknown = self._state.unknown_parameters()
        if unknown:
            log.warning(
                "%d parameters that can be trained, %s for one, belong to no optimizer that is known here; optimizers "
                "beside the first go into extra",
                *(len(unknown), unknown[0]),
            )
        close_at_exit(self.close)

    @property
    def version(self) -> int:
        """Optimizer steps done, those of the restored version included."""
        return self._version

    @property
    def handles(self) -> tuple[Handle, ...]:
        """Of the newest versions, also those of the schedule and of :meth:`request_save`; any thread may read it.

        The oldest first: all that are under way, and of those that are done the last few. A version is sent when the
        next forward or step begins; who stops training instead calls :meth:`save`, which gives the same handle.
        """
        return self._versions.handles.now

    @property
    def metrics(self) -> dict[str, float]:
        """Versions saved, skipped and failed, bytes, and seconds for which training stood still."""
        made = self._versions
        return {**self._pipeline.counts, "stall_s": made.stall_s, "disagreements": made.disagreements}

    def save(self, block: bool = False, best: bool = False) -> Handle:
        """Save the present state, whatever the schedule says. With several ranks all of them call it.

        Args:
            block: wait for a free slot, and until a tier has acknowledged the version; the emergency save.
            best: it is the best so far: kept, beside the newest, until a better one is saved.

        Returns:
            The handle; ``skipped`` where there was no room and ``block`` is not set.

        Raises:
            CheckpointError: with ``block``: no tier took it; or the checkpointer is closed.
            RequestError: it is called during ``optimizer.step``, by another thread than that which trains, or, layer by
                layer, between backward and step: :meth:`request_save` may be.
        """
        self._refuse_unless_still()
        unseen = self._unseen.look()
        made = self._versions
        with aside():
            made.finish()
            same = made.same(self._version) and not unseen
            if self._ranks.world > 1:
                same = bool(self._ranks.least([same])[0])
            handle = made.last
            if not same or handle is None or (best and not handle.best):
                patience_s = WAIT_S if block else 0.0
                if self._ranks.world > 1:
                    made.agree(self._version, patience_s)
                handle = made.begin(self._version, patience_s, best)
                made.finish(at_once=True)
        if block:
            handle.await_safe(all(tier.volatile for tier in self._pipeline.tiers), WAIT_S)
        return handle

    def request_save(self) -> None:
        """Have the state behind the next optimizer step saved; from any thread, signal handler, or single rank.

        With several ranks it may be the step after the next second.
        """
        self._requests.ask()

    def wait(self) -> None:
        """Wait until the copy under way has ended, before changing parameters otherwise than by an optimizer.

        Raises:
            CheckpointError: the copy does not end.
        """
        self._wait()
        self._unseen.forget()  # the change is announced

    def _wait(self) -> None:
        begun = self._versions.begun
        if begun is not None and begun.slot is None:  # nothing of it is copied yet
            self._versions.finish()
        self._versions.gate(*self._layers.copies.values())
        self._versions.bytes.forget()

    def restore_latest(self, *, allow_fresh: bool = False) -> int:
        """Restore the newest complete and undamaged version of all tiers, those under way included: it waits for them.

        Args:
            allow_fresh: begin anew at 0 where versions are there and all of them are damaged; what is left of them gets
                other names, and is not overwritten.

        Returns:
            The version, 0 when there is none; the next optimizer step makes the one after it.

        Raises:
            CheckpointError: no tier answers, what was found is of another model, or versions are there and none of them
                can be had, now or at all; or those under way do not come to an end.
        """
        self._before_load()
        self._versions.settle()
        if self._layers.updates is not None:
            self._layers.updates.reset()
        self._version = restore_newest(
            self._state, self._pipeline.tiers, self.job, self._ranks, allow_fresh=allow_fresh
        )
        self._stepping = False
        self._unseen.reset()
        self._versions.forget(self._version)
        self._requests.reset(self._version)
        self._journal("restored", version=self._version)
        return self._version

    def close(self, limit_s: float = WAIT_S) -> None:
        """Finish what is under way and let go of the optimizer. Doing it twice is harmless.

        Args:
            limit_s: seconds to wait for the tiers.

        Raises:
            CheckpointError: it could not be finished in time; or it saved nothing of a training whose steps it did not
                see, although ``every`` asks for versions.
        """
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        try:
            self._unseen.look()
            self._versions.finish()
        finally:
            self._unseen.close()
            for hook in self._hooks:
                hook.remove()
            if self._layers.updates is not None:
                self._layers.updates.close()
            ended = self._pipeline.close(limit_s)
            self._strategy.close()
            self._journal.closed(self.metrics)
        if not ended:
            raise CheckpointError(f"versions under way were not finished in {limit_s:.0f} s")
        if not self._pipeline.counts["saved"] and not isinstance(self._schedule, Never):
            self._unseen.end()

    def __repr__(self) -> str:
        """Whose versions go where, and when; without secrets."""
        every, strategy = self._words
        places = [shown(tier.url) for tier in self._pipeline.tiers]
        closed = ", closed" if self._closed else ""
        facts = f"job={self.job!r}, version={self._version}, tiers={places}, every={every!r}, strategy={strategy!r}"
        return f"Checkpointer({facts}{closed})"

    def __enter__(self) -> Checkpointer:
        """Use it with ``with``."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it; what goes wrong then does not hide the error that ends the training."""
        try:
            self.close()
        except CheckpointError as problem:
            if error is None:
                raise
            log.error("%s", problem)

    def _refuse_unless_still(self) -> None:
        """Refuse to save while the state is on its way from one version to the next."""
        if self._closed:
            raise CheckpointError("the checkpointer is closed")
        later = "request_save(), which has the state saved behind the next step"
        if self._stepping:
            raise RequestError("save()", "during optimizer.step", later)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            raise RequestError("save()", "by another thread than that which trains", later)
        if self._layers.updates is not None and self._layers.updates.begun:
            raise RequestError("save()", "between backward and step, when some layers are a step ahead", later)

    def _before_change(self) -> None:
        """Something but the step changes the state: a version that was begun must be whole first."""
        self._versions.finish()
        self._wait()

    def _before_load(self) -> None:
        self._before_change()
        self._unseen.forget()

    def _before_step(self) -> None:
        if not nested_step(self._steppers[0]):
            # Of a step that raised an error nobody knows what it has changed; whoever steps again knows better.
            self._stepping, self._thread = True, threading.current_thread()
        if self._layers.updates is None:  # else each layer has waited for its own copy
            self._before_layer(())

    def _before_layer(self, copies: Sequence[Copying]) -> None:
        self._versions.finish(in_step=True)
        self._versions.gate(*copies)

    def _after_step(self) -> None:
        if nested_step(self._steppers[0]):
            return
        made = self._versions
        self._stepping = False
        self._version += 1
        self._unseen.stepped()
        self._layers.turn()
        due = self._is_due()
        with aside():
            if self._ranks.world > 1:
                if due:
                    made.agree(self._version, 0.0)
                    made.begin(self._version, 0.0)
                self._look_ahead()
            elif due:
                made.begin(self._version, 0.0)
            elif made.plan is None and not isinstance(self._schedule, Never):
                made.lay_out(self._version)

    def _is_due(self) -> bool:
        """Whether this version is to be saved; the same on all ranks."""
        due = self._schedule.due(self._context())
        if self._ranks.world == 1 or isinstance(self._schedule, (EverySteps, Never)):
            return self._requests.due(self._version) or due or self._layers.has_slot
        return self._requests.due(self._version, due)

    def _look_ahead(self) -> None:
        """Layer by layer: have a slot for the next version, if one is due, before backward begins. Collective."""
        made = self._versions
        if self._layers.updates is None or self._layers.updates.begun or not (made.plan and made.plan.image.lasting):
            return
        # Comparing replicas needs all of the state to stand still; and only steps are known to all ranks beforehand.
        alone = self._ranks.world == 1
        if not alone and (not made.taken % COMPARE_EVERY or not isinstance(self._schedule, EverySteps)):
            return
        if self._schedule.due(replace(self._context(), step=self._version + 1)):
            self._layers.prepare(made.bytes.storages, self._ranks)

    def _context(self) -> SaveContext:
        """What a policy may know; ``last`` is what was begun last, also if it was skipped."""
        made, last = self._versions, self._versions.last
        busy = max(last.times.values(), default=0.0) if last is not None else 0.0
        stall = max(last.stall_s - made.plan_s, 0.0) if last is not None else 0.0  # a layout is made once
        now, mtbf = time.monotonic(), self._mtbf_s
        # No notices reach the job, so policies insure. Before anything is learnt a Lomax scale is the mean life.
        facts = SaveFacts(save_s=stall, backup_s=busy, mttp_s=mtbf, scale_s=mtbf, age_s=now - self._since)
        return SaveContext(self._version, now, made.last_step, made.last_s, facts)

    def _before_forward(self) -> None:
        if not self._state.model.training:  # validation, perhaps with other weights
            return
        self._unseen.forwarded()
        try:
            self._versions.finish()
        except Exception as error:  # in a transformation, or with tensors that are none: before the next step then
            log.debug("version %d is sent later: %s", self._version, error)
        if self._ranks.world == 1:
            with aside():
                self._look_ahead()
