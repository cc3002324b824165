"""What a checkpointer does for its agent: it saves on request and waits before a preemption."""

import math
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

import torch
from torch import nn

from deepvm.checkpoint.loggers import log
from deepvm.checkpoint.training.hooks import parameters_of
from deepvm.checkpoint.training.missing_steps import Samples, differ, sampled, spread
from deepvm.checkpoint.training.save_handle import Handle
from deepvm.core.json_types import JsonDict
from deepvm.io.agent_board import SaveReason, ScheduledSave
from deepvm.io.agent_link import AgentLink
from deepvm.io.threads import start_thread
from deepvm.records import InitVar, dataclass

_LOOK_S = 0.05
_POLL_S = 0.1
_PARAMETERS = 4  # Parameters compared at most: averages that are swapped in change all


class AgentSaves:
    """The saves of this rank that are reported to its agent."""

    def __init__(self, link: AgentLink) -> None:
        self._link = link
        link.meet()
        self._since_ns = time.perf_counter_ns()
        # Whether the last step ended at ``_since_ns``, and whether no other has started since
        self._stepped = self._between = False
        self._saved_ns = self._between_ns = 0
        self._held: tuple[Handle, ScheduledSave] | None = None

    def restored(self, version: int) -> None:
        if not self._link.rank:
            self._link.tell({"tell": "restored", "version": version})
        self._since_ns = time.perf_counter_ns()
        self._stepped = False

    def forwarded(self) -> None:
        if self._between:
            self._between = False
            self._between_ns = time.perf_counter_ns() - self._since_ns - self._saved_ns

    def stepped(self, version: int, ask: Callable[[float | None], object]) -> ScheduledSave | None:
        """The save that is due after this step, the same on all ranks.

        ``ask``: asks the other ranks, where neither a controller nor a store knows them.
        """
        now_ns = time.perf_counter_ns()
        since_ns = self._since_ns
        self._since_ns = now_ns
        if not self._link.knows_all and not self._link.local_rank:
            found = self._link.asked_here()
            if found is not None:
                ask(found.limit_ms / 1000 if found.reason.holds else None)
        # Who uses the model by another way than its forward does not say when a step starts.
        known = self._stepped and not self._between
        took_ns = now_ns - since_ns
        self._stepped = self._between = True
        self._saved_ns = 0
        return self._link.stepped(
            version, took_ns, self._between_ns if known else 0, took_ns if known else 0
        )

    def started(self, handle: Handle, scheduled: ScheduledSave | None) -> None:
        """A checkpoint is being saved; ``scheduled``: the agent's reason, None without one."""
        save = scheduled or ScheduledSave(SaveReason.NONE)
        self._link.saving(handle.version)
        self._saved_ns = time.perf_counter_ns() - self._since_ns
        if not self._link.rank:
            announced_s = 0.0
            if scheduled is not None:
                announced_s = self._link.announced_s
            safe = _safe(handle, save)
            safe.add_done_callback(lambda _: self._tell(handle, save, announced_s))
        if save.reason.holds:
            self._held = handle, save

    def _tell(self, handle: Handle, save: ScheduledSave, announced_s: float) -> None:
        error = _why_unsafe(handle, ends=save.reason.ends)
        if error is not None and handle.superseded:
            return  # the report of the newer checkpoint counts
        pending = not handle.lasting.done()
        lasts = not pending and handle.lasting.exception() is None
        self._link.tell(
            {
                "tell": "saved",
                "version": handle.version,
                "save": list(save),
                "stall_s": handle.stall_s + announced_s,
                "took_s": max(handle.times.values(), default=0.0),
                "lasts": lasts,
                "pending": pending,
                "error": None if error is None else str(error),
            }
        )
        if error is None and not lasts and (pending or handle.refused is not None):
            handle.lasting.add_done_callback(lambda _: self._tell_whether_it_lasts(handle))

    def _tell_whether_it_lasts(self, handle: Handle) -> None:
        report: JsonDict = {"tell": "lasts", "version": handle.version}
        if handle.lasting.exception() is None:
            report["took_s"] = handle.times["lasting"]
        else:
            report["error"] = str(handle.refused or "")
        self._link.tell(report)

    @property
    def left_s(self) -> float:
        """The time until what the last step left is lost, if it is not safe by then."""
        save = self._link.unseen
        if self._held is not None:
            save = self._held[1]
        if save is None or save.reason not in (SaveReason.EMERGENCY, SaveReason.STOP):
            return math.inf
        return save.limit_ms / 1000 - time.time()

    def asked(self) -> ScheduledSave | None:  # outside of steps
        return self._link.asked()

    def sent(self) -> None:
        """The latest checkpoint was read in full: wait while the next step could be lost."""
        held = self._held
        self._held = None
        if held is None:
            return
        handle, save = held
        safe = _safe(handle, save)
        limit_s = save.limit_ms / 1000
        while not safe.done() and not self._link.is_resumed(save) and time.time() < limit_s:
            wait([safe], min(max(limit_s - time.time(), 0.0), _LOOK_S))
        self._link.hold(handle.version, save)

    def close(self) -> None:
        self._link.close()


def _safe(handle: Handle, save: ScheduledSave) -> Future[int]:
    if save.reason.ends:
        return handle.lasting
    return handle.remote_done


def _why_unsafe(handle: Handle, *, ends: bool) -> BaseException | None:
    """Why a checkpoint may be lost with this machine, or with all (``ends``); None if safe."""
    error = None
    if handle.remote_done.done():
        error = handle.remote_done.exception()
    if error is not None and handle.durable.done() and handle.durable.exception() is None:
        error = None  # on a disk of this machine, where nothing else was asked for
    if ends and handle.lasting.exception() is not None:
        error = error or handle.refused
        if error is None:  # there is no place that could do better
            log.warning(
                "version %d is in memory alone: %s", handle.version, handle.lasting.exception()
            )
    return error


@dataclass(eq=False, repr=False)
class NoticeHook:
    """Hooks into forwards other than the model's, after half the time to the preemption."""

    _model: nn.Module
    _optimizer: torch.optim.Optimizer
    agent: AgentSaves
    save: InitVar[Callable[[], None]]

    def __post_init__(self, save: Callable[[], None]) -> None:
        self._save = weakref.WeakMethod(save)
        self._parameters: list[Any] = []
        self._left: Samples | None = None
        self._trainer: threading.Thread | None = None
        self._half_s = math.inf
        self._hook: Any = None
        self._own: set[nn.Module] = set()
        self._ended = threading.Event()
        self._thread = start_thread(self._watch, name="deepvm-notice")

    def stepped(self) -> None:
        if not self._parameters:
            # Others would be copied whole to be read
            plain = [p for p in parameters_of(self._optimizer) if p.is_contiguous()]
            self._parameters = spread(plain, _PARAMETERS)
        self._left = sampled(self._parameters)
        self._trainer = threading.current_thread()

    def forget(self) -> None:
        """The next step has started: a training pass, or a change on purpose."""
        self._left = None

    def stands(self) -> bool:
        """Whether nothing has changed since the last step. For the training thread only."""
        if not self._left or self._trainer is not threading.current_thread():
            return False
        now = sampled(self._parameters)
        return now is not None and not differ(self._left, now)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._set(hooked=False)

    def _watch(self) -> None:
        while not self._ended.wait(_POLL_S) and self._save() is not None:
            left_s = self.agent.left_s
            if left_s == math.inf:
                self._half_s = math.inf
            elif self._half_s == math.inf:
                self._half_s = left_s / 2
            self._set(hooked=left_s <= self._half_s < math.inf)
        self._set(hooked=False)

    def _set(self, hooked: bool) -> None:
        if hooked and self._hook is None:
            self._own = set(self._model.modules())
            self._hook = nn.modules.module.register_module_forward_pre_hook(self._before_forward)
        elif not hooked and self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _before_forward(self, module: nn.Module, _: Any) -> None:
        save = self._save()
        if save is not None and module not in self._own and not torch.compiler.is_compiling():
            save()
