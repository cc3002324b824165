"""For scripts that write their own checkpoints: when to save, and backups that outlive the VM.

The four calls of Table 5.1 of the Spotify thesis.

Example::

    import deepvm.training as dt

    for i, inputs in enumerate(loader):
        with dt.step_context():
            ...
        if i % 1000 == 0 or dt.check_save():
            save_checkpoint(path)
            dt.backup(path)

Where no agent of ``deepvm run`` or ``deepvm agent`` is, every call is harmless and takes about a
microsecond. Scripts with a :class:`deepvm.checkpoint.Checkpointer` need none of this. Only the
standard library is imported.
"""

import logging
import os
import time
from contextlib import AbstractContextManager
from pathlib import Path

from deepvm.errors import CheckpointError
from deepvm.io.agent_board import SaveReason, ScheduledSave
from deepvm.io.agent_link import SAVE_EVERY, AgentLink

__all__ = ["backup", "check_save", "enter_step", "exit_step", "latest", "step_context"]

log = logging.getLogger("deepvm.training")

_LATEST_S = 600.0  # a backup may take so long to arrive
_NO_ANSWER = {"error": "the agent does not answer"}


class _Training:
    """This process: its agent, the steps it has done, and the save that is due."""

    def __init__(self) -> None:
        self.looked = False
        self.link: AgentLink | None = None
        self.steps = self.base = 0
        self.every = 0
        self.began_ns = self.ended_ns = 0
        # From the end of the last step until this one started. Below 0: unknown, or it was a save.
        self.between_ns = -1
        self.due: ScheduledSave | None = None
        # The save that the script was asked for, or that its backup answers; for one step
        self.current: ScheduledSave | None = None
        self.current_step = self.saved_step = -1
        self.due_ns = 0
        self.holds = False

    def agent(self) -> AgentLink | None:
        if not self.looked:
            self.looked = True
            self.link = AgentLink.find()
            every = os.environ.get(SAVE_EVERY, "").strip()
            if every.isascii() and every.isdigit():
                self.every = int(every)
        return self.link

    def wanted(self) -> ScheduledSave | None:
        return self.due or (self.current if self.current_step == self.steps else None)

    def told(self, save: ScheduledSave) -> None:
        self.current = save
        self.current_step = self.steps
        self.due_ns = time.perf_counter_ns()

    def saves_nothing(self) -> None:
        if self.link is not None and self.link.world > 1:
            self.link.tell({"tell": "nothing", "step": self.steps})

    def hold(self) -> None:
        self.holds = False
        if self.link is not None and self.current is not None:
            self.link.hold(self.steps, self.current)


_training = _Training()


def _forget() -> None:
    """A forked child, such as a data loader's worker, is no trainer until it says so."""
    global _training
    _training = _Training()


os.register_at_fork(after_in_child=_forget)


class _Step(AbstractContextManager[None]):
    def __enter__(self) -> None:
        enter_step()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            exit_step()


_STEP = _Step()


def step_context() -> AbstractContextManager[None]:
    """One training step; one that raises does not count."""
    return _STEP


def enter_step() -> None:
    """A training step starts; after a backup before a preemption it waits first."""
    state = _training
    if state.agent() is None:
        return
    state.between_ns = -1
    if state.ended_ns and state.steps not in (state.saved_step, state.current_step):
        state.between_ns = time.perf_counter_ns() - state.ended_ns
    if state.holds:
        state.hold()
    wanted = state.wanted()
    if wanted is not None and wanted.reason.holds and state.saved_step != state.steps:
        state.saves_nothing()
    state.began_ns = time.perf_counter_ns()


def exit_step() -> None:
    """A training step has ended."""
    state = _training
    link = state.agent()
    if link is None:
        return
    if state.holds:
        state.hold()
    state.steps += 1
    took_ns = time.perf_counter_ns() - state.began_ns
    between_ns = state.between_ns
    known = between_ns >= 0
    due = link.stepped(
        state.steps, took_ns, between_ns if known else 0, between_ns + took_ns if known else 0
    )
    if due is None and state.every and not (state.base + state.steps) % state.every:
        due = ScheduledSave(SaveReason.NONE)
    if due is not None:
        state.due = due
    state.ended_ns = time.perf_counter_ns()
    state.between_ns = -1


def check_save() -> bool:
    """Whether to save now: on a preemption notice, a request, the policy or ``save_every_steps``.

    True once for each of them, on all ranks after the same step. A single rank receives it outside
    of steps, too.
    """
    state = _training
    link = state.agent()
    if link is None:
        return False
    due = state.due or link.asked()
    state.due = None
    if due is None:
        return False
    state.told(due)
    return True


def backup(path: str | Path) -> None:
    """Have a file or folder uploaded in the background; older backups are removed afterwards.

    It must not be changed until :func:`check_save` is true again; give each save a path of its own
    if it may be.
    """
    state = _training
    link = state.agent()
    if link is None:
        return
    place = os.path.abspath(path)
    due = state.due
    state.due = None
    if due is not None and due.reason.holds:  # the script saves here by itself, and did not look
        state.told(due)
    save = ScheduledSave(SaveReason.NONE)
    stall_s = 0.0
    if state.current is not None and state.current_step == state.steps:
        save = state.current
        stall_s = link.announced_s + (time.perf_counter_ns() - state.due_ns) / 1e9
    state.saved_step = state.steps
    message = {"ask": "backup", "path": place, "step": state.steps, "save": list(save)}
    found = link.ask({**message, "stall_s": stall_s})
    if found is None:
        found = _NO_ANSWER
    if "error" in found:
        log.error("%s is not backed up: %s", place, found["error"])
        return
    link.saving(state.steps)
    state.holds = save.reason.holds


def latest() -> Path | None:
    """This rank's part of the newest backup, or rank 0's if that alone saved; None without any.

    Raises CheckpointError: it cannot be fetched, or other ranks have parts and this one has none.
    """
    link = _training.agent()
    if link is None:
        return None
    found = link.ask({"ask": "latest"}, _LATEST_S)
    if found is None:
        found = _NO_ANSWER
    if "error" in found:  # to start from the beginning would be worse
        raise CheckpointError(f"the newest backup cannot be fetched: {found['error']}")
    _training.base = int(found.get("step", 0)) - _training.steps
    path = found.get("path")
    if path:
        return Path(path)
    return None
