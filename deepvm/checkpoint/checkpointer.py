"""Checkpoint a training job in three lines; see :class:`Checkpointer`."""

from __future__ import annotations

import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from deepvm.checkpoint import arguments
from deepvm.checkpoint.loading.resumable_loader import ResumableLoader
from deepvm.checkpoint.loggers import EventLogger
from deepvm.checkpoint.restore import restore_newest
from deepvm.checkpoint.snapshot.copying import Copying, LayerSlots
from deepvm.checkpoint.snapshot.pipeline import Pipeline
from deepvm.checkpoint.snapshot.snapshotter import COMPARE_EVERY, WAIT_S, Snapshotter
from deepvm.checkpoint.tiers.base import Tier, without_secrets
from deepvm.checkpoint.training.agent_saves import AgentSaves
from deepvm.checkpoint.training.evaluations import Evaluations
from deepvm.checkpoint.training.hooks import Hook, close_at_exit, is_nested_step, stepper, without_autograd
from deepvm.checkpoint.training.ranks import Ranks, SaveRequests
from deepvm.checkpoint.training.save_handle import Handle, Journal
from deepvm.checkpoint.training.state import Stateful, TrainingState
from deepvm.checkpoint.training.unseen_steps import UnseenSteps
from deepvm.core.preemption.savepolicy import SaveContext, SaveFacts
from deepvm.errors import CheckpointError, RequestError
from deepvm.io.agent_board import Scheduled

_EVALUATION_S = 30.0
"""With less time than this an evaluation is not left to end before a save."""
_UNFETCHED = 200
"""Steps that one batch may take; without a batch for longer, the training reads its data in another way."""

log = logging.getLogger("deepvm.checkpoint")


class Checkpointer:
    """Saves the training state in the background every so many optimizer steps, and restores the newest good version.

    Version v is the state at the end of the iteration with optimizer step v (ACUTE IV-D, Check-Mem): random states and
    samplers as the step left them, everything else as the next forward in training mode finds it, so with schedulers,
    GradScalers, moving averages and weight clipping that follow the step. Copying starts after the step, and the next
    step waits until it has finished (``layerwise`` copies during backward).

    Parameters changed in forward or backward by anything but an optimizer are detected: that version is dropped, and
    from then on training waits for their copies. Changes through ``.data`` are not: call :meth:`wait` first. Only
    :meth:`request_save` may be called from other threads than the one that trains.
    """

    def __init__(
        self,
        *,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        extra: Mapping[str, Stateful] | None = None,
        tiers: str | Path | Tier | Sequence[str | Path | Tier] | None = None,
        every: int | str | None = None,
        job: str | None = None,
        keep: int | None = None,
        keep_every: int = 0,
        slots: int = 2,
        journal: str | Path | EventLogger | Sequence[str | Path | EventLogger] | None = None,
        strategy: str = "C",
    ) -> None:
        """Hook into the optimizer; nothing is sent or written yet.

        Args:
            model: the model being trained, also inside DistributedDataParallel, or sharded by ``fully_shard`` (FSDP2)
                or tensor parallelism: a file has whole tensors, any number of ranks resumes from it.
            optimizer: any optimizer of its parameters; of several, the one that steps last in an iteration.
            extra: by name, whatever else has ``state_dict`` and ``load_state_dict``: schedulers, GradScaler, samplers,
                other optimizers. Samplers and iterables are read right after the step, on each rank; everything else
                before the next forward, once for all ranks.
            tiers: where versions go: ``file:///folder``, ``tcp://host:port`` (several nodes share each version:
                ``tcp://host:port,host:port``; with ``?replicas=2`` behind it two of them have all of it), ``mpi://rank``,
                ``s3://``, ``gs://`` or ``az://bucket/prefix``, or a pathlib.Path; None for those of ``DEEPVM_TIERS``,
                separated by blanks, which ``deepvm run`` sets.
            every: steps (100), time ("30s", "10min"), or "auto": as often as pays off, for at most 3 % of the time (see
                :class:`deepvm.core.preemption.savepolicy.Auto`); or another policy of 'deepvm simulate' by name, such
                as "exact" or "hazard", without that limit. None: the steps of ``DEEPVM_SAVE_EVERY``, which ``deepvm
                run`` sets from the job file, else only when :meth:`save` is called or the agent's save policy says so.
            job: name of this training job; default ``DEEPVM_JOB``, else a name from the script's path, the same after a
                restart, with a warning where tiers are shared.
            keep: how many of the newest versions a folder or bucket keeps; a memory node decides for itself. None:
                ``DEEPVM_KEEP``, else 2.
            keep_every: keep one more version per so many steps; 0 for none.
            slots: versions in flight at once; each takes as much memory as the state.
            journal: a file to which rank 0 appends a line of JSON per event; a function that gets each event, such as
                :class:`deepvm.checkpoint.loggers.TensorBoard`; or several of both.
            strategy: how a version leaves the training's memory (LightCheck III-A): ``C`` into host memory; ``G`` into
                a device copy first; ``D`` straight into a file of the first ``file://`` tier (one rank; for tmpfs or
                persistent memory, not for disks); ``layerwise``: each layer is updated during backward and copied at
                once, if the training meets the requirements of :mod:`deepvm.checkpoint.training.layerwise`.

        Raises:
            RequestError: an argument is invalid.
            CheckpointError: a tier cannot be reached, or refuses.
        """
        keep, every = arguments.keep_of(keep), arguments.every_of(every)
        places = arguments.check(model, tiers, slots, keep, keep_every, journal)
        self.job, self._named = arguments.name_of(job)
        self._ranks = Ranks()
        self._state = TrainingState(model, optimizer, extra)
        if strategy == "layerwise" and any(isinstance(v, ResumableLoader) for v in self._state.extra.values()):
            raise RequestError("strategy", strategy, "C, G or D with a ResumableLoader")
        if strategy == "layerwise" and self._state.sharded:
            raise RequestError("strategy", strategy, "C or G with a sharded model")
        steppers = {name: stepper(optimizer, name) for name, optimizer in self._state.optimizers.items()}
        first = self._stepper = steppers.pop("optimizer")
        self._ranks.together(self._state.check)  # what cannot be saved is refused now, not at step 100
        self._schedule, self._given = arguments.parse_every(every), (every, strategy)
        self._mtbf_s, self._since = arguments.mtbf_s(self._schedule), time.monotonic()
        fingerprint = self._state.fingerprint
        facts = self._ranks.broadcast((secrets.token_hex(8), self.job, fingerprint.settings))
        session, self.job, fingerprint.settings = facts
        opened = arguments.open_all(places, session, keep, keep_every)
        if not (self._named or self._ranks.rank):
            arguments.warn_of_no_name([tier for tier in opened if tier.shared], self.job)
        self._epoch = arguments.epoch()
        if self._epoch is not None:
            for tier in opened:
                tier.begin(self.job, self._epoch)
        self._pipeline = Pipeline(opened, slots)
        self._journal = Journal([] if self._ranks.rank else arguments.journals(journal), self.job)
        copies = arguments.choose_strategy(strategy, self._pipeline.tiers, self.job, self._ranks.world)
        self._layers = LayerSlots(copies, self._pipeline, self._state)
        self._snapshotter = Snapshotter(self._state, self._pipeline, self._ranks, self._layers, self._journal, self.job)
        self._requests, self._agent = SaveRequests(self._ranks), AgentSaves.find()
        alone = self._agent is not None and self._ranks.world == 1 and strategy != "layerwise"
        self._evaluations = Evaluations(first) if alone else None
        self._version = 0
        self._loaders = [value for value in self._state.extra.values() if isinstance(value, ResumableLoader)]
        self._due: tuple[float | None, Scheduled | None] | None = None
        """With loaders: the deadline and the agent's wish of the version that is taken before the next batch."""
        self._due_at, self._told_unfetched = 0, False
        self._changed = False
        """Since that version was due something else has changed the state."""
        self._stepping = self._closed = False
        self._process = os.getpid()  # a forked child inherits neither the threads nor the right to stop them
        self._thread: threading.Thread | None = None
        if strategy == "layerwise":
            self._layers.divide(model, self._ranks.world, self._before_layer)
        self._unseen = UnseenSteps(first, steppers, self._schedule.saves and not self._ranks.rank)
        self._hooks: list[Any] = [
            first.register_step_pre_hook(Hook(self._before_step, step=True)),
            first.register_step_post_hook(Hook(self._after_step, step=True)),
            # First: fully_shard's own hook puts whole parameters into the model.
            self._state.model.register_forward_pre_hook(Hook(self._before_forward), prepend=self._state.sharded),
            first.register_load_state_dict_pre_hook(Hook(self._before_load)),
            self._state.model.register_load_state_dict_pre_hook(Hook(self._before_load)),
        ]
        for other in steppers.values():
            self._hooks.append(other.register_step_pre_hook(Hook(self._before_change, step=True)))
            self._hooks.append(other.register_load_state_dict_pre_hook(Hook(self._before_change)))
        for loader in self._loaders:
            loader.before_batch = Hook(self._before_batch)
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
        """Handles of all versions in flight and the last few that are done, oldest first; any thread may read it.

        A version is sent when the next forward or step begins; to stop training instead, call :meth:`save`.
        """
        return self._snapshotter.handles

    @property
    def metrics(self) -> dict[str, float]:
        """Versions saved, skipped and failed, bytes, and seconds for which training was stalled."""
        snapshots = self._snapshotter
        return {**self._pipeline.counts, "stall_s": snapshots.stall_s, "disagreements": snapshots.disagreements}

    def save(self, block: bool = False, best: bool = False) -> Handle:
        """Save the current state now, whatever the schedule says. With several ranks, all of them call it.

        Args:
            block: wait for a free slot, then until the version is remote (durable in a folder if the tiers away from
                here fail; local if all tiers are in memory); the emergency save.
            best: mark it as the best so far: kept beside the newest until a better one is saved.

        Returns:
            The handle; ``skipped`` if there was no free slot and ``block`` is not set.

        Raises:
            CheckpointError: with ``block``, no tier took it; or the checkpointer is closed.
            RequestError: called during ``optimizer.step``, from another thread than the one that trains, or (layerwise)
                between backward and step; use :meth:`request_save` there.
        """
        if self._closed:
            raise CheckpointError("the checkpointer is closed")
        later = "request_save(), which saves the state after the next step"
        if self._stepping:
            raise RequestError("save()", "during optimizer.step", later)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            raise RequestError("save()", "by another thread than that which trains", later)
        if self._layers.updates is not None and self._layers.updates.ahead:
            raise RequestError("save()", "between backward and step, when some layers are a step ahead", later)
        unseen = self._unseen.look()
        snapshots = self._snapshotter
        with without_autograd():
            snapshots.finish()
            (same,) = self._ranks.minimum([snapshots.same(self._version) and not unseen])
            handle = snapshots.last
            if not same or handle is None or (best and not handle.best):
                asked, self._due = self._due is not None, None  # what was due is this version
                mine = self._requests.begun() if asked else None
                handle = snapshots.begin(self._version, WAIT_S if block else 0.0, best=best, handle=mine)
                self._tell_of(handle, None)
                snapshots.finish(at_once=True)
        if block:
            handle.await_safe(all(tier.volatile for tier in self._pipeline.tiers), WAIT_S)
        return handle

    def request_save(self, deadline: float | None = None) -> Handle:
        """Save after the next optimizer step; may be called from any thread, signal handler, or single rank.

        With several ranks it may take a few tenths of a second until all of them know.

        Args:
            deadline: by when the version should be safe, by ``time.time()``: the machine is about to go. Older versions
                give way to it: those that wait, and where both do not fit that which is being sent; with several ranks
                all of them, unless all fit.

        Returns:
            The handle of the version that is saved; its number is 0 until the step has ended.
        """
        return self._requests.ask(deadline)

    def wait(self) -> None:
        """Wait for the copy in progress; call it before changing parameters by hand. Raises CheckpointError."""
        pending = self._snapshotter.pending
        if pending is not None and pending.slot is None:  # nothing of it is copied yet
            self._snapshotter.finish()
        self._wait()
        self._unseen.forget()  # the change is announced
        self._changed = True

    def _wait(self) -> None:
        self._passes()
        self._snapshotter.gate(*self._layers.copies.values())
        self._snapshotter.bytes.forget()

    def restore_latest(self, *, allow_fresh: bool = False) -> int:
        """Restore the newest complete, undamaged version of all tiers, after waiting for those in flight.

        Args:
            allow_fresh: start at 0 if all existing versions are damaged; what is left of them is renamed, not
                overwritten.

        Returns:
            The version, 0 if there is none; the next optimizer step makes the one after it.

        Raises:
            CheckpointError: no tier answers, the version is of another model, versions exist but none is readable, or
                those in flight do not finish. Training never silently restarts. If the job was given no name: the
                version was saved with other settings of optimizer, schedulers or modules (with a name, a warning).
        """
        self._before_load()
        self._snapshotter.settle()
        if self._layers.updates is not None:
            self._layers.updates.reset()
        self._version = restore_newest(
            *(self._state, self._pipeline.tiers, self.job, self._ranks),
            named=self._named,
            allow_fresh=allow_fresh,
            epoch=self._epoch,
        )
        self._stepping, self._due = False, None
        self._unseen.reset()
        self._snapshotter.forget(self._version)
        self._requests.reset(self._version)
        self._journal("restored", version=self._version)
        if self._agent is not None:
            self._agent.restored(self._version)
        return self._version

    def close(self, limit_s: float = WAIT_S) -> None:
        """Finish what is in flight, within ``limit_s``, and unhook from the optimizer. Calling it twice is harmless.

        Raises:
            CheckpointError: not finished in time; or nothing was saved although ``every`` asks for it, because the
                training's steps were never seen, or its state could not be saved.
        """
        if self._closed or os.getpid() != self._process:
            return
        try:
            if self._ranks.world == 1 and not self._changed:  # of several ranks, one may close alone
                self._before_batch()
            self._give_up_due()
            self._closed = True
            self._unseen.look()
            self._snapshotter.finish()
        finally:
            self._unseen.close()
            self._closed = True
            for hook in self._hooks:
                hook.remove()
            for loader in self._loaders:
                loader.before_batch = Hook()
            if self._layers.updates is not None:
                self._layers.updates.close()
            ended = self._pipeline.close(limit_s)
            for handle in self.handles:
                handle.failed(CheckpointError(f"version {handle.version}: no tier has promised that"))
            self._journal.closed(self.metrics)
            if self._agent is not None:
                self._agent.close()
        if not ended:
            raise CheckpointError(f"versions under way were not finished in {limit_s:.0f} s")
        if not self._pipeline.counts["saved"] and self._schedule.saves:
            if self._snapshotter.refused:
                raise CheckpointError(f"no version was saved: {self._snapshotter.refused}")
            self._unseen.end()

    def __repr__(self) -> str:
        """Job, version, tiers and schedule; without secrets."""
        every, strategy = self._given
        places = [without_secrets(tier.url) for tier in self._pipeline.tiers]
        closed = ", closed" if self._closed else ""
        facts = f"job={self.job!r}, version={self._version}, tiers={places}, every={every!r}, strategy={strategy!r}"
        return f"Checkpointer({facts}{closed})"

    def __enter__(self) -> Checkpointer:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it, without hiding the error that ends the training."""
        try:
            self.close()
        except CheckpointError as problem:
            if error is None:
                raise
            log.error("%s", problem)

    def _before_change(self) -> None:
        """Something other than the step changes the state: finish the pending version first."""
        self._snapshotter.finish()
        self._wait()

    def _before_load(self) -> None:
        self._before_change()
        self._unseen.forget()
        self._changed = True

    def _before_step(self) -> None:
        if not is_nested_step(self._stepper):
            # After a step that raised, the state is unknown until the next step.
            self._stepping, self._thread = True, threading.current_thread()
        if self._layers.updates is None:  # else each layer has waited for its own copy
            self._before_layer(())

    def _before_layer(self, copies: Sequence[Copying]) -> None:
        self._snapshotter.finish(in_step=True)
        self._snapshotter.gate(*copies)
        if self._agent is not None:
            self._agent.sent()

    def _after_step(self) -> None:
        if is_nested_step(self._stepper):
            return
        snapshots = self._snapshotter
        self._stepping = False
        self._version += 1
        self._unseen.stepped()
        self._layers.turn()
        if self._evaluations is not None:
            self._evaluations.stepped()
        scheduled = None if self._agent is None else self._agent.stepped(self._version, self._requests.ask)
        due = scheduled is not None or self._schedule.due(self._context())
        if self._ranks.world == 1 or self._schedule.fixed_steps or not self._schedule.saves:
            due = self._requests.due(self._version) or due or self._layers.filled is not None
        else:  # only one rank's clock counts
            due = self._requests.due(self._version, due)
        with without_autograd():
            if due:
                deadline = self._requests.deadline if self._requests.urgent else None
                if scheduled is not None and scheduled.reason.holds:
                    deadline = scheduled.limit_ms / 1000
                if self._loaders:
                    self._await_batch(deadline, scheduled)
                else:
                    self._begin(deadline, scheduled)
            elif self._ranks.world == 1 and snapshots.layout is None and self._schedule.saves:
                snapshots.lay_out(self._version)
            if self._ranks.world > 1:
                self._look_ahead()

    def _begin(self, deadline: float | None, scheduled: Scheduled | None) -> None:
        handle = self._snapshotter.begin(self._version, 0.0, handle=self._requests.begun(), deadline=deadline)
        self._tell_of(handle, scheduled)

    def _await_batch(self, deadline: float | None, scheduled: Scheduled | None) -> None:
        self._changed = False
        if self._due is None:
            self._due_at = self._version
        elif self._version - self._due_at >= _UNFETCHED and not self._told_unfetched:
            self._told_unfetched = True
            log.warning(
                "nothing is saved: version %d was due, and no batch was fetched through the ResumableLoader in extra "
                "since then; iterate over it, not over the loader that it was given",
                self._due_at,
            )
        self._due = deadline, scheduled

    def _before_batch(self) -> None:
        """A loader is about to fetch a batch, or to begin a pass: nothing of the next iteration has happened yet."""
        due, self._due = self._due, None
        if due is None or self._stepping or self._closed:
            return
        with without_autograd():
            self._begin(*due)
            self._snapshotter.finish(at_once=True)
        if self._agent is not None:
            self._agent.sent()

    def _give_up_due(self) -> None:
        """The training is over: what waits for the next batch is not saved, and whoever asked for it hears so."""
        due, self._due = self._due, None
        if due is None:
            return
        why = "the state was changed since" if self._changed else "several ranks end without a save() by all of them"
        log.warning("version %d was due and is not saved: %s", self._version, why)
        self._requests.begun().failed(CheckpointError(f"version {self._version} was not saved: {why}"))

    def _tell_of(self, handle: Handle, scheduled: Scheduled | None) -> None:
        if self._agent is not None:
            self._agent.begun(handle, scheduled)

    def _look_ahead(self) -> None:
        """Layerwise: take a slot for the next version, if one is due, before backward begins. Collective."""
        snapshots, updates = self._snapshotter, self._layers.updates
        if updates is None or updates.ahead or not (snapshots.layout and snapshots.layout.image.lasting):
            return
        # Replicas are compared while all of the state is unchanged; and only steps are known to all ranks beforehand.
        if self._ranks.world > 1 and (not snapshots.taken % COMPARE_EVERY or not self._schedule.fixed_steps):
            return
        if self._schedule.due(replace(self._context(), step=self._version + 1)):
            self._layers.prepare(snapshots.bytes.storages, self._ranks)

    def _context(self) -> SaveContext:
        """What a policy may know."""
        snapshots, last = self._snapshotter, self._snapshotter.last
        busy = max(last.times.values(), default=0.0) if last is not None else 0.0
        stall = max(last.stall_s - snapshots.layout_s, 0.0) if last is not None else 0.0  # a layout is made once
        now, mtbf = time.monotonic(), self._mtbf_s
        # No notices reach the job, so policies insure. Before anything is learnt a Lomax scale is the mean life.
        facts = SaveFacts(save_s=stall, backup_s=busy, mttp_s=mtbf, scale_s=mtbf, age_s=now - self._since)
        return SaveContext(self._version, now, snapshots.last_step, snapshots.last_s, facts)

    def _before_forward(self) -> None:
        if self._agent is not None:
            self._agent.forwarded()
        if not self._state.model.training:  # validation, perhaps with other weights
            if torch.is_grad_enabled():
                self._passes()
            else:
                self._before_evaluation()
            return
        self._passes()
        self._unseen.forwarded()
        self._send()
        if self._ranks.world == 1:
            with without_autograd():
                self._look_ahead()

    def _send(self) -> None:
        try:
            self._snapshotter.finish()
        except Exception as error:  # in a transformation, or with tensors that are none: before the next step then
            log.debug("version %d is sent later: %s", self._version, error)
        if self._agent is not None:
            self._agent.sent()

    def _passes(self) -> None:
        """The next step may begin."""
        if self._evaluations is not None:
            self._evaluations.forget()

    def _before_evaluation(self) -> None:
        """Save what the last step left, if it would be lost before the next one."""
        agent, evaluations, snapshots = self._agent, self._evaluations, self._snapshotter
        if agent is None or evaluations is None:
            return
        deadline = self._due[0] if self._due is not None else None
        left_s = min(agent.left_s, math.inf if deadline is None else deadline - time.time())
        if left_s == math.inf or left_s > max(_EVALUATION_S, 3 * snapshots.usual_s):
            return
        if self._stepping or not evaluations.stands():
            return
        log.warning(
            "version %d is saved during an evaluation: what comes after that, such as a scheduler's step, is not in it",
            self._version,
        )
        self._before_batch()
        with without_autograd():
            if (scheduled := agent.asked()) is not None:
                handle = snapshots.last
                if handle is None or handle.version != self._version or handle.skipped or handle.lost:
                    limit_s = scheduled.limit_ms / 1000
                    handle = snapshots.begin(self._version, 0.0, handle=self._requests.begun(), deadline=limit_s)
                agent.begun(handle, scheduled)
        self._send()
