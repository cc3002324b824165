"""Saves by the save policy, with or without a controller: when to request one, what they cost."""

import time

from deepvm.core.preemption.savepolicy import SaveContext, SaveFacts, SavePolicy
from deepvm.core.units import counted
from deepvm.io.agent_board import Board, Flag, RankFlag, SaveReason
from deepvm.records import dataclass, replace

# So many steps after it is due a checkpoint starts, at the latest, if the trainers save at all
_START_STEPS = 3
# Who does not save, or cannot, is asked less and less often, but at least once in 192 steps
_MOST_DOUBLED = 6
# For how long the first checkpoint is waited for before another one is to show what checkpoints
# cost
_UNREPORTED_S = 600.0


@dataclass(frozen=True)
class PendingSave:
    """A save to request if no report reaches the controller by ``until_s`` (monotonic)."""

    report: int
    reason: SaveReason
    limit_s: float
    until_s: float


class PlannedSaves:
    """Requests saves on the board as the policy wants them, for each trainer of a machine."""

    def __init__(self, policy: SavePolicy, grace_s: float) -> None:
        self.policy = policy
        self.facts = SaveFacts(grace_s=grace_s)  # What checkpoints cost here
        self._board: Board | None = None
        # The newest started checkpoint and its time; when trainers last reported a result
        self._last, self._reported_s = (0, time.monotonic()), 0.0
        self._step = self._version = 0
        self.safe: int | None = None  # The newest safe step; None: unknown, as without rank 0 here
        self._vain = 0  # How often trainers were asked since the last checkpoint that came

    @property
    def last_step(self) -> int:
        return self._last[0]

    def restored(self, version: int) -> None:
        """Training continues from there; what it took to load is no training."""
        self._last = (version, time.monotonic())
        self.safe = version

    def record_save(self, version: int, stall_s: float, took_s: float) -> None:
        self._look_for_started()
        self.safe = max(version, self.safe or 0)
        self._reported_s = time.monotonic()
        self._vain = 0
        self.facts = replace(self.facts, save_s=stall_s, backup_s=took_s, emergency_s=took_s)

    def record_failure(self) -> None:
        self._look_for_started()
        self._reported_s = time.monotonic()
        self._vain += 1

    def unsaved_steps(self, board: Board, base: int) -> str:
        """Steps in no safe checkpoint, in words; empty if none. ``base``: where boards start."""
        step = board.of_rank(0, RankFlag.STEP)
        safe = self.safe
        if step <= (safe or 0):
            return ""
        if safe is None:
            return f"step {base + step} is not known to be safe, nor is an older one"
        unsaved = counted(step - safe, "step")
        if not base + safe:
            return f"no checkpoint is safe yet; not saved so far: {unsaved}"
        return (
            f"the newest checkpoint that is safe yet is of step {base + safe}; not saved so far:"
            f" {unsaved} after it"
        )

    def _look_for_started(self) -> None:
        version = self._board.of_rank(0, RankFlag.VERSION) if self._board else 0
        if version and version != self._version:
            self._version = version
            self._last = (version, time.monotonic())

    def look(self, board: Board, known: SaveFacts) -> None:
        policy = self.policy
        words = board.words
        step = board.of_rank(0, RankFlag.STEP)
        version = board.of_rank(0, RankFlag.VERSION)
        if not step or not policy.saves:
            return
        # Other trainers, of which nothing was asked yet
        if board is not self._board or step < self._step:
            self._board = board
            self._version = 0
            words[Flag.DUE] = 0
        self._step = step
        self._look_for_started()
        if policy.fixed_steps:
            words[Flag.EVERY] = policy.fixed_steps
            return
        patience = _START_STEPS << min(self._vain, _MOST_DOUBLED)
        due = words[Flag.DUE]
        if version < due:
            if step < due + patience:
                return  # it is asked for: another one would be saved a step after it
            self._vain += 1
        now_s = time.monotonic()
        facts = self.facts
        if not facts.save_s:
            facts = replace(known, grace_s=facts.grace_s)
        if self._vain and not facts.save_s and version <= step < version + patience:
            return  # where costs are known the policy says when to try again
        started_s = self._last[1]
        unreported = self._reported_s < started_s and now_s - started_s < _UNREPORTED_S
        if version and unreported and policy.shows_cost_first and not facts.save_s:
            words[Flag.DUE] = 0  # it will show what one costs
            return
        step_s = board.of_rank(0, RankFlag.STEP_NS) / 1e9
        facts = replace(facts, step_s=step_s, mttp_s=known.mttp_s, missed_rate=known.missed_rate)
        wants = policy.due(SaveContext(step, now_s, *self._last, facts))
        words[Flag.DUE] = step + 1 if wants else 0
