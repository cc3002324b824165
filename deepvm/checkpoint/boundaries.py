"""Where iterations end, as ``steps()``, hooks or a loader see it, and what is saved there."""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from deepvm.checkpoint import arguments
from deepvm.checkpoint.loading.resumable_loader import ResumableLoader
from deepvm.checkpoint.loading.streams import warn_of_incomplete
from deepvm.checkpoint.snapshot.copying import LayerSlots, SnapshotCopy
from deepvm.checkpoint.snapshot.pipeline import Pipeline
from deepvm.checkpoint.snapshot.snapshotter import COMPARE_EVERY, WAIT_S, Snapshotter
from deepvm.checkpoint.training.accumulation import AccumulatedGradients
from deepvm.checkpoint.training.agent_saves import AgentSaves
from deepvm.checkpoint.training.between_steps import BetweenSteps
from deepvm.checkpoint.training.eval_mode import EvalModeTracker
from deepvm.checkpoint.training.hooks import Hook, is_nested_step, modules_called, without_autograd
from deepvm.checkpoint.training.missing_steps import MissingStepDetector
from deepvm.checkpoint.training.notice_hook import NoticeHook
from deepvm.checkpoint.training.ranks import Ranks, SaveRequests
from deepvm.checkpoint.training.save_handle import Handle
from deepvm.checkpoint.training.state import TrainingState
from deepvm.core.preemption.savepolicy import SaveContext, SaveFacts, SavePolicy
from deepvm.errors import CheckpointError, RequestError
from deepvm.io.agent_board import ScheduledSave

_HURRY_S = 10.0
"""With less time left than this, a version does not wait for a step."""
_EVALUATION_S = 30.0
"""With less time left than this, a save does not wait for the end of an evaluation."""
_MAX_STEPS_PER_BATCH = 200
"""Steps that one batch may take; without a batch for longer, data are read in another way."""

log = logging.getLogger("deepvm.checkpoint")


class Boundaries:
    """The part of :class:`~deepvm.checkpoint.checkpointer.Checkpointer` that runs in training."""

    def __init__(
        self,
        state: TrainingState,
        steppers: dict[str, torch.optim.Optimizer],
        pipeline: Pipeline,
        ranks: Ranks,
        layers: LayerSlots,
        snapshotter: Snapshotter,
        schedule: SavePolicy,
        layerwise: torch.nn.Module | None,
    ) -> None:
        """Hook into model, optimizers and loaders.

        Args:
            state: what is saved.
            steppers: the optimizers whose steps can be hooked, by argument; ``optimizer`` is the
                one that is counted.
            pipeline: where versions go.
            ranks: those that save them together.
            layers: slots of a layerwise training.
            snapshotter: makes versions.
            schedule: when one is due.
            layerwise: the model, if its layers are updated and copied during backward.
        """
        self._state = state
        self._pipeline = pipeline
        self._ranks = ranks
        self._layers = layers
        self._snapshotter = snapshotter
        self._schedule = schedule
        all_steppers = steppers
        steppers = dict(steppers)
        first = self._stepper = steppers.pop("optimizer")
        self._mtbf_s = arguments.mtbf_s(schedule)
        self._since = time.monotonic()
        self._requests = SaveRequests(self._ranks)
        self._agent = AgentSaves.find()
        single = self._agent is not None and self._ranks.world == 1 and layerwise is None
        self._evaluations = EvalModeTracker(first) if single else None
        self._notice: NoticeHook | None = None
        if self._agent is not None and single:
            agent = self._agent
            self._notice = NoticeHook(
                self._state.model, lambda: agent.left_s, self._before_evaluation
            )
        self._version = 0
        self._loaders = [
            value for value in self._state.extra.values() if isinstance(value, ResumableLoader)
        ]
        # With loaders, versions are taken before a batch is fetched: nothing of the next iteration
        # has happened.
        self._between = BetweenSteps(
            self._state, looks=not self._loaders, switches=self._ranks.world == 1
        )
        self._due: tuple[float | None, ScheduledSave | None] | None = None
        """Deadline and agent request of a checkpoint that waits for the next batch or step."""
        self._due_at = 0
        self._warned_unfetched = False
        self._changed = False
        """Since that version was due something else has changed the state."""
        self._loop = 0
        """Number of the newest loop over :meth:`steps`; 0 outside of one."""
        self._loops = 0
        self._restored = False
        self._consumer = 0
        self._gradients = AccumulatedGradients(all_steppers)
        self._warned_gradients = False
        self._updated = False
        """An optimizer has stepped in this iteration of the loop."""
        self._asked: Handle | None = None
        """The handle that save() has returned in this iteration of the loop."""
        self._again = self._rewound = False
        """Whether this iteration was saved before its end, and whether a restore rewound it."""
        self._stepping = self._closed = False
        self._thread: threading.Thread | None = None
        if layerwise is not None:
            self._layers.divide(layerwise, self._ranks.world, self._before_layer)
        self._unseen = MissingStepDetector(
            first, steppers, self._schedule.saves and not self._ranks.rank
        )
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
            self._hooks.append(
                other.register_step_post_hook(Hook(partial(self._note_step, name), step=True))
            )
            self._hooks.append(other.register_load_state_dict_pre_hook(Hook(self._before_change)))
        for loader in self._loaders:
            loader.before_batch = Hook(self._before_batch)
        warn_of_incomplete(state.extra)
        unknown = self._state.unknown_parameters()
        if unknown:
            log.warning(
                "%d parameters that can be trained, %s for one, belong to no optimizer that is"
                " known here; further optimizers go into extra",
                len(unknown),
                unknown[0],
            )
        self._between.started()

    @property
    def _number(self) -> int:
        """The step number of the state now; an iteration counts once its optimizer has stepped."""
        return self._version + self._updated

    def _iterate(self, total: int | None) -> Iterator[int]:
        if self._loop:  # an exception has left it, and something holds on to that
            self._end_loop()
        self._snapshotter.finish()
        self._between.forget()
        self._gradients.reset()
        self._loops += 1
        loop = self._loop = self._loops
        try:
            while total is None or self._version < total:
                self._consumer = id(sys._getframe(1))
                yield self._version
                if self._closed:
                    raise CheckpointError("ck.steps() cannot continue: the checkpointer is closed")
                if self._loop != loop:
                    raise RequestError(
                        "steps()", "a loop that another one has replaced", "one loop at a time"
                    )
                if self._rewound:
                    self._rewound = False
                    self._gradients.reset()
                else:
                    self._end_iteration()
            last = self._snapshotter.last_due
            asked = self._asked
            missing = (
                (last is not None and last.skipped) or self._due is not None or asked is not None
            )
            if self._ranks.minimum([-missing])[0]:  # some ranks may have skipped it
                self._asked = None
                self._save(WAIT_S, best=asked is not None and asked.best, handle=asked)
        finally:
            if self._loop == loop:
                self._end_loop()

    def _end_iteration(self) -> None:
        """All that the iteration does is done, and nothing of the next one."""
        self._gradients.end_iteration()
        self._version = self._version + 1
        self._updated = False
        self._stepped()
        again = self._again
        self._again = False
        if again:
            self._save(WAIT_S, best=False)
        if self._asked is not None and not self._must_wait(None):
            asked = self._asked
            self._asked = None
            self._save(WAIT_S, best=asked.best, handle=asked)
        self._take_if_due()

    def _end_loop(self) -> None:
        """The loop has ended, perhaps inside an iteration: it counts if it changed parameters.

        What waits for the end of an iteration is not saved: an exception may have left it anywhere,
        and other ranks may not come here.
        """
        self._loop = 0
        self._version = self._number
        self._updated = False
        self._rewound = self._again = False
        asked = self._asked
        self._asked = None
        if asked is None and self._due is None:
            return
        problem = f"version {self._version} is not saved: its iteration was left before the end"
        log.error("%s; call save(block=True) after the loop", problem)
        handles = [asked] if asked is not None else []
        if self._due is not None:
            self._due = None
            handles.append(self._requests.take_handle())
        for handle in handles:
            handle.version = self._version
            handle.failed(CheckpointError(problem))
            self._snapshotter.last_due = handle

    def _save(self, patience_s: float, *, best: bool, handle: Handle | None = None) -> Handle:
        """Save the current state if it is not saved, and copy it before returning.

        Raises CheckpointError.
        """
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
            if self._due is not None:  # this is the version that was due
                self._due, request = None, self._requests.take_handle()
                handle = handle or request
            self._warn_of_gradients()
            handle = snapshots.begin(
                version, patience_s, best=best, handle=handle, at_boundary=True
            )
            self._notify_agent(handle, None)
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
            self._stepping = True
            self._thread = threading.current_thread()
        if self._layers.updates is None:  # else each layer has waited for its own copy
            self._before_layer(())

    def _before_other_step(self, name: str) -> None:
        """An optimizer in ``extra`` steps, in the same iteration as the first one."""
        if not self._loop:
            self._between.other_stepped(name)
        self._end_pass(in_step=True)
        self._wait()

    def _note_step(self, name: str) -> None:
        """An optimizer has stepped in an iteration of the loop."""
        if self._loop:
            self._updated = True
            self._gradients.stepped(name)

    def _end_pass(self, in_step: bool) -> None:
        """Copy what follows the step of a due checkpoint and send it, before it changes again."""
        snapshots = self._snapshotter
        if self._loop:
            snapshots.finish(in_step)
            return
        with without_autograd():
            self._between.first_forward(in_step)
        pending = snapshots.pending is not None
        snapshots.finish(in_step)
        if pending:
            with without_autograd():
                self._between.next_forward(set() if in_step else snapshots.changed)

    def _before_layer(self, copies: Sequence[SnapshotCopy]) -> None:
        self._end_pass(in_step=True)
        self._snapshotter.gate(*copies)
        if self._agent is not None:
            self._agent.sent()

    def _after_step(self) -> None:
        if is_nested_step(self._stepper):
            return
        self._stepping = False
        if self._loop:
            self._note_step("optimizer")
            if self._evaluations is not None:
                self._evaluations.stepped()
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
        """Start to save the current step if the schedule, a request or the agent asks for it."""
        snapshots = self._snapshotter
        if self._agent is None:
            scheduled = None
        else:
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
        handle = self._snapshotter.begin(
            self._version, 0.0, handle=handle, deadline=deadline, at_boundary=at_boundary
        )
        self._notify_agent(handle, scheduled)

    def _take(self, deadline: float | None, scheduled: ScheduledSave | None) -> None:
        """Save the state between two iterations."""
        self._warn_of_gradients()
        self._begin(deadline, scheduled, at_boundary=True)
        self._snapshotter.finish(at_once=True)
        if self._agent is not None:
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
        if due is None or self._stepping or self._closed:
            return
        with without_autograd():
            self._take(*due)

    def _give_up_due(self) -> None:
        """Training is over: fail the request of a checkpoint that still waits for a batch."""
        due = self._due
        self._due = None
        if due is None:
            return
        reason = "several ranks end without a save() by all of them"
        if self._changed:
            reason = "the state was changed since"
        log.warning("version %d was due and is not saved: %s", self._version, reason)
        self._requests.take_handle().failed(
            CheckpointError(f"version {self._version} was not saved: {reason}")
        )

    def _notify_agent(self, handle: Handle, scheduled: ScheduledSave | None) -> None:
        if self._agent is not None:
            self._agent.started(handle, scheduled)

    def _look_ahead(self) -> None:
        """Layerwise: take a slot for the next due checkpoint before backward starts; collective."""
        snapshots = self._snapshotter
        updates = self._layers.updates
        if (
            updates is None
            or updates.ahead
            or not (snapshots.layout and snapshots.layout.image.lasting)
        ):
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
        """The facts that a policy may use."""
        snapshots = self._snapshotter
        last = self._snapshotter.last
        busy = 0.0
        if last is not None:
            busy = max(last.times.values(), default=0.0)
        # A layout is made once
        stall = 0.0
        if last is not None:
            stall = max(last.stall_s - snapshots.layout_s, 0.0)
        now = time.monotonic()
        mtbf = self._mtbf_s
        # No notices reach the job, so policies insure. Before there are data, the Lomax scale is
        # the mean lifetime.
        facts = SaveFacts(
            save_s=stall, backup_s=busy, mttp_s=mtbf, scale_s=mtbf, age_s=now - self._since
        )
        return SaveContext(self._version, now, snapshots.last_step, snapshots.last_s, facts)

    def _before_forward(self) -> None:
        if self._agent is not None:
            self._agent.forwarded()
        # Validation, perhaps with other weights, or statistics that are gathered: no iteration
        # starts with that.
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
        except Exception as error:
            # In a transformation, or with tensors that are none: before the next step then
            log.debug("version %d is sent later: %s", self._version, error)
        if self._agent is not None:
            self._agent.sent()

    def _passes(self) -> None:
        """The next step may start."""
        if self._evaluations is not None:
            self._evaluations.forget()

    def _before_evaluation(self) -> None:
        """Save what the last step left, if it would be lost before the next one."""
        agent = self._agent
        evaluations = self._evaluations
        snapshots = self._snapshotter
        if agent is None or evaluations is None:
            return
        deadline = self._due[0] if self._due is not None else None
        left_s = min(agent.left_s, math.inf if deadline is None else deadline - time.time())
        if left_s == math.inf or left_s > max(_EVALUATION_S, 3 * snapshots.usual_s):
            return
        if self._stepping or not evaluations.stands():
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
                if (
                    handle is None
                    or handle.version != self._number
                    or handle.skipped
                    or handle.lost
                ):
                    limit_s = scheduled.limit_ms / 1000
                    handle = snapshots.begin(
                        self._number, 0.0, handle=self._requests.take_handle(), deadline=limit_s
                    )
                agent.started(handle, scheduled)
        self._send()
