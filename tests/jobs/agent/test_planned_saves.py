"""When an agent has its trainers save by the policy: once for each interval, and not before there
is something new.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deepvm.core.preemption.savepolicy import parse_policy
from deepvm.io.agent_board import BOARD, Board, Flag, SaveReason, ScheduledSave
from deepvm.io.agent_link import AgentLink
from deepvm.jobs.agent.agent import Agent
from deepvm.jobs.agent.controller_client import DesiredState
from deepvm.jobs.agent.planned_saves import PlannedSaves
from deepvm.jobs.agent.preparation import AgentEnvironment

STEP_S, TICKS = 0.02, 3


class Link(AgentLink):
    """A trainer whose agent has a step scheduled at once."""

    def ask(self, message: Any, limit_s: float = 30.0) -> Any:
        self.board.schedule(message["step"], ScheduledSave(*message["save"]))
        return {}


class Newest:
    """Backups, of which there is one."""

    def latest(self, rank: int, epoch: int) -> Any:
        return SimpleNamespace(step=70, path=Path("/nowhere"))


class Training:
    """An agent and the first trainer of ``ranks`` here, with a clock of their own: a step is three
    looks of the agent.

    ``late``: whether the agent looks between the end of a step and the begin of its version, as it
    may.
    """

    def __init__(
        self, folder: Path, policy: str, ranks: int, orders: DesiredState, *, late: bool
    ) -> None:
        self.now_s, self.late, self.saved = 1000.0, late, list[int]()
        self.agent = Agent(AgentEnvironment("m1", b"", folder, lambda: "", ""), None)
        self.agent._reporter.add = lambda *_, **__: 0  # type: ignore[method-assign]
        self.orders, self.board = orders, Board.create(folder / BOARD)
        self.agent._board = self.board
        self.agent._plan, self.agent._running, self.agent._orders = (
            PlannedSaves(parse_policy(policy), 0.0),
            1,
            orders,
        )
        self.link = Link(folder, rank=0, local_rank=0, world=ranks, local_world=ranks)
        self.step = 0

    def train(self, steps: int) -> list[int]:
        """The steps that were saved."""
        for _ in range(steps):
            self.step += 1
            for _ in range(TICKS):
                self.now_s += STEP_S / TICKS
                self.agent._plan_saves(self.orders, self.board)
            found = self.link.stepped(self.step, int(STEP_S * 1e9))
            if self.late:
                self.agent._plan_saves(self.orders, self.board)
            if found is not None:
                self.link.saving(self.step)
                self.saved.append(self.step)
        return self.saved

    def told(self, stall_s: float = 0.001, error: str = "") -> None:
        """The newest version is safe, or will not be."""
        said = {
            "version": self.saved[-1],
            "save": [SaveReason.INSURANCE, 0, 0],
            "took_s": 0.1,
            "stall_s": stall_s,
        }
        self.agent._save_reported({**said, "error": error})


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Training]]:
    """The time is that of the newest training."""
    found = list[Training]()
    true_s = time.monotonic
    monkeypatch.setattr(
        "deepvm.jobs.agent.agent.time.monotonic", lambda: found[-1].now_s if found else true_s()
    )
    yield found
    for training in found:
        training.link.close()


def made(
    clock: list[Training], folder: Path, policy: str, ranks: int, *, late: bool = True, **known: Any
) -> Training:
    orders = DesiredState(
        generation=1, ranks=[{"machine": "m1", "processes": ranks}], mttp_s=100.0, **known
    )
    clock.append(Training(folder, policy, ranks, orders, late=late))
    clock[-1].agent._plan.restored(0)
    return clock[-1]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_one_version_for_each_interval(
    tmp_path: Path, clock: list[Training], ranks: int, *, late: bool
) -> None:
    saved = made(clock, tmp_path, "every:0.2", ranks, late=late).train(200)
    apart = [b - a for a, b in zip(saved, saved[1:], strict=False)]
    assert len(saved) > 12 and min(apart) >= 10 and max(apart) <= 13, saved


@pytest.mark.parametrize("ranks", [1, 2])
def test_one_version_shows_what_it_costs(tmp_path: Path, clock: list[Training], ranks: int) -> None:
    """Until it has come nobody knows how often versions are worth it: others behind it would only
    be skipped.
    """
    training = made(clock, tmp_path, "adaptive", ranks)
    assert len(training.train(50)) == 1
    training.told()
    assert len(training.train(3)) == 2  # 50 steps are due for a version now
    training.told()
    assert len(training.train(5)) == 2


def test_a_version_that_does_not_come_is_tried_again(tmp_path: Path, clock: list[Training]) -> None:
    training = made(clock, tmp_path, "adaptive", 1)
    training.train(10)
    training.told(error="no room")
    assert len(training.train(10)) == 2
    training.now_s += 1000.0  # of the second nothing is ever heard
    assert len(training.train(10)) == 3


def test_what_versions_cost_on_other_machines_is_known(
    tmp_path: Path, clock: list[Training]
) -> None:
    """A machine that goes on with a job has no reason to save its first step."""
    training = made(clock, tmp_path, "adaptive", 1, save_s=0.01, took_s=0.1)
    training.agent._plan.restored(100)
    training.step = 100
    assert training.train(30) == []
    assert training.train(300)


def test_a_script_that_has_just_loaded_its_backup_has_nothing_new(
    tmp_path: Path, clock: list[Training]
) -> None:
    training = made(clock, tmp_path, "adaptive", 1, save_s=0.01, took_s=0.1)
    training.now_s += 1000.0
    training.agent._backups = Newest()  # type: ignore[assignment]
    assert training.agent._latest({"rank": 0})["step"] == 70
    assert training.train(30) == []


def test_a_save_that_trainers_have_missed_is_asked_for_again(
    tmp_path: Path, clock: list[Training]
) -> None:
    training = made(clock, tmp_path, "every:0.2", 1)
    training.link.saving = lambda step: None  # type: ignore[method-assign]  # the script did not look
    assert len(training.train(30)) > 2


def test_trainers_that_do_not_save_are_asked_less_and_less_often(
    tmp_path: Path, clock: list[Training]
) -> None:
    training = made(clock, tmp_path, "adaptive", 1)
    training.link.saving = lambda step: None  # type: ignore[method-assign]
    assert 4 <= len(training.train(1000)) <= 12


def test_versions_that_never_come_are_tried_less_and_less_often(
    tmp_path: Path, clock: list[Training]
) -> None:
    """As where the memory node is gone: each would be copied for nothing."""
    training = made(clock, tmp_path, "adaptive", 1)
    for _ in range(1000):
        before = len(training.saved)
        if len(training.train(1)) > before:
            training.told(error="no answer")
    assert 4 <= len(training.saved) <= 12
    training.told()
    training.told(error="no answer")
    before = len(training.saved)
    assert len(training.train(1000)) - before > 5  # once one has come, as often as the policy says


@pytest.mark.parametrize("ranks", [1, 2])
def test_trainers_that_start_again_on_the_same_board_are_asked_anew(
    tmp_path: Path, clock: list[Training], ranks: int
) -> None:
    """As torchrun starts them after a crash.

    The board still says what their predecessors did, and were asked.
    """
    training = made(clock, tmp_path, "every:0.2", ranks)
    before = training.train(95)
    training.agent._board.words[Flag.DUE] = 96  # type: ignore[union-attr]
    training.link.close()
    training.link = Link(tmp_path, rank=0, local_rank=0, world=ranks, local_world=ranks)
    training.agent._plan.restored(0)
    training.step, training.saved = 0, []
    again = training.train(95)
    assert again[0] <= 13 and len(again) == len(before)
