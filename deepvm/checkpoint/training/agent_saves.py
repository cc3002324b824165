"""What a checkpointer does for its agent: it saves on request and waits before a preemption."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import wait

from deepvm.checkpoint.training.save_handle import Handle
from deepvm.io.agent_board import SaveReason, ScheduledSave
from deepvm.io.agent_link import AgentLink

_LOOK_S = 0.05

log = logging.getLogger("deepvm.checkpoint")


class AgentSaves:
    """The saves of this rank that are reported to its agent."""

    def __init__(self, link: AgentLink) -> None:
        """Count from now on."""
        self._link = link
        self._since_ns = time.perf_counter_ns()
        self._stepped = self._between = False
        """Whether the last step ended at ``_since_ns``, and whether no other has started since."""
        self._saved_ns = self._between_ns = 0
        self._held: tuple[Handle, ScheduledSave] | None = None

    @classmethod
    def find(cls) -> AgentSaves | None:
        """Those of the agent that the environment names, None without one."""
        link = AgentLink.find()
        if link is None:
            return None
        link.meet()
        return cls(link)

    def restored(self, version: int) -> None:
        """Training continues from a version."""
        if not self._link.rank:
            self._link.tell({"tell": "restored", "version": version})
        self._since_ns = time.perf_counter_ns()
        self._stepped = False

    def forwarded(self) -> None:
        """The model is used: what it was given has come by now."""
        if self._between:
            self._between = False
            self._between_ns = time.perf_counter_ns() - self._since_ns - self._saved_ns

    def stepped(self, version: int, ask: Callable[[float | None], object]) -> ScheduledSave | None:
        """A step has ended; returns the save that is due, the same on all ranks.

        ``ask``: asks the other ranks to save before a time, where neither a controller nor a store
        knows them.
        """
        now_ns = time.perf_counter_ns()
        since_ns = self._since_ns
        self._since_ns = now_ns
        if not self._link.knows_all and not self._link.local_rank:
            found = self._link.asked_here()
            if found is not None:
                ask(found.limit_ms / 1000 if found.reason.holds else None)
        # Who uses the model by another way than its forward does not say when a step begins.
        known = self._stepped and not self._between
        took_ns = now_ns - since_ns
        self._stepped = self._between = True
        self._saved_ns = 0
        return self._link.stepped(
            version, took_ns, self._between_ns if known else 0, took_ns if known else 0
        )

    def started(self, handle: Handle, scheduled: ScheduledSave | None) -> None:
        """A version is being saved; ``scheduled``: for what the agent asked, None if it did not."""
        save = scheduled or ScheduledSave(SaveReason.NONE)
        self._link.saving(handle.version)
        self._saved_ns = time.perf_counter_ns() - self._since_ns
        if not self._link.rank:
            if save.reason.ends:
                safe = handle.lasting
            else:
                safe = handle.remote_done
            announced_s = 0.0
            if scheduled is not None:
                announced_s = self._link.announced_s
            safe.add_done_callback(lambda _: self._tell(handle, save, announced_s))
        if save.reason.holds:
            self._held = handle, save

    def _tell(self, handle: Handle, save: ScheduledSave, announced_s: float) -> None:
        error = _why_unsafe(handle, ends=save.reason.ends)
        if error is not None and handle.superseded:
            return  # the report of the newer version counts
        lasts = handle.lasting.done() and handle.lasting.exception() is None
        pending = not handle.lasting.done()
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
        report = {"tell": "lasts", "version": handle.version}
        if handle.lasting.exception() is None:
            self._link.tell({**report, "took_s": handle.times["lasting"]})
        else:
            self._link.tell(
                {**report, "error": "" if handle.refused is None else str(handle.refused)}
            )

    @property
    def left_s(self) -> float:
        """The time until what the last step left is lost, if it is not safe by then."""
        if self._held is None:
            save = self._link.unseen
        else:
            save = self._held[1]
        if save is None or save.reason not in (SaveReason.EMERGENCY, SaveReason.STOP):
            return math.inf
        return save.limit_ms / 1000 - time.time()

    def asked(self) -> ScheduledSave | None:
        """What is asked for outside of steps."""
        return self._link.asked()

    def sent(self) -> None:
        """The latest checkpoint was read in full: wait while the next step could be lost."""
        held = self._held
        self._held = None
        if held is None:
            return
        handle, save = held
        if save.reason.ends:
            safe = handle.lasting
        else:
            safe = handle.remote_done
        limit_s = save.limit_ms / 1000
        while not safe.done() and not self._link.is_resumed(save) and time.time() < limit_s:
            wait([safe], min(max(limit_s - time.time(), 0.0), _LOOK_S))
        self._link.hold(handle.version, save)

    def close(self) -> None:
        """Tell the agent what is left to tell."""
        self._link.close()


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
