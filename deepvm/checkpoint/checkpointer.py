"""Checkpoint a training job in three lines; see :class:`Checkpointer`."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import torch

from deepvm.checkpoint import arguments
from deepvm.checkpoint.boundaries import Boundaries
from deepvm.checkpoint.loading.resumable_loader import ResumableLoader
from deepvm.checkpoint.loggers import EventLogger
from deepvm.checkpoint.restore import restore_newest
from deepvm.checkpoint.snapshot.copying import LayerSlots
from deepvm.checkpoint.snapshot.pipeline import Pipeline
from deepvm.checkpoint.snapshot.snapshotter import WAIT_S, Snapshotter
from deepvm.checkpoint.tiers.base import Tier, without_secrets
from deepvm.checkpoint.training.hooks import Hook, callers, close_at_exit, stepper
from deepvm.checkpoint.training.ranks import Ranks
from deepvm.checkpoint.training.save_handle import Handle, Journal
from deepvm.checkpoint.training.state import Stateful, TrainingState
from deepvm.errors import CheckpointError, RequestError

log = logging.getLogger("deepvm.checkpoint")


class Checkpointer(Boundaries):
    """Saves the training state in the background and restores the newest undamaged checkpoint.

    Example::

        ck = Checkpointer(
            model=model, optimizer=optimizer, tiers="file:///mnt/ckpt", every=100, job="resnet"
        )
        for step in ck.steps(10_000):
            ...  # an iteration: forward, backward, optimizer steps, schedulers, averages

    Version v is the state after v iterations (ACUTE IV-D, Check-Mem). :meth:`steps` says where
    iterations end: all is read there, at one moment. Without it hooks count the optimizer's steps
    and have to infer that moment: random states and samplers are read as the step leaves them,
    everything else as the next forward in training mode finds it. What changes in between and may
    belong to either iteration is warned about.

    Copying starts between two iterations, and the next step of an optimizer waits until it has
    finished (``layerwise`` copies during backward). Parameters changed before that by anything but
    an optimizer are detected: that version is dropped, and from then on they are copied at once.
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
                GradScaler, samplers, other optimizers. Samplers and iterables are read right after
                the step, on each rank; everything else before the next forward, once for all ranks.
            tiers: where versions go: ``file:///folder``, ``tcp://host:port`` (several nodes share
                each version: ``tcp://host:port,host:port``; with ``?replicas=2`` behind it two of
                them have all of it), ``mpi://rank``, ``s3://``, ``gs://`` or
                ``az://bucket/prefix``, or a pathlib.Path; None for those of ``DEEPVM_TIERS``,
                separated by blanks, which ``deepvm run`` sets.
            every: steps (100), time ("30s", "10min"), or "auto": as often as pays off, for at most
                3 % of the time (see :class:`deepvm.core.preemption.savepolicy.Auto`); or another
                policy of 'deepvm simulate' by name, such as "exact" or "hazard", without that
                limit. None: the steps of ``DEEPVM_SAVE_EVERY``, which ``deepvm run`` sets from the
                job file, else only when :meth:`save` is called or the agent's save policy says so.
            job: name of this training job; default ``DEEPVM_JOB``, else a name from the script's
                path, the same after a restart, with a warning where tiers are shared.
            keep: how many of the newest versions a folder or bucket keeps; a memory node decides
                for itself. None: ``DEEPVM_KEEP``, else 2.
            keep_every: keep one more version per so many steps; 0 for none.
            slots: versions in flight at once; each takes as much memory as the state.
            journal: a file to which rank 0 appends a line of JSON per event; a function that gets
                each event, such as :class:`deepvm.checkpoint.loggers.TensorBoard`; or several of
                both.
            strategy: how a version leaves the training's memory (LightCheck III-A): ``C`` into host
                memory; ``G`` into a device copy first; ``D`` straight into a file of the first
                ``file://`` tier (one rank; for tmpfs or persistent memory, not for disks);
                ``layerwise``: each layer is updated during backward and copied at once, if the
                training meets the requirements of :mod:`deepvm.checkpoint.training.layerwise`.

        Raises:
            RequestError: an argument is invalid.
            CheckpointError: a tier cannot be reached, or refuses.
        """
        keep = arguments.keep_of(keep)
        every = arguments.every_of(every)
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
        arguments.mtbf_s(schedule)  # refuses what it cannot read before anything is opened
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
        pipeline = Pipeline(opened, slots)
        self._journal = Journal([] if ranks.rank else arguments.journals(journal), self.job)
        copies = arguments.choose_strategy(strategy, pipeline.tiers, self.job, ranks.world)
        layers = LayerSlots(copies, pipeline, state)
        snapshotter = Snapshotter(state, pipeline, ranks, layers, self._journal, self.job)
        # A forked child inherits neither the threads nor the right to stop them
        self._process = os.getpid()
        layerwise = model if strategy == "layerwise" else None
        super().__init__(state, steppers, pipeline, ranks, layers, snapshotter, schedule, layerwise)
        close_at_exit(self.close)

    @property
    def version(self) -> int:
        """Iterations done, including restored ones; without :meth:`steps`, optimizer steps."""
        return self._version

    @property
    def handles(self) -> tuple[Handle, ...]:
        """Handles of running and recent saves, oldest first; any thread may read it.

        A version is sent when the next forward or step begins; to stop training instead, call
        :meth:`save`.
        """
        return self._snapshotter.handles

    @property
    def metrics(self) -> dict[str, float]:
        """Versions saved, skipped and failed, bytes, and seconds for which training was stalled."""
        snapshots = self._snapshotter
        return {
            **self._pipeline.counts,
            "stall_s": snapshots.stall_s,
            "disagreements": snapshots.disagreements,
        }

    def steps(self, total: int | None = None) -> Iterator[int]:
        """The iterations that are left, by number; between two of them checkpoints are taken.

        It restores the newest version first, unless :meth:`restore_latest` was called. What is due
        is saved when the body of the loop has ended, and with it what the iteration did: all
        optimizers, ``extra``, random states and loaders at that moment. An iteration that is left
        early, by ``break`` or an exception, counts if an optimizer has stepped in it, but what
        waits for its end is not saved: call :meth:`save` with ``block`` after the loop. After
        :meth:`restore_latest` in the body the restored version's iteration comes next. What the
        loop has in local variables, such as a batch that was fetched ahead, is not in a version.

        Args:
            total: how many iterations there are, the restored ones included; None: until the loop
                is left.

        Raises:
            RequestError: ``total`` is no such number; with the strategy ``layerwise``, which saves
                during backward.
            CheckpointError: the checkpointer is closed; also what :meth:`restore_latest` raises.
        """
        if total is not None and (
            isinstance(total, bool) or not isinstance(total, int) or total < 0
        ):
            raise RequestError("total", total, "a whole number from 0, or None")
        if self._layers.updates is not None:
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
        the version. In an iteration of :meth:`steps` the version is taken when that iteration has
        ended; with ``block`` at once, after an optimizer has stepped, and again at the end of the
        iteration if something has changed by then.

        Args:
            block: wait until the version is remote (durable in a folder if the off-host tiers fail;
                local if all tiers are in memory); the emergency save.
            best: mark it as the best so far: kept next to the newest until a better one is saved.

        Returns:
            The handle; in an iteration of :meth:`steps` its number is 0 until the iteration has
            ended.

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
                if self._due is None:
                    self._asked = Handle(0)
                else:
                    self._asked = self._requests.handle
            self._asked.best |= best
            return self._asked
        if self._loop and not self._updated:
            allowed = (
                "save(), which saves when the iteration has ended, or save(block=True) after the"
                " loop"
            )
            raise RequestError(
                "save(block=True)", "within an iteration, before an optimizer has stepped", allowed
            )
        handle = self._save(WAIT_S, best=best)
        self._again = bool(self._loop)
        if block:
            handle.await_safe(all(tier.volatile for tier in self._pipeline.tiers), WAIT_S)
        return handle

    def request_save(self, deadline: float | None = None) -> Handle:
        """Save after the next optimizer step.

        May be called from any thread, signal handler, or single rank.

        With several ranks it may take a few tenths of a second until all of them know.

        Args:
            deadline: by when the version should be safe, by ``time.time()``: the machine is about
                to go. Older versions give way to it: those that wait, and where both do not fit
                that which is being sent; with several ranks all of them, unless all fit.

        Returns:
            The handle of the version that is saved; its number is 0 until the step has ended.
        """
        return self._requests.ask(deadline)

    def wait(self) -> None:
        """Wait for the copy in progress; call it before changing parameters by hand.

        Raises CheckpointError.
        """
        pending = self._snapshotter.pending
        if pending is not None and pending.slot is None:  # nothing of it is copied yet
            self._snapshotter.finish()
        self._wait()
        self._unseen.forget()  # the change is announced
        self._changed = True

    def restore_latest(self, *, allow_fresh: bool = False) -> int:
        """Restore the newest undamaged checkpoint of all tiers, after pending saves have ended.

        Args:
            allow_fresh: start at 0 if all existing versions are damaged; what is left of them is
                renamed, not overwritten.

        Returns:
            The version, 0 if there is none; the next optimizer step makes the one after it.

        Raises:
            CheckpointError: no tier answers, the version is of another model, versions exist but
                none is readable, or those in flight do not finish. Training never silently
                restarts. If the job was given no name: the version was saved with other settings of
                optimizer, schedulers or modules (with a name, a warning).
        """
        self._before_load()
        self._snapshotter.settle()
        if self._layers.updates is not None:
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
                CheckpointError("not saved: a version was restored before the end of the iteration")
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
        if self._agent is not None:
            self._agent.restored(self._version)
        self._between.started()
        return self._version

    def close(self, limit_s: float = WAIT_S) -> None:
        """Finish pending saves within ``limit_s`` and unhook from the optimizer; idempotent.

        Raises:
            CheckpointError: not finished in time; the newest version that was due is not safe, as
                no tier took it; or nothing was saved although ``every`` asks for it, because the
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
            if self._layers.updates is not None:
                self._layers.updates.close()
            if self._notice is not None:
                self._notice.close()
            ended = self._pipeline.close(limit_s)
            for handle in self.handles:
                handle.failed(
                    CheckpointError(f"version {handle.version}: no tier has promised that")
                )
            self._journal.closed(self.metrics)
            if self._agent is not None:
                self._agent.close()
        if not ended:
            raise CheckpointError(f"versions under way were not finished in {limit_s:.0f} s")
        self._check_newest()
        if not self._pipeline.counts["saved"] and self._schedule.saves:
            self._unseen.end()

    def _check_newest(self) -> None:
        """Raise CheckpointError if the newest due checkpoint is lost; a skipped one only warns."""
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
        """Job, version, tiers and schedule; without secrets."""
        every, strategy = self._given
        places = [without_secrets(tier.url) for tier in self._pipeline.tiers]
        closed = ", closed" if self._closed else ""
        facts = (
            f"job={self.job!r}, version={self._version}, tiers={places}, every={every!r},"
            f" strategy={strategy!r}"
        )
        return f"Checkpointer({facts}{closed})"

    def __enter__(self) -> Checkpointer:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it, without hiding the error that ends the training."""
        try:
            self.close()
        except CheckpointError as problem:
            if error is None:
                raise
            log.error("%s", problem)
