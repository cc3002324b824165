"""Checkpoint a training job in three lines; see :class:`Checkpointer`."""

from __future__ import annotations

import logging
import math
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
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
from deepvm.checkpoint.training.between_steps import BetweenSteps
from deepvm.checkpoint.training.evaluations import Evaluations
from deepvm.checkpoint.training.hooks import (
    Hook,
    callers,
    close_at_exit,
    is_nested_step,
    modules_called,
    stepper,
    without_autograd,
)
from deepvm.checkpoint.training.notice_hook import NoticeHook
from deepvm.checkpoint.training.ranks import Ranks, SaveRequests
from deepvm.checkpoint.training.save_handle import Handle, Journal
from deepvm.checkpoint.training.state import Stateful, TrainingState
from deepvm.checkpoint.training.unseen_steps import UnseenSteps
from deepvm.core.preemption.savepolicy import SaveContext, SaveFacts
from deepvm.errors import CheckpointError, RequestError
from deepvm.io.agent_board import Scheduled

_HURRY_S = 10.0
"""With less time than this nothing is waited for."""
_EVALUATION_S = 30.0
"""With less time than this an evaluation is not left to end before a save."""
_ACCUMULATED = 256
"""Over so many iterations gradients may be added up: a version waits for the step that uses them."""
_UNFETCHED = 200
"""Steps that one batch may take; without a batch for longer, the training reads its data in another way."""

log = logging.getLogger("deepvm.checkpoint")


class Checkpointer:
    """Saves the training state in the background every so many iterations, and restores the newest good version.

    Example::

        ck = Checkpointer(model=model, optimizer=optimizer, tiers="file:///mnt/ckpt", every=100, job="resnet")
        for step in ck.steps(10_000):
            ...  # an iteration: forward, backward, optimizer steps, schedulers, averages

    Version v is the state after v iterations (ACUTE IV-D, Check-Mem). :meth:`steps` says where iterations end: all is
    read there, at one moment. Without it hooks count the optimizer's steps and have to infer that moment: random states
    and samplers are read as the step leaves them, everything else as the next forward in training mode finds it. What
    changes in between and may belong to either iteration is warned about.

    Copying starts between two iterations, and the next step of an optimizer waits until it has finished (``layerwise``
    copies during backward). Parameters changed before that by anything but an optimizer are detected: that version is
    dropped, and from then on they are copied at once. Only :meth:`request_save` may be called from other threads than
    the one that trains.
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
        single = self._agent is not None and self._ranks.world == 1 and strategy != "layerwise"
        self._evaluations = Evaluations(first) if single else None
        self._notice: NoticeHook | None = None
        if self._agent is not None and single:
            agent = self._agent
            self._notice = NoticeHook(self._state.model, lambda: agent.left_s, self._before_evaluation)
        self._version = 0
        self._loaders = [value for value in self._state.extra.values() if isinstance(value, ResumableLoader)]
        # With loaders, versions are taken before a batch is fetched: nothing of the next iteration has happened.
        self._between = BetweenSteps(self._state, looks=not self._loaders, switches=self._ranks.world == 1)
        self._due: tuple[float | None, Scheduled | None] | None = None
        """With loaders: the deadline and the agent's wish of the version that is taken before the next batch."""
        self._due_at, self._told_unfetched = 0, False
        self._changed = False
        """Since that version was due something else has changed the state."""
        self._loop = 0
        """Number of the newest loop over :meth:`steps`; 0 outside of one."""
        self._loops, self._restored, self._consumer = 0, False, 0
        self._unused = 0
        """Iterations since an optimizer has stepped: gradients may be added up, which are in no version."""
        self._used: list[tuple[int, int] | None] = []
        """The gradients that it has used."""
        self._updated = False
        """An optimizer has stepped in this iteration of the loop."""
        self._asked: Handle | None = None
        """What save() has returned in this iteration of the loop."""
        self._again = self._rewound = False
        """Whether save() has taken this iteration before its end, and whether an older version was restored in it."""
        self._stepping = self._closed = False
        self._process = os.getpid()  # a forked child inherits neither the threads nor the right to stop them
        self._thread: threading.Thread | None = None
        if strategy == "layerwise":
            self._layers.divide(model, self._ranks.world, self._before_layer)
        self._unseen = UnseenSteps(first, steppers, self._schedule.saves and not self._ranks.rank)
        self._hooks: list[Any] = [
            first.register_step_pre_hook(Hook(self._before_step, step=True)),
            first.register_step_post_hook(Hook(self._after_step, step=True)),
            first.register_load_state_dict_pre_hook(Hook(self._before_load)),
            self._state.model.register_load_state_dict_pre_hook(Hook(self._before_load)),
        ]
        for module in modules_called(self._state.model):
            # First: fully_shard's own hook puts whole parameters into the model.
            hook = Hook(self._before_forward)
            self._hooks.append(module.register_forward_pre_hook(hook, prepend=self._state.sharded))
        for name, other in steppers.items():
            before = partial(self._before_other_step, name)
            self._hooks.append(other.register_step_pre_hook(Hook(before, step=True)))
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
        self._between.started()
        close_at_exit(self.close)

    @property
    def version(self) -> int:
        """Iterations done, those of the restored version included; without :meth:`steps` optimizer steps."""
        return self._version

    @property
    def _number(self) -> int:
        """The version that the state would be now: an iteration whose optimizer has stepped is in it."""
        return self._version + self._updated

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

    def steps(self, total: int | None = None) -> Iterator[int]:
        """The iterations that are left, by number; between two of them checkpoints are taken.

        It restores the newest version first, unless :meth:`restore_latest` was called. What is due is saved when the
        body of the loop has ended, and with it what the iteration did: all optimizers, ``extra``, random states and
        loaders at that moment. An iteration that is left early, by ``break`` or an exception, counts if an optimizer
        has stepped in it. After :meth:`restore_latest` in the body the restored version's iteration comes next. What
        the loop has in local variables, such as a batch that was fetched ahead, is not in a version.

        Args:
            total: how many iterations there are, the restored ones included; None: until the loop is left.

        Raises:
            RequestError: ``total`` is no such number; with the strategy ``layerwise``, which saves during backward.
            CheckpointError: the checkpointer is closed; also what :meth:`restore_latest` raises.
        """
        if total is not None and (isinstance(total, bool) or not isinstance(total, int) or total < 0):
            raise RequestError("total", total, "a whole number from 0, or None")
        if self._layers.updates is not None:
            raise RequestError("steps()", 'strategy="layerwise"', "C, G or D")
        if self._closed:
            raise CheckpointError("the checkpointer is closed")
        if self._loop and any(id(frame) == self._consumer for frame in callers()):
            raise RequestError("steps()", "a loop within another one", "one loop over steps() at a time")
        if not self._restored:
            self.restore_latest()
        return self._iterate(total)

    def _iterate(self, total: int | None) -> Iterator[int]:
        if self._loop:  # an exception has left it, and something holds on to that
            self._end_loop()
        self._snapshotter.finish()
        self._loops += 1
        loop = self._loop = self._loops
        try:
            while total is None or self._version < total:
                self._consumer = id(sys._getframe(1))
                yield self._version
                if self._closed:
                    raise CheckpointError("ck.steps() cannot continue: the checkpointer is closed")
                if self._loop != loop:
                    raise RequestError("steps()", "a loop that another one has replaced", "one loop at a time")
                if self._rewound:
                    self._rewound = False
                else:
                    self._end_iteration()
            last = self._snapshotter.last_due
            skipped = (last is not None and last.skipped) or self._due is not None  # by some ranks, perhaps
            if self._ranks.minimum([-skipped])[0]:
                self._save(WAIT_S, best=False)
        finally:
            if self._loop == loop:
                self._end_loop()

    def _end_iteration(self) -> None:
        """All that the iteration does is done, and nothing of the next one."""
        self._unused = 0 if self._updated else self._unused + 1
        self._version, self._updated = self._version + 1, False
        self._stepped()
        asked, self._asked = self._asked, None
        again, self._again = self._again, False
        if asked is not None or again:
            self._save(WAIT_S, best=asked is not None and asked.best, handle=asked)
        self._take_if_due()

    def _end_loop(self) -> None:
        """The loop has ended, perhaps within an iteration, which counts if it has changed the parameters."""
        self._loop = 0
        self._version, self._updated = self._number, False
        self._rewound = self._again = False
        asked, self._asked = self._asked, None
        if asked is None:
            return
        try:
            self._save(WAIT_S, best=asked.best, handle=asked)
        except CheckpointError as error:  # nothing that a generator raises when it is left reaches the training
            log.error("%s", error)

    def save(self, block: bool = False, best: bool = False) -> Handle:
        """Save the current state, whatever the schedule says. With several ranks, all of them call it.

        It waits for a free slot, and until the state is copied: what changes afterwards is not in the version. In an
        iteration of :meth:`steps` the version is taken when that iteration has ended; with ``block`` at once, after an
        optimizer has stepped, and again at the end of the iteration if something has changed by then.

        Args:
            block: wait until the version is remote (durable in a folder if the tiers away from here fail; local if all
                tiers are in memory); the emergency save.
            best: mark it as the best so far: kept next to the newest until a better one is saved.

        Returns:
            The handle; in an iteration of :meth:`steps` its number is 0 until the iteration has ended.

        Raises:
            CheckpointError: it was not copied, as no slot was free in time, or the state cannot be saved; with
                ``block``, no tier took it; or the checkpointer is closed.
            RequestError: called during ``optimizer.step``, from another thread than the one that trains, or (layerwise)
                between backward and step; use :meth:`request_save` there. With ``block``: too early in an iteration.
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
        if self._loop and not block:
            if self._asked is None:
                self._asked = Handle(0)
            self._asked.best |= best
            return self._asked
        if self._loop and not self._updated:
            allowed = "save(), which saves when the iteration has ended, or save(block=True) after the loop"
            raise RequestError("save(block=True)", "within an iteration, before an optimizer has stepped", allowed)
        handle = self._save(WAIT_S, best=best)
        self._again = bool(self._loop)
        if block:
            handle.await_safe(all(tier.volatile for tier in self._pipeline.tiers), WAIT_S)
        return handle

    def _save(self, patience_s: float, *, best: bool, handle: Handle | None = None) -> Handle:
        """Save the current state if it is not saved, and copy it before returning. Raises CheckpointError."""
        unseen = self._unseen.look()
        snapshots, version = self._snapshotter, self._number
        with without_autograd():
            snapshots.finish()
            (same,) = self._ranks.minimum([snapshots.same(version) and not unseen and handle is None])
            last = snapshots.last
            if same and last is not None and (last.best or not best):
                return last
            asked, self._due = self._due is not None, None  # what was due is this version
            if handle is None and asked:
                handle = self._requests.begun()
            handle = snapshots.begin(version, patience_s, best=best, handle=handle, at_boundary=True)
            self._tell_of(handle, None)
            snapshots.finish(at_once=True)
            snapshots.gate()
        copied = handle.snapshot_done
        if copied.done() and (error := copied.exception()) is not None:
            raise error
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
        self._updated, self._asked, self._again = False, None, False
        self._restored, self._rewound = True, bool(self._loop)
        self._unseen.reset()
        self._snapshotter.forget(self._version)
        self._requests.reset(self._version)
        self._journal("restored", version=self._version)
        if self._agent is not None:
            self._agent.restored(self._version)
        self._between.started()
        return self._version

    def close(self, limit_s: float = WAIT_S) -> None:
        """Finish what is in flight, within ``limit_s``, and unhook from the optimizer. Calling it twice is harmless.

        Raises:
            CheckpointError: not finished in time; the newest version that was due is not safe, as no tier took it; or
                nothing was saved although ``every`` asks for it, because the training's steps were never seen.
        """
        if self._closed or os.getpid() != self._process:
            return
        try:
            if self._loop:
                self._end_loop()
            if self._ranks.world == 1 and not self._changed:  # of several ranks, one may close alone
                self._before_batch()
            self._give_up_due()
            self._unseen.look()
            self._snapshotter.finish()
            self._catch_up(limit_s)
            self._closed = True
        finally:
            self._unseen.close()
            self._closed = True
            for hook in self._hooks:
                hook.remove()
            for loader in self._loaders:
                loader.before_batch = Hook()
            if self._layers.updates is not None:
                self._layers.updates.close()
            if self._notice is not None:
                self._notice.close()
            ended = self._pipeline.close(limit_s)
            for handle in self.handles:
                handle.failed(CheckpointError(f"version {handle.version}: no tier has promised that"))
            self._journal.closed(self.metrics)
            if self._agent is not None:
                self._agent.close()
        if not ended:
            raise CheckpointError(f"versions under way were not finished in {limit_s:.0f} s")
        self._check_newest()
        if not self._pipeline.counts["saved"] and self._schedule.saves:
            self._unseen.end()

    def _catch_up(self, limit_s: float) -> None:
        """The training is over: if there was no slot for the newest version that was due, save the end instead."""
        last = self._snapshotter.last_due
        over = sys.exc_info()[0] is None and getattr(sys, "last_type", None) is None and not self._stepping
        if last is not None and last.skipped and over and self._ranks.world == 1:
            try:
                self._save(limit_s, best=False)
            except CheckpointError as error:
                log.warning("%s", error)

    def _check_newest(self) -> None:
        """Raise CheckpointError if the newest version that was due is lost. One that was skipped only warns."""
        last = self._snapshotter.last_due
        if last is None or not last.lost:
            return
        safe = [h.version for h in self.handles if h.local_done.done() and not h.lost]
        newest = f"version {max(safe)}" if safe else "none of this run"
        error = last.local_done.exception()
        text = f"version {last.version} was due and is not safe: {error}; the newest that is safe: {newest}"
        if not last.skipped:
            raise CheckpointError(text)
        log.warning("%s; call save(block=True) at the end", text)

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

    def _before_other_step(self, name: str) -> None:
        """An optimizer in ``extra`` steps: as the first one does it, but in the same iteration."""
        if self._loop:
            self._updated, self._used = True, self._state.gradient_marks()
        else:
            self._between.other_stepped(name)
        self._end_pass(in_step=True)
        self._wait()

    def _end_pass(self, in_step: bool) -> None:
        """Read what follows the step of a version that is due, and send it: the next iteration changes it."""
        snapshots = self._snapshotter
        if self._loop:
            snapshots.finish(in_step)
            return
        with without_autograd():
            self._between.first_pass(in_step)
        pending = snapshots.pending is not None
        snapshots.finish(in_step)
        if pending:
            with without_autograd():
                self._between.next_pass(set() if in_step else snapshots.changed, self._pipeline.background)

    def _before_layer(self, copies: Sequence[Copying]) -> None:
        self._end_pass(in_step=True)
        self._snapshotter.gate(*copies)
        if self._agent is not None:
            self._agent.sent()

    def _after_step(self) -> None:
        if is_nested_step(self._stepper):
            return
        self._stepping = False
        if self._loop:
            self._updated, self._used = True, self._state.gradient_marks()
            return
        self._version += 1
        self._between.main_stepped()
        self._stepped()
        self._take_if_due()

    def _stepped(self) -> None:
        """A step, or an iteration, has ended."""
        self._unseen.stepped()
        self._layers.turn()
        if self._evaluations is not None:
            self._evaluations.stepped()

    def _take_if_due(self) -> None:
        """Start to save the version that has just been reached, if the schedule, a request or the agent says so."""
        snapshots = self._snapshotter
        scheduled = None if self._agent is None else self._agent.stepped(self._version, self._requests.ask)
        waiting = self._due if self._loop else None
        if waiting is not None:
            self._due, scheduled = None, scheduled or waiting[1]
        due = scheduled is not None or waiting is not None or self._schedule.due(self._context())
        if self._ranks.world == 1 or self._schedule.fixed_steps or not self._schedule.saves:
            due = self._requests.due(self._version) or due or self._layers.filled is not None
        else:  # only one rank's clock counts
            due = self._requests.due(self._version, due)
        with without_autograd():
            if due:
                deadline = self._requests.deadline if self._requests.urgent else waiting and waiting[0]
                if scheduled is not None and scheduled.reason.holds:
                    deadline = scheduled.limit_ms / 1000
                if self._loop and self._accumulates(deadline):
                    self._due = deadline, scheduled
                elif self._loop:
                    self._take(deadline, scheduled)
                elif self._loaders:
                    self._await_batch(deadline, scheduled)
                else:
                    self._between.due()
                    self._begin(deadline, scheduled)
            elif self._ranks.world == 1 and snapshots.layout is None and self._schedule.saves:
                snapshots.lay_out(self._version)
            if self._ranks.world > 1:
                self._look_ahead()

    def _accumulates(self, deadline: float | None) -> bool:
        """Whether a version waits, as gradients are being added up over iterations, and there is time. Collective."""
        marks = self._state.gradient_marks() if self._unused else []
        added = any(mark is not None for mark in marks) and marks != self._used
        urgent = deadline is not None and deadline - time.time() < max(_HURRY_S, 3 * self._snapshotter.usual_s)
        (ready,) = self._ranks.minimum([not added or urgent or self._unused > _ACCUMULATED])
        if ready and added:
            log.warning(
                "version %d is saved without the gradients that were added up since the last step", self._version
            )
        return not ready

    def _begin(self, deadline: float | None, scheduled: Scheduled | None, at_boundary: bool = False) -> None:
        handle = self._requests.begun()
        handle = self._snapshotter.begin(self._version, 0.0, handle=handle, deadline=deadline, at_boundary=at_boundary)
        self._tell_of(handle, scheduled)

    def _take(self, deadline: float | None, scheduled: Scheduled | None) -> None:
        """Save the state between two iterations."""
        self._begin(deadline, scheduled, at_boundary=True)
        self._snapshotter.finish(at_once=True)
        if self._agent is not None:
            self._agent.sent()

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
            self._take(*due)

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
        # Validation, perhaps with other weights, or statistics that are gathered: no iteration starts with that.
        if not (self._state.model.training and torch.is_grad_enabled()):
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
            self._end_pass(in_step=False)
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
            self._number,
        )
        self._before_batch()
        with without_autograd():
            if (scheduled := agent.asked()) is not None:
                handle = snapshots.last
                if handle is None or handle.version != self._number or handle.skipped or handle.lost:
                    limit_s = scheduled.limit_ms / 1000
                    handle = snapshots.begin(self._number, 0.0, handle=self._requests.begun(), deadline=limit_s)
                agent.begun(handle, scheduled)
        self._send()
