"""``Checkpointer.steps``: one explicit boundary between iterations, at which everything is saved at
one moment.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.jobs.agents import BareAgent
from support.jobs.runs import until

torch = pytest.importorskip("torch")

from support.checkpoint.boundaries import (  # noqa: E402
    Training,
    buffers,
    by_data,
    in_place,
    loaded,
    momentum,
    rates,
    replaced,
    saved,
)
from support.checkpoint.slow_copies import slow_copy  # noqa: E402
from support.checkpoint.step_ranks import killed_after, run_ranks  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from deepvm.checkpoint import Checkpointer, ResumableLoader  # noqa: E402
from deepvm.checkpoint.snapshot.host_buffer import Slot  # noqa: E402
from deepvm.errors import CheckpointError, RequestError  # noqa: E402
from deepvm.io.agent_board import AGENT, Flag, RankFlag, SaveReason  # noqa: E402


def test_it_yields_the_numbers_and_saves_everything_at_one_moment(tmp_path: Path) -> None:
    training = Training(tmp_path)
    assert training.run(5) == [0, 1, 2, 3, 4]
    assert training.saver.version == 5
    training.check([1, 2, 3, 4, 5])


def test_nothing_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    training = Training(tmp_path)
    training.run(5)
    training.check()
    assert not caplog.records


def test_an_iteration_is_one_pass_of_the_loop_however_often_the_optimizer_steps(
    tmp_path: Path,
) -> None:
    training = Training(tmp_path, every=2)
    for number in training.saver.steps(6):
        for _ in range(number % 3):
            training.step()
        training.remember(number + 1)
    assert training.saver.version == 6
    training.check([2, 4, 6])


def test_it_restores_and_continues(tmp_path: Path) -> None:
    first = Training(tmp_path, every=3)
    assert first.run(6) == list(range(6))
    first.check([3, 6])
    again = Training(tmp_path, every=3)
    torch.manual_seed(9)
    steps = again.saver.steps(10)
    assert next(steps) == 6
    again.remember(6)
    assert again.boundaries[6] == first.boundaries[6]
    steps.close()
    again.saver.close()


def test_resumed_as_if_nothing_had_happened(tmp_path: Path) -> None:
    whole, parts = Training(tmp_path / "whole", every=3), None
    whole.run(10)
    for total in (4, 7, 10):
        parts = Training(tmp_path / "parts", every=1)
        assert parts.run(total) == list(range({4: 0, 7: 4, 10: 7}[total], total))
        parts.saver.close()
    assert parts is not None and parts.boundaries[10] == whole.boundaries[10]
    whole.saver.close()


def test_what_was_restored_by_hand_is_not_restored_again(tmp_path: Path) -> None:
    first = Training(tmp_path)
    first.run(3)
    first.saver.close()
    again = Training(tmp_path)
    assert again.saver.restore_latest() == 3
    again.place.position = 100
    assert again.run(5) == [3, 4]
    assert again.place.position == 102
    again.check([1, 2, 3, 4, 5])


@pytest.mark.parametrize("total", [6, 4, 0])
def test_a_total_that_is_reached(tmp_path: Path, total: int) -> None:
    first = Training(tmp_path, every=3)
    first.run(6)
    first.saver.close()
    again = Training(tmp_path, every=3)
    assert again.run(total) == []
    assert again.saver.version == 6  # restored, so that the model can be used
    again.remember(6)
    assert again.boundaries[6] == first.boundaries[6]
    again.check([3, 6])


def test_another_total_after_a_restore(tmp_path: Path) -> None:
    first = Training(tmp_path)
    first.run(3)
    first.saver.close()
    again = Training(tmp_path)
    assert again.run(8) == [3, 4, 5, 6, 7]
    again.check(list(range(1, 9)))


@pytest.mark.parametrize("total", [-1, 2.5, "10", True])
def test_a_total_that_is_no_number_of_steps(tmp_path: Path, total: Any) -> None:
    training = Training(tmp_path)
    with pytest.raises(RequestError, match="total"):
        list(training.saver.steps(total))
    training.saver.close()


@pytest.mark.parametrize("stepped", [False, True])
def test_a_broken_iteration_counts_if_an_optimizer_has_stepped(
    tmp_path: Path, *, stepped: bool
) -> None:
    """Its update is in the state; but nothing saves it unless that is asked for."""
    training = Training(tmp_path)
    for step in training.saver.steps(10):
        if step == 3 and not stepped:
            break
        training.step()
        if step == 3:
            break
        training.remember(step + 1)
    assert training.saver.version == 3 + stepped
    training.check([1, 2, 3])  # close() adds none


def test_a_loop_is_entered_again_without_a_restore(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for step in training.saver.steps(10):
        if step == 3:
            training.place.position = 50
            break
        training.step()
        training.remember(step + 1)
    assert training.run(5) == [3, 4]
    assert training.place.position == 52
    training.check([1, 2, 3, 4, 5])


def test_phases(tmp_path: Path) -> None:
    training = Training(tmp_path)
    assert training.run(2) == [0, 1]
    training.place.position = 20
    assert training.run(4) == [2, 3]
    training.check([1, 2, 3, 4])
    again = Training(tmp_path)
    assert again.run(2) == [] and again.run(5) == [4]
    again.check([1, 2, 3, 4, 5])
    assert again.place.position == 23


def test_an_error_in_the_body_is_as_a_break(tmp_path: Path) -> None:
    training = Training(tmp_path)
    with pytest.raises(ValueError, match="a bad batch"):
        for step in training.saver.steps(10):
            if step == 2:
                raise ValueError("a bad batch")
            training.step()
            training.remember(step + 1)
    assert training.saver.version == 2
    training.check([1, 2])


def test_an_error_inside_the_step_of_an_optimizer(tmp_path: Path) -> None:
    """The loop can be entered again."""
    training = Training(tmp_path)
    hook = training.optimizer.register_step_pre_hook(
        lambda *_: (1 / (training.saver.version - 2)) and None
    )
    with pytest.raises(ZeroDivisionError):
        training.run(5)
    hook.remove()
    assert training.run(4) == [2, 3]
    training.check([1, 2, 3, 4])


def test_loops_inside_one_another_are_refused(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for _ in training.saver.steps(3):
        with pytest.raises(RequestError, match="steps"):
            list(training.saver.steps(2))
        training.step()
    assert training.saver.version == 3
    training.saver.close()


def test_a_closed_checkpointer(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.saver.close()
    with pytest.raises(CheckpointError, match="closed"):
        list(training.saver.steps(3))


def test_every_so_many_steps_and_at_the_end(tmp_path: Path) -> None:
    training = Training(tmp_path, every=3)
    training.run(10)
    training.check([3, 6, 9, 10])


def test_the_end_is_saved_once(tmp_path: Path) -> None:
    training = Training(tmp_path, every=2)
    training.run(4)
    training.saver.close()
    training.check([2, 4])
    assert training.saver.metrics["saved"] == 2


def test_without_a_schedule_the_end_is_not_saved(tmp_path: Path) -> None:
    training = Training(tmp_path, every=None)
    training.run(4)
    training.check([])


def test_every_so_much_time(tmp_path: Path) -> None:
    training = Training(tmp_path, every="0.05s")
    for step in training.saver.steps(6):
        training.step()
        if step in (1, 4):
            time.sleep(0.06)  # the time itself is what is tested
        training.remember(step + 1)
    assert {2, 5} <= set(training.check())


def test_a_checkpoint_at_the_end(tmp_path: Path) -> None:
    training = Training(tmp_path, every=100)
    training.run(4)
    training.saver.save(block=True)
    training.check([4])


def test_a_save_after_a_scheduled_one_has_the_random_states_of_now(tmp_path: Path) -> None:
    training = Training(tmp_path, every=4)
    training.run(4)
    torch.rand(5)
    training.place.position = 7
    training.remember(4)
    training.saver.save(block=True)
    training.check([4])


@pytest.mark.parametrize("block", [False, True])
def test_a_save_inside_the_body_never_has_half_an_iteration(tmp_path: Path, *, block: bool) -> None:
    """It is made at the next boundary, or refused with the way out."""
    training = Training(tmp_path, every=None)
    for step in training.saver.steps(4):
        training.step()
        if step == 1:
            try:
                training.saver.save(block=block)
            except RequestError as problem:
                assert "request_save()" in str(problem)
                training.saver.request_save()
        torch.rand(2)
        training.place.position += 10
        training.remember(step + 1)
    training.check([2])


def test_a_request_is_served_at_the_next_boundary(tmp_path: Path) -> None:
    training = Training(tmp_path, every=None)
    handles: list[Any] = []
    for step in training.saver.steps(5):
        if step == 2:
            thread = threading.Thread(target=lambda: handles.append(training.saver.request_save()))
            thread.start()
            thread.join()
            assert handles[0].version == 0
        training.step()
        training.remember(step + 1)
    assert handles[0].durable.result(20) == 3
    training.check([3])


def test_a_request_in_a_signal_handler(tmp_path: Path) -> None:
    """Also inside a step of the optimizer."""
    training = Training(tmp_path, every=None)
    before = signal.signal(signal.SIGUSR1, lambda *_: training.saver.request_save())

    def interrupt(*_: Any) -> None:
        if training.saver.version == 1:
            signal.raise_signal(signal.SIGUSR1)

    training.optimizer.register_step_pre_hook(interrupt)
    try:
        training.run(4)
    finally:
        signal.signal(signal.SIGUSR1, before)
    training.check([2])


def test_a_request_in_the_last_iteration(tmp_path: Path) -> None:
    training = Training(tmp_path, every=None)
    for step in training.saver.steps(3):
        training.step()
        training.remember(step + 1)
        if step == 2:
            handle = training.saver.request_save(deadline=time.time() + 60)
    assert handle.durable.result(20) == 3
    training.check([3])


def test_a_request_in_a_broken_iteration_is_served_at_the_next_boundary(tmp_path: Path) -> None:
    training = Training(tmp_path, every=None)
    for step in training.saver.steps(5):
        if step == 1:
            handle = training.saver.request_save()
            break
        training.step()
    assert training.run(3) == [1, 2]
    assert handle.durable.result(20) == 2
    training.check([2])


def test_a_loader(tmp_path: Path) -> None:
    """Its position is that of the boundary, also at the end of a pass."""

    def made() -> tuple[Training, Iterator[Any]]:
        data: Any = torch.arange(24.0).reshape(12, 2)
        loader = ResumableLoader(DataLoader(data, 4, shuffle=True))
        training = Training(tmp_path, extra=lambda *_: {"loader": loader})

        def forever() -> Iterator[Any]:
            while True:
                yield from loader

        return training, forever()

    seen: list[list[float]] = []
    training, batches = made()
    for _ in training.saver.steps(8):
        seen.append(next(batches).flatten().tolist())
        training.step()
    training.saver.close()
    assert sorted(saved(tmp_path)) == list(range(1, 9))
    for start in (2, 3, 5):
        for path in tmp_path.glob("job-*"):
            if int(path.name[4:16]) > start:
                path.unlink()
        again, batches = made()
        resumed = {}
        for step in again.saver.steps(8):
            resumed[step] = next(batches).flatten().tolist()
            again.step()
        again.saver.close()
        assert resumed == {step: seen[step] for step in range(start, 8)}


@pytest.mark.parametrize("change", [by_data, in_place, replaced, loaded, momentum, buffers, rates])
@pytest.mark.parametrize("slow", [False, True])
def test_changes_at_the_top_of_the_next_iteration(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Training], None],
    *,
    slow: bool,
) -> None:
    """Before any optimizer steps, while the copy may still run: a version has the state of its
    boundary, or is none.
    """
    if slow:
        monkeypatch.setattr(Slot, "copy", slow_copy(0.002))
    training = Training(tmp_path, every=2)
    for step in training.saver.steps(8):
        if step:
            change(training)
        training.step()
        training.remember(step + 1)
    assert training.check()


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BareAgent]:
    (tmp_path / "agent").mkdir()
    bare = BareAgent(tmp_path / "agent")
    monkeypatch.setenv(AGENT, str(tmp_path / "agent"))
    yield bare
    bare.close()


def test_a_preemption_notice(agent: BareAgent, tmp_path: Path) -> None:
    """It is served at the next boundary, where training holds: what would follow is lost anyway."""
    training = Training(tmp_path / "versions", every=None)
    asked, numbers = threading.Event(), []

    def train() -> None:
        for step in training.saver.steps(4):
            numbers.append(step)
            if step == 1:
                assert asked.wait(20)
            training.step()
            training.remember(step + 1)

    thread = threading.Thread(target=train)
    thread.start()
    until(lambda: 1 in numbers)
    agent.board.request(SaveReason.EMERGENCY, int((time.time() + 60) * 1000))
    asked.set()
    (message,) = until(lambda: agent.told("saved"))
    assert (
        message["version"] == 2
        and message["save"][0] == SaveReason.EMERGENCY
        and message["error"] is None
    )
    until(lambda: agent.board.of_rank(0, RankFlag.HELD) == 2)
    assert numbers == [0, 1]
    agent.board.words[Flag.RESUMED] = 1
    thread.join(20)
    assert numbers == [0, 1, 2, 3]
    training.check([2, 4])


def test_a_notice_while_nothing_steps(agent: BareAgent, tmp_path: Path) -> None:
    """Iterations without a step of the optimizer have boundaries, too."""
    training = Training(tmp_path / "versions", every=None)
    agent.board.request(SaveReason.EMERGENCY, int((time.time() + 60) * 1000))
    agent.board.words[Flag.RESUMED] = 1
    for step in training.saver.steps(2):
        training.place.position += 1
        training.remember(step + 1)
    message, *_ = until(lambda: agent.told("saved"))
    assert message["version"] == 1 and message["error"] is None
    training.check([1, 2])


def test_steps_that_the_agent_counts(agent: BareAgent, tmp_path: Path) -> None:
    """Iterations, from the restored version on."""
    first = Training(tmp_path / "versions", every=2)
    first.run(4)
    first.saver.close()
    again = Training(tmp_path / "versions", every=None)
    assert again.run(6) == [4, 5]
    until(lambda: any(message["version"] == 4 for message in agent.told("restored")))
    again.saver.close()


@pytest.mark.slow
def test_two_ranks_resume_bit_for_bit(tmp_path: Path) -> None:
    """Random states, buffers and samplers are each rank's own."""
    whole = run_ranks(tmp_path, "whole", tmp_path / "a", 9, 3, lambda *_: None)
    assert [rank["start"] for rank in whole] == [0, 0]
    assert len({rank["random"] for rank in whole}) == 2
    run_ranks(tmp_path, "killed", tmp_path / "b", 9, 3, killed_after(6))
    again = run_ranks(tmp_path, "again", tmp_path / "b", 9, 3, lambda *_: None)
    assert [rank.pop("start") for rank in again] == [6, 6]
    assert again == [
        {name: value for name, value in rank.items() if name != "start"} for rank in whole
    ]


@pytest.mark.slow
def test_a_request_of_one_of_two_ranks(tmp_path: Path) -> None:
    """All ranks save the same version."""

    def ask(rank: int, step: int, saver: Checkpointer) -> None:
        time.sleep(0.05)  # ranks share requests a few times a second
        if rank == 1 and step == 1:
            saver.request_save()

    run_ranks(tmp_path, "asked", tmp_path / "a", 12, None, ask)
    (version,) = saved(tmp_path / "a")
    assert 2 <= version < 12
    again = run_ranks(tmp_path, "again", tmp_path / "a", 12, None, lambda *_: None)
    assert [rank["start"] for rank in again] == [version, version]


def test_a_loop_that_is_done_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = Training(tmp_path, every=2)
    first.run(4)
    first.saver.close()
    again = Training(tmp_path, every=2)
    assert not list(again.saver.steps(4))
    assert "all 4 iterations are already done" in caplog.text
