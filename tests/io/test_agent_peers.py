"""Ranks whose controller dies in the middle of an announcement, comes late or lies: all save the
same steps.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from deepvm.io import agent_link
from deepvm.io.agent_board import BOARD, Board, Flag, SaveReason, ScheduledSave
from deepvm.io.agent_link import AgentLink, Peers
from deepvm.jobs.agent.liveness import ControllerLiveness

STEPS = 200


class Faulty:
    """Two machines' boards, and a controller that fails as often as not."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folders = [folder / "one", folder / "two"]
        for place in self.folders:
            place.mkdir()
        self.boards = [Board.create(place / BOARD) for place in self.folders]
        self.rng, self.late = random.Random(seed), list[threading.Timer]()
        self.outcomes = set[str]()

    def schedule(self, step: int, save: ScheduledSave) -> dict[str, Any] | None:
        """The answer to rank 0, after the order has come to some machines, or before."""
        outcome = self.rng.choice(["well", "dead before", "dead after", "half", "late", "no agent"])
        self.outcomes.add(outcome)
        for timer in self.late:  # an agent hears one order after the other
            timer.join()
        marked = {"well": 2, "dead after": 2, "half": 1}.get(outcome, 0)
        for board in self.rng.sample(self.boards, marked):
            board.schedule(step, save)
        if outcome == "late":
            for board in self.boards:
                pause_s = self.rng.choice([0.0, 0.005, 0.03])
                self.late.append(threading.Timer(pause_s, board.schedule, (step, save)))
                self.late[-1].start()
        return {"well": {}, "no agent": None}.get(outcome, {"error": outcome})


class Link(AgentLink):
    controller: Faulty

    def ask(self, message: Mapping[str, Any], limit_s: float = 30.0) -> Any:
        return self.controller.schedule(message["step"], ScheduledSave(*message["save"]))


@pytest.fixture
def stores() -> list[Any]:
    torch = pytest.importorskip("torch")
    first = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True)
    return [first, torch.distributed.TCPStore("127.0.0.1", first.port, is_master=False)]


@pytest.mark.parametrize("seed", range(3))
def test_both_ways_say_the_same(
    tmp_path: Path, stores: list[Any], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_link, "_LOOK_S", 0.002)
    both, rng = Faulty(tmp_path, seed), random.Random(seed)
    barrier, found = threading.Barrier(2), [list[tuple[int, SaveReason]]() for _ in range(2)]
    pauses = [[rng.choice([0, 0, 0.001]) for _ in range(STEPS)] for _ in range(2)]
    asked = {step for step in range(1, STEPS) if rng.random() < 0.3}

    def train(rank: int) -> None:
        link = Link(both.folders[rank], rank=rank, local_rank=0, world=2, local_world=1)
        link.controller, link._unmet = both, False
        both.boards[rank].words[Flag.UNHEARD] = 1
        link._peers = Peers(link.board, stores[rank], rank=rank, local_rank=0, world=2)
        for step in range(1, STEPS + 1):
            barrier.wait(60)  # the collective of this step
            time.sleep(pauses[rank][step - 1])
            if rank == 0 and step in asked:
                both.boards[0].request(SaveReason.INSURANCE, 0)
            save = link.stepped(step, 1)
            if save is not None:
                found[rank].append((step, save.reason))
        barrier.wait(60)
        link.close()

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in [*threads, *both.late]:
        thread.join(100)
    assert found[0] == found[1] and [step for step, _ in found[0]] == sorted(
        step + 1 for step in asked
    )
    assert len(both.outcomes) == 6


def test_a_wish_of_another_machine(tmp_path: Path, stores: list[Any]) -> None:
    both = Faulty(tmp_path, 0)
    peers = [Peers(both.boards[n], stores[n], rank=n, local_rank=0, world=2) for n in range(2)]
    limit_ms = int((time.time() + 60) * 1000)
    # Although a controller answers: it does not hear of notices
    both.boards[1].request(SaveReason.EMERGENCY, limit_ms)
    deadline = time.monotonic() + 10
    while both.boards[0].words[Flag.REQUEST] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert both.boards[0].words[Flag.REASON] == SaveReason.EMERGENCY
    # Told as the time that is left
    assert abs(both.boards[0].words[Flag.LIMIT_MS] - limit_ms) < 10_000
    peers[0].schedule(5, ScheduledSave(SaveReason.EMERGENCY, limit_ms, 1))
    here, there = (board.scheduled(5) for board in both.boards)
    assert here == ScheduledSave(SaveReason.EMERGENCY, limit_ms, 1) and there is not None
    assert (
        there == here._replace(limit_ms=there.limit_ms) and abs(there.limit_ms - limit_ms) < 10_000
    )
    for peer in peers:
        peer.close()


class Broken:
    """A store whose server is gone."""

    def add(self, key: str, more: int) -> int:
        return 2

    def set(self, key: str, value: str) -> None:
        raise RuntimeError("Broken pipe")


def test_rank_0_saves_nothing_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    board = Board.create(tmp_path / BOARD)
    Peers(board, Broken(), rank=0, local_rank=1, world=2).schedule(
        5, ScheduledSave(SaveReason.INSURANCE)
    )
    assert board.scheduled(5) is None and "step 5 is not saved" in caplog.text


def test_ranks_that_never_come_are_awaited_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(agent_link, "_ACK_S", 0.3)
    board = Board.create(tmp_path / BOARD)
    peers = Peers(board, torch.distributed.HashStore(), rank=0, local_rank=0, world=2)
    for step, least_s, most_s in ((5, 0.3, 5.0), (6, 0.0, 0.2)):
        began = time.monotonic()
        peers.schedule(step, ScheduledSave(SaveReason.INSURANCE))
        assert least_s <= time.monotonic() - began < most_s and board.scheduled(step)
    peers.close()


def test_an_order_that_comes_late_hides_nothing(tmp_path: Path) -> None:
    board = Board.create(tmp_path / BOARD)
    newer, older = ScheduledSave(SaveReason.EMERGENCY, 5, 2), ScheduledSave(SaveReason.INSURANCE)
    board.schedule(8, newer, by_peers=True)
    board.schedule(4, older)  # in the same place
    assert (
        board.scheduled(8) == newer and board.scheduled(12) is None and board.scheduled(0) is None
    )


def test_an_order_that_is_repeated_is_there_all_the_time(tmp_path: Path) -> None:
    board, order = Board.create(tmp_path / BOARD), ScheduledSave(SaveReason.EMERGENCY, 5, 2)
    board.schedule(8, order)
    reader = Board(tmp_path / BOARD)
    seen = list[ScheduledSave | None]()

    class Watched:
        """Looks as a rank does after each word that is written."""

        def __setitem__(self, place: int, word: int) -> None:
            words[place] = word
            seen.append(reader.scheduled(8))

    words = board.words
    board.words = cast(Any, Watched())
    board.schedule(8, order)
    board.words = words
    assert len(seen) == 4 and set(seen) == {order}
    board.close()


def test_silence() -> None:
    now = [0.0]
    silence = ControllerLiveness(5.0, lambda: now[0])

    def at(second: float) -> bool:
        now[0] = second
        return silence.now

    assert not at(7.9) and at(8.0)  # an answer is due each 5 s
    silence.answered()
    assert not silence.now and not silence.is_over and silence.lasts_s == 0
    now[0] = 10.0
    silence.failed()
    assert not at(10.9) and not silence.is_over
    now[0] = 10.9
    silence.answered()  # a connection that broke
    assert not at(15.0) and silence.is_over
    silence.failed()
    now[0] = 15.5
    silence.failed()
    assert at(16.0)  # the first failure counts
    silence.answered()
    assert not at(21.9) and not silence.is_over
    now[0] = 22.0
    assert silence.is_over


@pytest.mark.parametrize(("rank", "warnings"), [(0, 1), (1, 0)])
def test_ranks_that_do_not_know_each_other_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rank: int, warnings: int
) -> None:
    Board.create(tmp_path / BOARD).close()
    link = AgentLink(tmp_path, rank=rank, local_rank=0, world=2, local_world=1)
    for step in range(1, 100):
        link.stepped(step, 1)
    assert caplog.text.count("each machine trains a model of its own") == warnings
    link.close()
