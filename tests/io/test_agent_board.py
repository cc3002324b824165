"""The board of an agent: all ranks save the same steps, however far apart they run."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from deepvm.io import agent_board
from deepvm.io.agent_board import AGENT, BOARD, Board, Flag, RankFlag, SaveReason, ScheduledSave
from deepvm.io.agent_link import AgentLink

STEPS = 300


class Direct(AgentLink):
    """A link whose agent does at once what it is asked for."""

    def ask(self, message: Any, limit_s: float = 30.0) -> Any:
        reason, limit_ms, request = message["save"]
        self.board.schedule(message["step"], ScheduledSave(SaveReason(reason), limit_ms, request))
        return {}


def saved_steps(folder: Path, ranks: int, seed: int) -> list[list[int]]:
    """The steps that each rank saves, of a training with a collective in each step and random
    stragglers.
    """
    rng = random.Random(seed)
    board = Board.create(folder / BOARD)
    barrier, found = threading.Barrier(ranks), [list[int]() for _ in range(ranks)]
    pauses = [[rng.choice([0, 0, 0, 0.001]) for _ in range(STEPS)] for _ in range(ranks)]
    asked = {step for step in range(1, STEPS) if rng.random() < 0.3}

    def train(rank: int) -> None:
        link = Direct(folder, rank=rank, local_rank=rank, world=ranks, local_world=ranks)
        for step in range(1, STEPS + 1):
            barrier.wait(20)  # the collective of this step
            threading.Event().wait(pauses[rank][step - 1])
            if rank == 0 and step in asked:
                board.request(SaveReason.USER, 0)
            if link.stepped(step, 1) is not None:
                found[rank].append(step)
        link.close()

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    board.close()
    return found


@pytest.mark.parametrize("seed", range(3))
def test_all_ranks_save_the_same_steps(tmp_path: Path, seed: int) -> None:
    found = saved_steps(tmp_path, 3, seed)
    assert found[0] == found[1] == found[2]
    assert len(found[0]) > STEPS / 6


def test_an_entry_that_a_rank_has_not_read_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = Board.create(tmp_path / BOARD)
    for step in (4, 5, 6):  # rank 0 may be a step ahead of the slowest
        board.schedule(step, ScheduledSave(SaveReason.USER))
    assert (
        all(board.scheduled(step) for step in (4, 5, 6))
        and not board.scheduled(7)
        and not board.scheduled(8)
    )
    monkeypatch.setattr(agent_board, "_RING", 1)
    board.schedule(4, ScheduledSave(SaveReason.USER))
    board.schedule(5, ScheduledSave(SaveReason.USER))
    assert not board.scheduled(4)  # this is what one entry alone would lose


def test_a_single_rank_saves_at_once_and_once(tmp_path: Path) -> None:
    board = Board.create(tmp_path / BOARD)
    link = AgentLink(tmp_path, rank=0, local_rank=0, world=1, local_world=1)
    assert link.stepped(1, 5) is None
    number = board.request(SaveReason.EMERGENCY, 77)
    assert link.stepped(2, 5) == ScheduledSave(SaveReason.EMERGENCY, 77, number)
    assert link.stepped(3, 5) is None and link.asked() is None
    assert board.of_rank(0, RankFlag.STEP) == 3
    board.request(SaveReason.USER, 0)
    assert link.asked() == ScheduledSave(SaveReason.USER, 0, number + 1)  # outside of steps as well


def test_a_weaker_request_does_not_hide_one_that_nobody_has_taken(tmp_path: Path) -> None:
    board, now_ms = Board.create(tmp_path / BOARD), int(time.time() * 1000)
    link = AgentLink(tmp_path, rank=0, local_rank=0, world=1, local_world=1)
    soon, later = now_ms + 60_000, now_ms + 600_000
    board.request(SaveReason.EMERGENCY, soon)
    board.request(SaveReason.INSURANCE, 0)
    assert link.stepped(1, 5) == ScheduledSave(SaveReason.EMERGENCY, soon, 2)
    board.request(SaveReason.INSURANCE, 0)
    assert link.stepped(2, 5) == ScheduledSave(SaveReason.INSURANCE, 0, 3), "that one was taken"
    board.request(SaveReason.EMERGENCY, soon)
    board.request(SaveReason.STOP, later)
    assert link.stepped(3, 5) == ScheduledSave(SaveReason.STOP, soon, 5), (
        "one machine goes before the others"
    )
    board.request(SaveReason.RESIZE, later)
    board.resume()
    board.words[Flag.RESUMED] = 0  # the next one is asked for
    board.request(SaveReason.USER, 0)
    assert link.stepped(4, 5) == ScheduledSave(SaveReason.USER, 0, 7), "it is not needed any more"
    board.request(SaveReason.RESIZE, now_ms - 1)
    board.request(SaveReason.USER, 0)
    assert link.stepped(5, 5) == ScheduledSave(SaveReason.USER, 0, 9), "it came too late"


def test_a_second_wish_waits_while_ranks_save_before_a_preemption(tmp_path: Path) -> None:
    """Other machines may end after their save: a further step there would be lost."""
    board = Board.create(tmp_path / BOARD)
    link = Direct(tmp_path, rank=0, local_rank=0, world=2, local_world=1)
    board.request(SaveReason.STOP, 77)
    assert link.stepped(1, 5) is None
    board.request(SaveReason.STOP, 78)  # as another machine's agent, which has heard of it later
    assert link.stepped(2, 5) == ScheduledSave(SaveReason.STOP, 77, 1)
    assert board.scheduled(3) is None
    assert link.stepped(3, 5) is None  # training goes on all the same
    assert link.stepped(4, 5) == ScheduledSave(SaveReason.STOP, 78, 2)
    board.request(SaveReason.USER, 0)
    assert link.stepped(5, 5) is None
    board.request(SaveReason.EMERGENCY, 79)
    assert link.stepped(6, 5) == ScheduledSave(SaveReason.USER, 0, 3)
    assert link.stepped(7, 5) == ScheduledSave(SaveReason.EMERGENCY, 79, 4), (
        "nobody holds for that: it cannot wait"
    )


@pytest.mark.parametrize("world", [1, 2])
def test_fixed_steps_are_kept_to_however_seldom_the_agent_looks(world: int, tmp_path: Path) -> None:
    board = Board.create(tmp_path / BOARD)
    board.words[Flag.EVERY] = 7
    link = Direct(tmp_path, rank=0, local_rank=0, world=world, local_world=world)
    assert [step for step in range(1, 50) if link.stepped(step, 0) is not None] == [
        7,
        14,
        21,
        28,
        35,
        42,
        49,
    ]


def test_the_save_policy_asks_once_for_each_step_that_it_names(tmp_path: Path) -> None:
    board = Board.create(tmp_path / BOARD)
    link = AgentLink(tmp_path, rank=0, local_rank=0, world=1, local_world=1)
    found = []
    for step in range(1, 13):
        board.words[Flag.DUE] = ((step - 1) // 5 + 1) * 5
        found.append((step, link.stepped(step, 1)))
    assert [step for step, save in found if save] == [5, 10]


def test_trainers_hold_until_they_may_go_on(tmp_path: Path) -> None:
    board = Board.create(tmp_path / BOARD)
    link = AgentLink(tmp_path, rank=0, local_rank=0, world=1, local_world=1)
    save = ScheduledSave(SaveReason.EMERGENCY, 2**50, board.request(SaveReason.EMERGENCY, 2**50))
    thread = threading.Thread(target=link.hold, args=(3, save))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive() and board.of_rank(0, RankFlag.HELD) == 3
    board.words[Flag.RESUMED] = save.request
    thread.join(5)
    assert not thread.is_alive() and board.of_rank(0, RankFlag.HELD) == 0
    link.hold(4, ScheduledSave(SaveReason.EMERGENCY, 1, 9))  # a limit that has passed
    link.hold(4, ScheduledSave(SaveReason.USER, 2**50, 9))  # nothing would be lost


def test_a_newer_generation_has_a_board_of_its_own(tmp_path: Path) -> None:
    old = Board.create(tmp_path / BOARD)
    new = Board.create(tmp_path / BOARD)
    old.request(SaveReason.STOP, 0)
    assert new.words[Flag.REQUEST] == 0


@pytest.mark.parametrize("content", [None, b"", b"x" * 20_000])
def test_what_is_no_board_is_no_agent(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    if content is not None:
        (tmp_path / BOARD).write_bytes(content)
    assert AgentLink.find({AGENT: str(tmp_path)}) is None
    assert "cannot be used" in caplog.text
    assert AgentLink.find({}) is None and AgentLink.find({AGENT: ""}) is None


def test_ranks_that_are_no_numbers_are_no_agent(tmp_path: Path) -> None:
    Board.create(tmp_path / BOARD)
    assert AgentLink.find({AGENT: str(tmp_path), "RANK": "first"}) is None
    assert AgentLink.find({AGENT: str(tmp_path), "RANK": "3", "WORLD_SIZE": "4"}) is not None
