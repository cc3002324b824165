"""Checkpoint a training job in three lines; see :class:`Checkpointer`."""

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
from typing import Any

import torch

from deepvm.checkpoint import arguments
from deepvm.checkpoint.loading.resumable_loader import ResumableLoader, warn_of_incomplete
from deepvm.checkpoint.loggers import EventLogger, log
from deepvm.checkpoint.restore import restore_newest
from deepvm.checkpoint.snapshot.copying import LayerSlots, SnapshotCopy
from deepvm.checkpoint.snapshot.pipeline import Pipeline
from deepvm.checkpoint.snapshot.snapshotter import COMPARE_EVERY, WAIT_S, Snapshotter
from deepvm.checkpoint.tiers.base import Tier, without_secrets
from deepvm.checkpoint.training.agent_saves import AgentSaves, NoticeHook
from deepvm.checkpoint.training.between_steps import BetweenSteps
from deepvm.checkpoint.training.hooks import (
    Hook,
    callers,
    close_at_exit,
    is_nested_step,
    modules_called,
    stepper,
    without_autograd,
)
from deepvm.checkpoint.training.missing_steps import AccumulatedGradients, MissingStepDetector
from deepvm.checkpoint.training.ranks import Ranks, SaveRequests
from deepvm.checkpoint.training.save_handle import Handle, Journal
from deepvm.checkpoint.training.state import Stateful, TrainingState
from deepvm.core.preemption.savepolicy import SaveContext, SaveFacts
from deepvm.errors import CheckpointError, RequestError
from deepvm.io.agent_board import ScheduledSave
from deepvm.io.agent_link import SAVE_EVERY, AgentLink

_HURRY_S = 10.0  # With less time left than this, a checkpoint does not wait for a step
# With less time left than this, a save does not wait for the end of an evaluation
_EVALUATION_S = 30.0
# Steps that one batch may take; without a batch for longer, data are read in another way
_MAX_STEPS_PER_BATCH = 200


class Checkpointer:
    """Saves the training state in the background and restores the newest undamaged checkpoint.

    Example::

        ck = Checkpointer(
            model=model, optimizer=optimizer, tiers="file:///mnt/ckpt", every=100, job="resnet"
        )
        for step in ck.steps(10_000):
            ...  # an iteration: forward, backward, optimizer steps, schedulers, averages

    Version v is the state after v iterations (ACUTE IV-D, Check-Mem). :meth:`steps` says where
    iterations end: all is read there, at one moment. Without it hooks count the optimizer's steps:
    random states and samplers are read as the step leaves them, everything else as the next forward
    in training mode finds it. What may belong to either iteration is warned about.

    Copying starts between two iterations, and the next step of an optimizer waits until it has
    finished (``layerwise`` copies during backward). Parameters changed before that by anything but
    an optimizer are detected: that checkpoint is dropped, and from then on they are copied at once.
    Only :meth:`request_save` may be called from other threads than the one that trains.
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
            model: the model being trained, also inside DistributedDataParallel, or sharded by
                ``fully_shard`` (FSDP2) or tensor parallelism: a file has whole tensors, any number
                of ranks resumes from it.
            optimizer: any optimizer of its parameters; of several, the one that steps last in an
                iteration.
            extra: by name, other objects with ``state_dict`` and ``load_state_dict``: schedulers,
                GradScaler, samplers, other optimizers. Samplers and iterables are read on each
                rank, everything else once for all ranks.
            tiers: where checkpoints go: ``file:///folder``, ``tcp://host:port`` (several nodes
                share each checkpoint: ``tcp://host:port,host:port``; with ``?replicas=2`` behind it
                two of them have all of it), ``mpi://rank``, ``s3://``, ``gs://`` or
                ``az://bucket/prefix``, or a pathlib.Path; None for those of ``DEEPVM_TIERS``,
                separated by blanks, which ``deepvm run`` sets, or else for the folder
                ``checkpoints``, with ``every="auto"``.
            every: steps (100), time ("30s", "10min"), or "auto": as often as pays off, for at most
                3 % of the time; or another policy of 'deepvm simulate' by name, such as "exact" or
                "hazard", without that limit. None: the steps of ``DEEPVM_SAVE_EVERY``, which
                ``deepvm run`` sets from the job file, else only when :meth:`save` is called or the
                agent's save policy says so.
            job: name of this training job; default ``DEEPVM_JOB``, else a name from the script's
                path, the same after a restart, with a warning where tiers are shared.
            keep: how many of the newest checkpoints a folder or bucket keeps; a memory node decides
                for itself. None: ``DEEPVM_KEEP``, else 2.
            keep_every: keep one more version per so many steps; 0 for none.
            slots: checkpoints in flight at once; each takes as much memory as the state.
            journal: a file to which rank 0 appends a line of JSON per event; a function that gets
                each event, such as :class:`deepvm.checkpoint.loggers.TensorBoard`; or several.
            strategy: how a checkpoint leaves the training's memory (LightCheck III-A): ``C`` into
                host memory; ``G`` into a device copy first; ``D`` straight into a file of the first
                ``file://`` tier (one rank; for tmpfs or persistent memory, not for disks);
                ``layerwise``: each layer is updated during backward and copied at once (see
                :mod:`deepvm.checkpoint.training.layerwise` for what it requires).

        Raises:
            RequestError: an argument is invalid.
            CheckpointError: a tier cannot be reached, or refuses.
        """
        keep = arguments.keep_of(keep)
        if every is None:
            every = arguments.number_in(SAVE_EVERY, 1, "steps between checkpoints")
        if arguments.saves_here(tiers):
            every = every or "auto"
            log.warning("no tiers are given: checkpoints go to %s", arguments.FOLDER.absolute())
        places = arguments.check(model, tiers, slots, keep, keep_every, journal)
        self.job, self._named = arguments.name_of(job)
        ranks = Ranks()
        state = TrainingState(model, optimizer, extra)
        if strategy == "layerwise" and any(
            isinstance(v, ResumableLoader) for v in state.extra.values()
        ):
            raise RequestError("strategy", strategy, "C, G or D with a ResumableLoader")
        if strategy == "layerwise" and state.sharded:
            raise RequestError("strategy", strategy, "C or G with a sharded model")
        steppers = {name: stepper(optimizer, name) for name, optimizer in state.optimizers.items()}
        ranks.together(state.check)  # what cannot be saved is refused now, not at step 100
        schedule = arguments.parse_every(every)
        self._given = (every, strategy)
        self._mtbf_s = arguments.mtbf_s(schedule)  # before anything is opened: it may refuse
        fingerprint = state.fingerprint
        facts = ranks.broadcast((secrets.token_hex(8), self.job, fingerprint.settings))
        session, self.job, settings = facts
        fingerprint.adopt(settings)
        opened = arguments.open_all(places, session, keep, keep_every)
        if not (self._named or ranks.rank):
            arguments.warn_of_no_name([tier for tier in opened if tier.shared], self.job)
        self._epoch = arguments.epoch()
        if self._epoch is not None:
            for tier in opened:
                tier.begin(self.job, self._epoch)
        # A forked child inherits neither the threads nor the right to stop them
        self._process = os.getpid()
        self._state = state
        self._ranks = ranks
        self._schedule = schedule
        self._pipeline = Pipeline(opened, slots)
        self._journal = Journal([] if ranks.rank else arguments.as_list(journal), self.job)
        copies = arguments.choose_strategy(strategy, self._pipeline.tiers, self.job, ranks.world)
        self._layers = LayerSlots(copies, self._pipeline, state)
        self._snapshotter = Snapshotter(
            state, self._pipeline, ranks, self._layers, self._journal, self.job
        )
        self._gradients = AccumulatedGradients(steppers)
        self._stepper = steppers["optimizer"]
        self._since = time.monotonic()
        self._requests = SaveRequests(ranks)
        self._agent: AgentSaves | None = None
        link = AgentLink.find()
        if link:
            self._agent = AgentSaves(link)
        self._notice: NoticeHook | None = None
        if self._agent and ranks.world == 1 and strategy != "layerwise":
            self._notice = NoticeHook(
                state.model, self._stepper, self._agent, self._before_evaluation
            )
        self._version = 0
        self._loaders = [v for v in state.extra.values() if isinstance(v, ResumableLoader)]
        # With loaders, checkpoints are taken before a batch is fetched: nothing of the next
        # iteration has happened.
        self._between = BetweenSteps(state, looks=not self._loaders, switches=ranks.world == 1)
        # Deadline and agent request of a checkpoint that waits for the next batch or step
        self._due: tuple[float | None, ScheduledSave | None] | None = None
        self._due_at = 0
        self._warned_unfetched = False
        self._changed = False  # Since that checkpoint was due something else has changed the state
        self._loop: object | None = None  # The newest loop over :meth:`steps`; None outside of one
        self._restored = False
        self._consumer = 0
        self._warned_gradients = False
        self._updated = False  # An optimizer has stepped in this iteration of the loop
        # The handle that save() has returned in this iteration of the loop
        self._asked: Handle | None = None
        # Whether this iteration was saved before its end, and whether a restore rewound it
        self._again = self._rewound = False
        self._stepping = self._closed = False
        self._thread: threading.Thread | None = None
        if strategy == "layerwise":
            self._layers.divide(model, ranks.world, self._before_layer)
        self._hook_in({name: other for name, other in steppers.items() if name != "optimizer"})
        warn_of_incomplete(state.extra)
        unknown = state.unknown_parameters()
        if unknown:
            log.warning(
                "%d parameters that can be trained, %s for one, belong to no optimizer that is"
                " known here; further optimizers go into extra",
                len(unknown),
                unknown[0],
            )
        self._between.started()
        close_at_exit(self.close)

    def _hook_in(self, others: Mapping[str, torch.optim.Optimizer]) -> None:
        first = self._stepper
        model = self._state.model
        self._unseen = MissingStepDetector(
            first, others, self._schedule.saves and not self._ranks.rank
        )
        self._hooks: list[Any] = [
            first.register_step_pre_hook(Hook(self._before_step, step=True)),
            first.register_step_post_hook(Hook(self._after_step, step=True)),
            first.register_load_state_dict_pre_hook(Hook(self._before_load)),
            model.register_load_state_dict_pre_hook(Hook(self._before_load)),
        ]
        for module in modules_called(model):
            # First: fully_shard's own hook puts whole parameters into the model.
            hook = Hook(self._before_forward)
            self._hooks.append(module.register_forward_pre_hook(hook, prepend=self._state.sharded))
        for name, other in others.items():
            before = partial(self._before_other_step, name)
            after = partial(self._after_other_step, name)
            self._hooks += [
                other.register_step_pre_hook(Hook(before, step=True)),
                other.register_step_post_hook(Hook(after, step=True)),
                other.register_load_state_dict_pre_hook(Hook(self._before_change)),
            ]
        for loader in self._loaders:
            loader.before_batch = Hook(self._before_batch)

    @property
    def version(self) -> int:
        """Iterations done, including restored ones; without :meth:`steps`, optimizer steps."""
        return self._version

    @property
    def handles(self) -> tuple[Handle, ...]:
        """Handles of running and recent saves, oldest first; any thread may read it.

        A checkpoint is sent when the next forward or step starts; to stop training instead, call
        :meth:`save`.
        """
        return self._snapshotter.handles

    @property
    def metrics(self) -> dict[str, float]:
        """Checkpoints saved, skipped and failed, bytes, and seconds of stalled training."""
        snapshots = self._snapshotter
        return {
            **self._pipeline.counts,
            "stall_s": snapshots.stall_s,
            "disagreements": snapshots.disagreements,
        }

    def steps(self, total: int | None = None) -> Iterator[int]:
        """The iterations that are left, by number; between two of them checkpoints are taken.

        It restores the newest checkpoint first, unless :meth:`restore_latest` was called. What is
        due is saved when the body of the loop has ended: all optimizers, ``extra``, random states
        and loaders at that moment, but no local variables of the loop. An iteration that is left
        early, by ``break`` or an exception, counts if an optimizer has stepped in it, but what
        waits for its end is not saved: call :meth:`save` with ``block`` after the loop. The last of
        ``total`` iterations is saved unless only :meth:`save` saves. After :meth:`restore_latest`
        in the body the iteration after the restored checkpoint comes next.

        Args:
            total: iterations, restored ones included; None: until the loop is left.

        Raises:
            RequestError: ``total`` is no such number, or the strategy is ``layerwise``.
            CheckpointError: the checkpointer is closed; also what :meth:`restore_latest` raises.
        """
        if total is not None:
            arguments.check_whole("total", total, 0, ", or None")
        if self._layers.updates:
            raise RequestError("steps()", 'strategy="layerwise"', "C, G or D")
        if self._closed:
            raise CheckpointError("the checkpointer is closed")
        if self._loop and any(id(frame) == self._consumer for frame in callers()):
            raise RequestError(
                "steps()", "a loop within another one", "one loop over steps() at a time"
            )
        if not self._restored:
            self.restore_latest()
        return self._iterate(total)

    def save(self, block: bool = False, best: bool = False) -> Handle:
        """Save the current state, even if the schedule does not ask for it; collective.

        It waits for a free slot, and until the state is copied: what changes afterwards is not in
        the checkpoint. In an iteration of :meth:`steps` the checkpoint is taken when that iteration
        has ended, and the handle's number is 0 until then; with ``block`` at once, after an
        optimizer has stepped, and again at the end of the iteration if something has changed by
        then.

        Args:
            block: wait until the checkpoint is remote (durable in a folder if the off-host tiers
                fail; local if all tiers are in memory); the emergency save.
            best: mark it as the best so far: kept next to the newest until a better one is saved.

        Raises:
            CheckpointError: it was not copied, as no slot was free in time, or the state cannot be
                saved; with ``block``, no tier took it; or the checkpointer is closed.
            RequestError: called during ``optimizer.step``, from another thread than the one that
                trains, or (layerwise) between backward and step; use :meth:`request_save` there.
                With ``block``: too early in an iteration.
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
            raise RequestError(
                "save()", "between backward and step, when some layers are a step ahead", later
            )
        if self._loop and not block:
            if self._asked is None:
                self._asked = self._requests.handle
                if self._due is None:
                    self._asked = Handle(0)
            self._asked.best |= best
            return self._asked
        if self._loop and not self._updated:
            raise RequestError(
                "save(block=True)",
                "within an iteration, before an optimizer has stepped",
                "save(), which saves when the iteration has ended, or save(block=True) after the"
                " loop",
            )
        handle = self._save(best=best)
        self._again = bool(self._loop)
        if block:
            handle.await_safe(all(tier.volatile for tier in self._pipeline.tiers), WAIT_S)
        return handle

    def request_save(self, deadline: float | None = None) -> Handle:
        """Save after the next optimizer step; from any thread, signal handler, or single rank.

        The handle's number is 0 until the step has ended. With several ranks it may take a few
        tenths of a second until all of them know.

        Args:
            deadline: by when the checkpoint should be safe, by ``time.time()``: the machine is
                about to go. Older checkpoints give way to it: those that wait, and where both do
                not fit the one that is being sent; with several ranks all of them, unless all fit.
        """
        return self._requests.ask(deadline)

    def wait(self) -> None:
        """Wait for the copy in progress, before parameters are changed by hand.

        Raises CheckpointError.
        """
        pending = self._snapshotter.pending
        if pending is not None and pending.slot is None:  # nothing of it is copied yet
            self._snapshotter.finish()
        self._wait()
        self._unseen.forget()  # the change is announced
        self._changed = True

    def restore_latest(self, *, allow_fresh: bool = False) -> int:
        """Restore the newest undamaged checkpoint of all tiers, once pending saves have ended.

        Returns its number, 0 if there is none; the next optimizer step makes the one after it.

        Args:
            allow_fresh: start at 0 if all existing checkpoints are damaged; what is left of them is
                renamed, not overwritten.

        Raises:
            CheckpointError: no tier answers, the checkpoint is of another model, checkpoints exist
                but none is readable, or those in flight do not finish. Training never silently
                restarts. If the job was given no name: the checkpoint was saved with other settings
                of optimizer, schedulers or modules (with a name, a warning).
        """
        self._before_load()
        self._snapshotter.settle()
        if self._layers.updates:
            self._layers.updates.reset()
        self._version = restore_newest(
            self._state,
            self._pipeline.tiers,
            self.job,
            self._ranks,
            named=self._named,
            allow_fresh=allow_fresh,
            epoch=self._epoch,
        )
        self._stepping = False
        self._due = None
        if self._asked is not None:
            self._asked.failed(
                CheckpointError(
                    "not saved: a checkpoint was restored before the end of the iteration"
                )
            )
        self._updated = False
        self._asked = None
        self._again = False
        self._restored = True
        self._rewound = bool(self._loop)
        self._unseen.reset()
        self._snapshotter.forget(self._version)
        self._requests.reset(self._version)
        self._journal("restored", version=self._version)
        if self._agent:
            self._agent.restored(self._version)
        self._between.started()
        return self._version

    def close(self, limit_s: float = WAIT_S) -> None:
        """Finish pending saves within ``limit_s`` and unhook from the optimizer; idempotent.

        Raises:
            CheckpointError: not finished in time; the newest checkpoint that was due is not safe,
                as no tier took it; or nothing was saved although ``every`` asks for it, because the
                training's steps were never seen.
        """
        if self._closed or os.getpid() != self._process:
            return
        try:
            if self._loop:
                self._end_loop()
            # Of several ranks, one may close alone
            if self._ranks.world == 1 and not self._changed:
                self._before_batch()
            self._give_up_due()
            self._unseen.look()
            self._snapshotter.finish()
            self._closed = True
        finally:
            self._unseen.close()
            self._closed = True
            for hook in self._hooks:
                hook.remove()
            for loader in self._loaders:
                loader.before_batch = Hook()
            if self._layers.updates:
                self._layers.updates.close()
            if self._notice:
                self._notice.close()
            ended = self._pipeline.close(limit_s)
            for handle in self.handles:
                handle.failed(
                    CheckpointError(f"version {handle.version}: no tier has promised that")
                )
            self._journal.closed(self.metrics)
            if self._agent:
                self._agent.close()
        if not ended:
            raise CheckpointError(f"checkpoints under way were not finished in {limit_s:.0f} s")
        self._check_newest()
        if not self._pipeline.counts["saved"] and self._schedule.saves:
            self._unseen.end()

    def _check_newest(self) -> None:
        last = self._snapshotter.last_due
        if last is None or not last.lost:
            return
        safe = [h.version for h in self.handles if h.local_done.done() and not h.lost]
        newest = "none of this run"
        if safe:
            newest = f"version {max(safe)}"
        error = last.local_done.exception()
        text = (
            f"version {last.version} was due and is not safe: {error}; the newest that is safe:"
            f" {newest}"
        )
        if not last.skipped:
            raise CheckpointError(text)
        log.warning("%s; call save(block=True) at the end", text)

    def __repr__(self) -> str:
        every, strategy = self._given
        places = [without_secrets(tier.url) for tier in self._pipeline.tiers]
        closed = ", closed" if self._closed else ""
        facts = (
            f"job={self.job!r}, version={self._version}, tiers={places}, every={every!r},"
            f" strategy={strategy!r}"
        )
        return f"Checkpointer({facts}{closed})"

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except CheckpointError as problem:
            if error is None:
                raise
            log.error("%s", problem)

    @property
    def _number(self) -> int:
        return self._version + self._updated

    def _iterate(self, total: int | None) -> Iterator[int]:
        if self._loop:  # an exception has left it, and something holds on to that
            self._end_loop()
        self._snapshotter.finish()
        self._between.forget()
        self._gradients.reset()
        loop = self._loop = object()
        if total and self._version >= total:
            log.warning("nothing to train: all %d iterations are already done", total)
        try:
            while total is None or self._version < total:
                self._consumer = id(sys._getframe(1))
                yield self._version
                if self._closed:
                    raise CheckpointError("ck.steps() cannot continue: the checkpointer is closed")
                if self._loop is not loop:
                    raise RequestError(
                        "steps()", "a loop that another one has replaced", "one loop at a time"
                    )
                if self._rewound:
                    self._rewound = False
                    self._gradients.reset()
                else:
                    self._end_iteration()
            last = self._snapshotter.last_due
            skipped = last is not None and last.skipped
            saved = not skipped and self._due is None and self._asked is None
            if self._schedule.saves or self._agent:
                saved = saved and self._snapshotter.last_step == self._version
            if not self._ranks.minimum([saved])[0]:  # some ranks may have skipped it
                self._save_asked()
        finally:
            if self._loop is loop:
                self._end_loop()

    def _end_iteration(self) -> None:
        self._gradients.end_iteration()
        self._version += 1
        self._updated = False
        self._stepped()
        if self._again:
            self._again = False
            self._save(best=False)
        if self._asked is not None and not self._must_wait(None):
            self._save_asked()
        self._take_if_due()

    def _save_asked(self) -> None:
        asked = self._asked
        self._asked = None
        self._save(best=asked is not None and asked.best, handle=asked)

    def _end_loop(self) -> None:
        """The loop has ended, perhaps inside an iteration: it counts if it changed parameters.

        What waits for its end is not saved: other ranks may not come here.
        """
        self._loop = None
        self._version = self._number
        self._updated = False
        self._rewound = self._again = False
        handles = [self._asked]
        if self._due:
            handles.append(self._requests.take_handle())
        self._asked = self._due = None
        problem = f"version {self._version} is not saved: its iteration was left before the end"
        if any(handles):
            log.error("%s; call save(block=True) after the loop", problem)
        for handle in filter(None, handles):
            handle.version = self._version
            handle.failed(CheckpointError(problem))
            self._snapshotter.last_due = handle

    def _save(self, *, best: bool, handle: Handle | None = None) -> Handle:
        unseen = self._unseen.look()
        snapshots = self._snapshotter
        version = self._number
        with without_autograd():
            snapshots.finish()
            (same,) = self._ranks.minimum(
                [snapshots.same(version) and not unseen and handle is None]
            )
            last = snapshots.last
            if same and last is not None and (last.best or not best):
                return last
            if self._due:  # this is the checkpoint that was due
                self._due, request = None, self._requests.take_handle()
                handle = handle or request
            self._warn_of_gradients()
            handle = snapshots.begin(version, WAIT_S, best=best, handle=handle, at_boundary=True)
            if self._agent:
                self._agent.started(handle, None)
            snapshots.finish(at_once=True)
            snapshots.gate()
        copied = handle.snapshot_done
        if copied.done() and (error := copied.exception()) is not None:
            raise error
        return handle

    def _wait(self) -> None:
        self._passes()
        self._snapshotter.gate(*self._layers.copies.values())
        self._snapshotter.bytes.forget()

    def _before_change(self) -> None:  # by something other than a step
        self._snapshotter.finish()
        self._wait()

    def _before_load(self) -> None:
        self._before_change()
        self._unseen.forget()
        self._changed = True

    def _before_step(self) -> None:
        if not is_nested_step(self._stepper):
            # After a step that raised, the state is unknown until the next step.
            self._stepping = True
            self._thread = threading.current_thread()
        if self._layers.updates is None:  # else each layer has waited for its own copy
            self._before_layer(())

    def _before_other_step(self, name: str) -> None:
        if not self._loop:
            self._between.other_stepped(name)
        self._end_pass(in_step=True)
        self._wait()

    def _after_other_step(self, name: str) -> None:
        self._unseen.other_stepped(name)
        if self._loop:
            self._updated = True
            self._gradients.stepped(name)

    def _end_pass(self, in_step: bool) -> None:
        snapshots = self._snapshotter
        if self._loop:
            snapshots.finish(in_step)
            return
        with without_autograd():
            self._between.first_forward(in_step)
            pending = snapshots.pending is not None
            snapshots.finish(in_step)
            if pending:
                self._between.next_forward(set() if in_step else snapshots.changed)

    def _before_layer(self, copies: Sequence[SnapshotCopy]) -> None:
        self._end_pass(in_step=True)
        self._snapshotter.gate(*copies)
        if self._agent:
            self._agent.sent()

    def _after_step(self) -> None:
        if is_nested_step(self._stepper):
            return
        self._stepping = False
        if self._loop:
            self._updated = True
            self._gradients.stepped("optimizer")
            if self._notice:
                self._notice.stepped()
            return
        self._version += 1
        self._between.main_stepped()
        self._stepped()
        self._take_if_due()

    def _stepped(self) -> None:
        self._unseen.stepped()
        self._layers.turn()
        if self._notice:
            self._notice.stepped()

    def _take_if_due(self) -> None:
        snapshots = self._snapshotter
        scheduled = None
        if self._agent:
            scheduled = self._agent.stepped(self._version, self._requests.ask)
        waiting = self._due if self._loop else None
        if waiting is not None:
            self._due = None
            scheduled = scheduled or waiting[1]
        due = scheduled is not None or waiting is not None or self._schedule.due(self._context())
        if self._ranks.world == 1 or self._schedule.fixed_steps or not self._schedule.saves:
            due = self._requests.due(self._version) or due or self._layers.filled is not None
        else:  # only one rank's clock counts
            due = self._requests.due(self._version, due)
        with without_autograd():
            if due:
                deadline = (
                    self._requests.deadline if self._requests.urgent else waiting and waiting[0]
                )
                if scheduled is not None and scheduled.reason.holds:
                    deadline = scheduled.limit_ms / 1000
                if self._loop and self._must_wait(deadline):
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

    def _must_wait(self, deadline: float | None) -> bool:
        """Whether a due checkpoint waits until accumulated gradients are used; collective."""
        unused = bool(self._gradients.unused()) and not self._gradients.takes_too_long()
        urgent = deadline is not None and deadline - time.time() < max(
            _HURRY_S, 3 * self._snapshotter.usual_s
        )
        all_used, none_urgent = self._ranks.minimum([not unused, not urgent])
        return bool(none_urgent and not all_used)

    def _warn_of_gradients(self) -> None:
        unused = self._gradients.unused() if self._loop else ""
        if unused and not self._warned_gradients:
            self._warned_gradients = True
            log.warning(
                "version %d is saved without the gradients of %s that were added up since its last"
                " step: put all batches of a step into one iteration",
                self._number,
                unused,
            )

    def _begin(
        self, deadline: float | None, scheduled: ScheduledSave | None, at_boundary: bool = False
    ) -> None:
        handle = self._requests.take_handle()
        self._snapshotter.begin(
            self._version, 0.0, handle=handle, deadline=deadline, at_boundary=at_boundary
        )
        if self._agent:
            self._agent.started(handle, scheduled)

    def _take(self, deadline: float | None, scheduled: ScheduledSave | None) -> None:
        self._warn_of_gradients()
        self._begin(deadline, scheduled, at_boundary=True)
        self._snapshotter.finish(at_once=True)
        if self._agent:
            self._agent.sent()

    def _await_batch(self, deadline: float | None, scheduled: ScheduledSave | None) -> None:
        self._changed = False
        if self._due is None:
            self._due_at = self._version
        elif self._version - self._due_at >= _MAX_STEPS_PER_BATCH and not self._warned_unfetched:
            self._warned_unfetched = True
            log.warning(
                "nothing is saved: version %d was due, and no batch was fetched through the"
                " ResumableLoader in extra since then; iterate over it, not over the loader that it"
                " was given",
                self._due_at,
            )
        self._due = deadline, scheduled

    def _before_batch(self) -> None:
        """A loader is about to fetch a batch or start a pass: no next iteration has started."""
        if self._loop:  # it says itself where iterations end
            return
        due = self._due
        self._due = None
        if due is not None and not (self._stepping or self._closed):
            with without_autograd():
                self._take(*due)

    def _give_up_due(self) -> None:
        due = self._due
        self._due = None
        if due is None:
            return
        reason = "several ranks end without a save() by all of them"
        if self._changed:
            reason = "the state was changed since"
        log.warning("version %d was due and is not saved: %s", self._version, reason)
        error = CheckpointError(f"version {self._version} was not saved: {reason}")
        self._requests.take_handle().failed(error)

    def _look_ahead(self) -> None:
        """Layerwise: take a slot for the next due checkpoint before backward starts; collective."""
        snapshots = self._snapshotter
        updates = self._layers.updates
        layout = snapshots.layout
        if updates is None or updates.ahead or not (layout and layout.image.lasting):
            return
        # Replicas are compared while all of the state is unchanged; and only steps are known to all
        # ranks beforehand.
        if self._ranks.world > 1 and (
            not snapshots.taken % COMPARE_EVERY or not self._schedule.fixed_steps
        ):
            return
        if self._schedule.due(replace(self._context(), step=self._version + 1)):
            self._layers.prepare(snapshots.bytes.storages, self._ranks)

    def _context(self) -> SaveContext:
        snapshots = self._snapshotter
        last = snapshots.last
        busy = stall = 0.0
        if last is not None:
            busy = max(last.times.values(), default=0.0)
            stall = max(last.stall_s - snapshots.layout_s, 0.0)  # a layout is made once
        now = time.monotonic()
        mtbf = self._mtbf_s
        # No notices reach the job, so policies insure. Before there are data, the Lomax scale is
        # the mean lifetime.
        facts = SaveFacts(
            save_s=stall, backup_s=busy, mttp_s=mtbf, scale_s=mtbf, age_s=now - self._since
        )
        return SaveContext(self._version, now, snapshots.last_step, snapshots.last_s, facts)

    def _before_forward(self) -> None:
        if self._agent:
            self._agent.forwarded()
        # Validation, perhaps with other weights, or statistics that are gathered: no iteration
        # starts with that.
        if not torch.is_grad_enabled():
            self._before_evaluation()
            return
        self._passes()
        if not self._state.model.training:
            return
        self._unseen.forwarded()
        self._send()
        if self._ranks.world == 1:
            with without_autograd():
                self._look_ahead()

    def _send(self) -> None:
        try:
            self._end_pass(in_step=False)
        except Exception as error:
            # In a transformation, or with tensors that are none: before the next step then
            log.debug("version %d is sent later: %s", self._version, error)
        if self._agent:
            self._agent.sent()

    def _passes(self) -> None:
        if self._notice:
            self._notice.forget()

    def _before_evaluation(self) -> None:
        """Save what the last step left, if it would be lost before the next one."""
        notice = self._notice
        snapshots = self._snapshotter
        if notice is None:
            return
        agent = notice.agent
        left_s = agent.left_s
        if self._due is not None and self._due[0] is not None:
            left_s = min(left_s, self._due[0] - time.time())
        if left_s == math.inf or left_s > max(_EVALUATION_S, 3 * snapshots.usual_s):
            return
        if self._stepping or not notice.stands():
            return
        log.warning(
            "version %d is saved during an evaluation: what comes after that, such as a scheduler's"
            " step, is not in it",
            self._number,
        )
        self._before_batch()
        with without_autograd():
            if (scheduled := agent.asked()) is not None:
                handle = snapshots.last
                if not (handle and handle.version == self._number) or handle.skipped or handle.lost:
                    limit_s = scheduled.limit_ms / 1000
                    handle = snapshots.begin(
                        self._number, 0.0, handle=self._requests.take_handle(), deadline=limit_s
                    )
                agent.started(handle, scheduled)
        self._send()
