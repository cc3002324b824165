"""``deepvm.training``: for scripts that save by themselves, with an agent and without."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs.agents import BareAgent

import deepvm.training as dt
from deepvm.errors import CheckpointError
from deepvm.io.agent_board import AGENT, Flag, RankFlag, SaveReason, ScheduledSave


@pytest.fixture
def fresh() -> Iterator[None]:
    importlib.reload(dt)
    yield
    if dt._training.link is not None:
        dt._training.link.close()
    importlib.reload(dt)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None) -> Iterator[BareAgent]:
    found = BareAgent(tmp_path)
    monkeypatch.setenv(AGENT, str(tmp_path))
    yield found
    found.close()


def test_without_an_agent_nothing_happens(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(AGENT, raising=False)
    with dt.step_context():
        pass
    dt.enter_step()
    dt.exit_step()
    dt.backup("/no/such/file")
    assert not dt.check_save() and dt.latest() is None


def test_it_imports_the_standard_library_alone() -> None:
    code = "import sys, deepvm.training; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (
        not set(done.stdout.split())
        - set(sys.stdlib_module_names)
        - {"deepvm", "__main__", "sitecustomize"}
        - {name for name in done.stdout.split() if name.startswith(("_", "a1_", "distutils"))}
    )


def test_a_save_is_due_once(agent: BareAgent) -> None:
    with dt.step_context():
        pass
    assert not dt.check_save()
    agent.board.request(SaveReason.USER, 0)
    with dt.step_context():
        pass
    assert dt.check_save() and not dt.check_save()
    assert agent.board.of_rank(0, RankFlag.STEP) == 2


def test_what_passes_between_steps_is_on_the_board(agent: BareAgent, tmp_path: Path) -> None:
    """Saves and the time before the first step are no waiting for data."""
    time.sleep(0.05)
    for step in range(1, 6):
        with dt.step_context():
            time.sleep(0.01)
        if step == 3:
            dt.backup(tmp_path)
            time.sleep(0.2)
        time.sleep(0.03)
    between_s, of_s = (
        agent.board.of_rank(0, word) / 1e9 for word in (RankFlag.BETWEEN_NS, RankFlag.OF_NS)
    )
    assert 3 * 0.03 <= between_s < 0.2 and between_s + 3 * 0.01 <= of_s < 0.3


def test_the_steps_of_the_job_file(
    agent: BareAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are counted from the very first one, by a script that goes on from a backup as well."""
    monkeypatch.setenv("DEEPVM_SAVE_EVERY", "4")
    agent.answers["latest"] = {"path": str(tmp_path), "step": 6}
    due = []
    assert dt.latest() == tmp_path
    for step in range(7, 18):
        with dt.step_context():
            pass
        if dt.check_save():
            due.append(step)
            dt.backup(tmp_path)
            assert not dt.check_save()
    assert due == [8, 12, 16]
    # Periodic
    assert {tuple(m["save"]) for m in agent.heard if m.get("ask") == "backup"} == {(0, 0, 0)}


def test_a_request_is_heard_in_an_evaluation_too(agent: BareAgent) -> None:
    assert not dt.check_save()
    agent.board.request(SaveReason.EMERGENCY, int(time.time() * 1000) + 50)
    assert dt.check_save()


def test_a_step_that_raises_does_not_count(agent: BareAgent) -> None:
    with pytest.raises(ZeroDivisionError), dt.step_context():
        raise ZeroDivisionError
    assert agent.board.of_rank(0, RankFlag.STEP) == 0


def test_a_backup_before_a_preemption_holds_the_training(agent: BareAgent, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("1")
    agent.board.request(SaveReason.EMERGENCY, int((time.time() + 60) * 1000))
    dt.enter_step()
    dt.exit_step()
    assert dt.check_save()
    dt.backup(tmp_path / "mine")
    message = agent.heard[-1]
    assert (
        message["ask"] == "backup"
        and message["path"] == str(tmp_path / "mine")
        and message["step"] == 1
    )
    assert message["save"][0] == SaveReason.EMERGENCY
    went_on = threading.Event()

    def train() -> None:
        dt.enter_step()
        went_on.set()

    threading.Thread(target=train, daemon=True).start()
    assert not went_on.wait(0.2)
    agent.board.words[Flag.RESUMED] = 1
    assert went_on.wait(5)


def test_a_backup_of_its_own_accord_holds_nothing(agent: BareAgent, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("1")
    dt.backup(tmp_path / "mine")
    assert agent.heard[-1]["save"][0] == SaveReason.NONE
    dt.enter_step()


def test_latest(agent: BareAgent) -> None:
    assert dt.latest() is None
    agent.answers["latest"] = {"path": "/somewhere/mine"}
    assert dt.latest() == Path("/somewhere/mine")
    agent.answers["latest"] = {"error": "the disk is gone"}
    with pytest.raises(CheckpointError, match="the disk is gone"):
        dt.latest()


def test_an_agent_that_is_gone_is_no_fresh_start(agent: BareAgent) -> None:
    dt.check_save()
    agent.socket.close()
    with pytest.raises(CheckpointError, match="does not answer"):
        dt.latest()


def test_a_forked_child_is_no_trainer(agent: BareAgent) -> None:
    with dt.step_context():
        pass
    child = os.fork()
    if not child:
        os.environ.pop(AGENT)
        with dt.step_context():
            pass
        os._exit(int(dt.check_save()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert agent.board.of_rank(0, RankFlag.STEP) == 1


def backups_of(agent: BareAgent) -> list[tuple[int, int]]:
    """Step and reason of each."""
    return [(m["step"], m["save"][0]) for m in agent.heard if m.get("ask") == "backup"]


def test_the_documented_loop(agent: BareAgent, tmp_path: Path) -> None:
    """``if i % 5 == 0 or check_save()``: the script's own saves are no answers to what was asked
    for before.
    """
    for i in range(1, 13):
        if i == 3:
            agent.board.request(SaveReason.INSURANCE, 0)
        with dt.step_context():
            pass
        if i % 5 == 0 or dt.check_save():
            time.sleep(0.05)
            dt.backup(tmp_path)
    assert backups_of(agent) == [
        (3, SaveReason.INSURANCE),
        (5, SaveReason.NONE),
        (10, SaveReason.NONE),
    ]
    assert [m["stall_s"] > 0 for m in agent.heard if m.get("ask") == "backup"] == [
        True,
        False,
        False,
    ]


def test_a_backup_at_a_step_that_is_due_is_enough(agent: BareAgent, tmp_path: Path) -> None:
    """The script saves there by itself, and does not ask: it need not save again a step later."""
    agent.board.words[Flag.DUE] = 5
    for i in range(1, 8):
        with dt.step_context():
            pass
        if i % 5 == 0 or dt.check_save():
            dt.backup(tmp_path)
    assert backups_of(agent) == [(5, SaveReason.NONE)]


def test_a_backup_of_its_own_before_a_preemption_holds(agent: BareAgent, tmp_path: Path) -> None:
    """It is what was asked for, also of a script that does not ask at this step."""
    with dt.step_context():
        pass
    limit_ms = int((time.time() + 0.2) * 1000)
    agent.board.request(SaveReason.EMERGENCY, limit_ms)
    with dt.step_context():
        pass
    dt.backup(tmp_path)
    assert backups_of(agent) == [(2, SaveReason.EMERGENCY)] and dt._training.holds
    assert not dt.check_save()


def test_a_rank_that_saves_nothing_says_so(
    agent: BareAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a preemption nobody must wait for its part.

    Otherwise the next step of rank 0 shows it.
    """
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for step, reason in (
        (2, SaveReason.EMERGENCY),
        (3, SaveReason.INSURANCE),
        (5, SaveReason.EMERGENCY),
    ):
        agent.board.schedule(step, ScheduledSave(reason, 0, step))
    for step in range(1, 7):
        with dt.step_context():
            pass
        if step == 5:
            assert dt.check_save()
            dt.backup(tmp_path)
        elif step > 2:
            dt.check_save()
    deadline = time.monotonic() + 5
    while not agent.told("nothing") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [(m["step"], m["world"], m["rank"]) for m in agent.told("nothing")] == [(2, 2, 1)]


def test_messages_name_their_generation(agent: BareAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPVM_EPOCH", "7")
    assert dt.latest() is None
    assert agent.heard[-1]["epoch"] == 7
