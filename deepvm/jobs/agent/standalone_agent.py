"""The agent without a controller, next to a command that another engine starts and restarts."""

import math
import os
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from deepvm.core.json_types import JsonObject
from deepvm.core.preemption.savepolicy import SaveFacts, SavePolicy
from deepvm.io.agent_board import (
    AGENT,
    BOARD,
    MOST_RANKS,
    Board,
    Flag,
    RankFlag,
    SaveReason,
    ScheduledSave,
)
from deepvm.io.threads import start_thread
from deepvm.jobs.agent.backups import LAST_S, Backups, TrainerRequests, TrainerSocket, open_backups
from deepvm.jobs.agent.notices import Notice, NoticeSource, watch
from deepvm.jobs.agent.planned_saves import PlannedSaves
from deepvm.jobs.agent.process_group import PASSED_ON, ProcessGroup, caught
from deepvm.jobs.loggers import agent_log as log
from deepvm.jobs.storage.backup_store import KEEP
from deepvm.records import dataclass, replace

GRACE_S = 25.0  # Slurm and Kubernetes kill 30 s after SIGTERM, by default
_LOOK_S = 0.01
# How long ranks hold without a confirmed checkpoint, and before the end losses are logged
_CONFIRM_S, _BEFORE_END_S = 1.0, 1.0


@dataclass(eq=False)
class StandaloneAgent(TrainerRequests):
    """Has the trainers of one command save when this machine is preempted."""

    notices: NoticeSource
    tiers: Sequence[str]
    job: str
    policy: SavePolicy  # Besides notices
    mttp_s: float  # The mean time to preemption that it assumes
    grace_s: float = GRACE_S  # From SIGTERM until it is passed on at the latest
    keep: int = KEEP  # Backups that stay

    def __post_init__(self) -> None:
        # Of several machines each plans, and only that of rank 0 counts.
        self._plan = PlannedSaves(self.policy, self.grace_s)
        self._known = SaveFacts(mttp_s=self.mttp_s)
        self._over = threading.Event()
        self._preempted_s = math.inf
        self._warned = ""
        self._ended = threading.Event()

    def run(self, words: Sequence[str]) -> int:
        """Returns the command's exit code. Raises RequestError: it cannot be started."""
        signals: list[int] = []
        made = tempfile.TemporaryDirectory(prefix="deepvm-agent-")
        with made, caught(PASSED_ON, signals.append):
            folder = Path(made.name)
            self._board = Board.create(folder / BOARD)
            self._board.words[Flag.ALONE] = 1
            store = open_backups(self.tiers, self.job)
            self._backups = Backups(store, folder / "backups", self.keep)
            sockets = TrainerSocket(folder, self._answer)
            try:
                command = ProcessGroup(words, {**os.environ, AGENT: str(folder)})
                heard = (self._noticed, self._rebalanced, self._unavailable)
                start_thread(watch, self.notices, self._over, *heard)
                return self._watch(command, signals) or self._last_backup(signals)
            finally:
                self._over.set()
                sockets.close()

    def _watch(self, command: ProcessGroup, signals: list[int]) -> int:
        """Pass signals on, SIGTERM once the checkpoint is safe; 1 for 0 if steps are not saved."""
        until_s = math.inf
        held_s = math.inf
        terminated = False
        all_safe = False
        while (code := command.wait(_LOOK_S)) is None:
            self._plan.look(self._board, self._known)
            now_s = time.monotonic()
            while signals:
                number = signals.pop(0)
                if number == signal.SIGTERM and not terminated and self._ranks():
                    terminated = True
                    until_s = now_s + self.grace_s
                    self._save_before_end()
                else:
                    command.signal(number)
            held_s = min(held_s, now_s) if self._safe() else math.inf
            held = held_s < math.inf and (not self._unsaved_steps() or now_s - held_s >= _CONFIRM_S)
            if time.time() >= self._preempted_s - _BEFORE_END_S:
                self._warn("the cloud preempts this machine now")
                self._preempted_s = math.inf
            if now_s >= until_s or (until_s < math.inf and held):
                all_safe = not self._warn("SIGTERM is passed on now")
                command.signal(signal.SIGTERM)
                # Scripts that end by themselves after a step are not kept from it.
                self._board.words[Flag.RESUMED] = 2**63
                until_s = math.inf
        if terminated and not all_safe and self._warn("the command has ended"):
            return code or int(self._plan.safe is not None)
        return code

    def _unsaved_steps(self) -> str:
        """Which steps are not saved; empty where only rank 0's agent can know."""
        if self._plan.safe is None and self._safe():
            return ""
        return self._plan.unsaved_steps(self._board, self._base)

    def _warn(self, when: str) -> bool:
        """Log which steps are not saved, once; returns whether there are any."""
        unsaved = self._unsaved_steps()
        if unsaved and unsaved != self._warned:
            log.error("%s: %s", when, unsaved)
        self._warned = unsaved
        return bool(unsaved)

    def _last_backup(self, signals: list[int]) -> int:
        """Returns 1 if the command's last backup will not be safe; SIGTERM leaves it its grace."""
        self._ended.set()
        until_s = time.monotonic() + LAST_S
        ends = False
        while self._backups.under_way and time.monotonic() < until_s:
            if signals and not ends:
                ends = True
                until_s = min(until_s, time.monotonic() + self.grace_s)
            time.sleep(_LOOK_S)
        if self._backups.under_way:
            why = "there was no time for it"
        else:
            why = self._backups.failure
        if why:
            log.error("the command has ended, and its last backup was not made: %s", why)
        return int(bool(why))

    def _save_before_end(self) -> None:
        if not self._safe():  # else the cloud's notice was earlier
            log.warning(
                "SIGTERM: trainers save first; it is passed on in %.0f s at the latest",
                self.grace_s,
            )
            self._board.words[Flag.RESUMED] = 0
            self._board.request(SaveReason.EMERGENCY, int((time.time() + self.grace_s) * 1000))

    def _ranks(self) -> list[int]:
        """The local ranks that have done a step: others have nothing to save."""
        return [rank for rank in range(MOST_RANKS) if self._board.of_rank(rank, RankFlag.STEP)]

    def _safe(self) -> bool:
        """Whether all ranks here hold after a checkpoint that is where it should be."""
        return not self._backups.under_way and all(
            self._board.of_rank(rank, RankFlag.HELD) for rank in self._ranks()
        )

    def _noticed(self, notice: Notice) -> None:
        self._preempted_s = notice.taken_s
        left_s = max(notice.taken_s - time.time(), 0.0)
        log.warning(
            "the cloud takes this machine back in %.0f s (%s): trainers save", left_s, notice.action
        )
        self._board.request(SaveReason.EMERGENCY, int(notice.taken_s * 1000))

    def _rebalanced(self) -> None:
        log.warning(
            "the cloud may preempt this machine sooner than others: trainers save, and continue"
        )
        self._board.request(SaveReason.INSURANCE, 0)

    def _unavailable(self, _: Exception) -> None:
        self._known = replace(self._known, missed_rate=1.0)

    def _schedule(self, step: int, save: ScheduledSave, *, peers: bool) -> JsonObject:
        self._board.schedule(step, save)
        return {}

    def _report_unsaved(self, reason: SaveReason, why: str) -> None:
        log.warning("a checkpoint is not safe: %s", why)

    def _has_gone_on(self, local_rank: int, step: int) -> bool:
        return self._ended.is_set() or self._board.of_rank(local_rank, RankFlag.STEP) > step
