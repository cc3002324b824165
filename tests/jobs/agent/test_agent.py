"""A machine's agent from its start to its end, under orders of a test."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.jobs.metadata_services import Imds
from support.jobs.real_agents import Commander, running
from support.jobs.runs import until

from deepvm.io.agent_board import Flag, RankFlag, SaveReason, ScheduledSave
from deepvm.io.agent_link import AgentLink
from deepvm.jobs.agent.agent import Agent
from deepvm.jobs.agent.backups import Backups
from deepvm.jobs.agent.controller_client import LINE, DesiredState
from deepvm.jobs.agent.preparation import AgentEnvironment

WHOLE = pytest.mark.slow  # a whole agent


@pytest.fixture
def commander() -> Iterator[Commander]:
    found = Commander()
    yield found
    found.stop()


@pytest.fixture
def imds() -> Iterator[Imds]:
    found = Imds()
    yield found
    found.close()


def test_orders_of_a_newer_controller() -> None:
    """It may say more; what is known here is obeyed."""
    assert DesiredState.of({"digest": "d", "generation": 3, "color": "red"}) == DesiredState(
        "d", generation=3
    )


@WHOLE
def test_a_setup_that_a_signal_ends(commander: Commander, tmp_path: Path) -> None:
    """It counts as failed: nothing is trained after it, and a restart runs it again."""
    commander.spec |= {"setup": "echo too large; kill -9 $$", "train": f"touch {tmp_path}/trained;"}
    commander.run(1, "m1")
    with running(commander, tmp_path / "m1") as agent:
        assert agent.wait(20) != 0
        (failed,) = commander.heard("setup-failed")
        assert failed["code"] == 137 and failed["lines"] == ["setup: too large"]
    assert (
        not (tmp_path / "m1" / "agent" / "setup-done").exists()
        and not (tmp_path / "trained").exists()
    )


@WHOLE
def test_an_orphan_in_its_setup_ends(commander: Commander, tmp_path: Path) -> None:
    commander.spec |= {"setup": f"sleep 60; touch {tmp_path}/survived", "orphan_after_s": 1.0}
    with running(commander, tmp_path / "m1") as agent:
        until(lambda: any(beat["preparing"].startswith("runs setup") for beat in commander.beats))
        commander.stop()
        assert agent.wait(20) == 0
        sleeping = [p for p in Path("/proc").glob("[0-9]*/environ") if _names(p, tmp_path / "m1")]
        assert not sleeping


def _names(environ: Path, folder: Path) -> bool:
    try:
        return str(folder).encode() in environ.read_bytes()
    except OSError:
        return False


@WHOLE
def test_a_notice_during_the_setup_is_heard(
    commander: Commander, imds: Imds, tmp_path: Path
) -> None:
    commander.spec["setup"] = "sleep 60"
    with running(commander, tmp_path / "m1", metadata=imds.url):
        until(lambda: any(beat["preparing"].startswith("runs setup") for beat in commander.beats))
        imds.notice(time.time() + 100)
        until(lambda: commander.heard("notice"), 20)
        assert commander.beats[-1]["preparing"]


@WHOLE
def test_an_interpreter_that_is_not_there(commander: Commander, tmp_path: Path) -> None:
    """The controller hears of it, rather than of a machine that is gone."""
    commander.spec |= {"train": "python train.py", "env": {"PATH": "/nowhere"}}
    commander.run(1, "m1")
    with running(commander, tmp_path / "m1") as agent:
        (ended,) = until(lambda: commander.heard("ended"), 20)
        assert ended["code"] == 127 and ended["lines"] == [
            "command not found: 'python', PATH=/nowhere"
        ]
        assert agent.poll() is None


class NoTrainers:
    """Trainers of an agent, without any process."""

    running: Sequence[Any] = ()
    warm = True

    def warm_up(self) -> None: ...

    def start(self, each: Sequence[Mapping[str, str]]) -> None: ...

    def kill(self) -> None: ...


def test_heartbeats_go_on_from_generation_to_generation(
    commander: Commander, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They look at the board at any time, also while it is replaced.

    And say no step of an older one.
    """
    agent = Agent(AgentEnvironment("m1", b"", tmp_path, lambda: commander.url, "127.0.0.1"), None)
    agent._trainers = NoTrainers()  # type: ignore[assignment]
    agent._trainers.command = type("Command", (), {"processes": 1})()  # type: ignore[union-attr, misc]
    agent._prepared.set()
    said: list[Mapping[str, Any]] = []

    def heard(path: str, message: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        said.append(message)
        return {"same": True}

    monkeypatch.setattr(agent._clients["beat"], "ask", heard)
    beats = threading.Thread(target=agent._beats)
    beats.start()
    mine = {"machine": "m1", "processes": 1, "address": "127.0.0.1"}
    for generation in range(1, 500):
        with agent._lock:
            agent._change(DesiredState(generation=generation, ranks=[mine]))
        assert agent._board is not None
        agent._board.set_of_rank(0, RankFlag.STEP, generation)
    still = beats.is_alive()
    agent._over.set()
    beats.join()
    assert still, "the thread of the heartbeats is gone"
    assert all(beat["warm"] and not beat["preparing"] for beat in said)
    assert len(said) > 500 and all(
        not beat["step"] or beat["step"] >= beat["generation"] for beat in said
    )


def test_what_trainers_of_an_older_generation_say_does_not_count(
    commander: Commander, tmp_path: Path
) -> None:
    """They were killed, and their last message is answered after the next ones have begun."""
    agent = Agent(AgentEnvironment("m1", b"", tmp_path, lambda: commander.url, "127.0.0.1"), None)
    agent._running = 2
    saved = {"tell": "saved", "version": 900, "save": [0, 0, 0], "took_s": 1.0, "stall_s": 0.0}
    assert "generation 1 is over" in agent._answer({**saved, "epoch": 1})["error"]
    assert agent._safe == 0 and "version" not in str(agent._reporter._events)
    assert agent._answer({**saved, "epoch": 2}) == {} and agent._safe == 900
    agent._over.set()
    agent._reporter.join()


class Rank:
    """A trainer's side of an agent that a test drives: it holds in a thread."""

    def __init__(self, agent: Agent, rank: int, world: int) -> None:
        agent._trainers = NoTrainers()  # type: ignore[assignment]
        agent._trainers.command = type("Command", (), {"processes": 1})()  # type: ignore[union-attr, misc]
        self.agent, self.step = agent, 0
        ranks = [
            {"machine": f"m{n + 1}", "processes": 1, "address": "127.0.0.1"} for n in range(world)
        ]
        self.orders = DesiredState(generation=1, ranks=ranks)
        agent._change(self.orders)
        assert agent._board is not None
        self.board = agent._board
        folder = agent._around.folder
        self.link = AgentLink(folder, rank=rank, local_rank=0, world=world, local_world=1, epoch=1)
        self._holding = threading.Thread()

    def told(self, asked_s: float | None, left_s: float = 60.0) -> None:
        """What the next heartbeat brings."""
        save = (
            None
            if asked_s is None
            else {"reason": SaveReason.EMERGENCY, "asked_s": asked_s, "left_s": left_s}
        )
        self.agent._obey(replace(self.orders, save=save))
        self.agent._save(self.agent._orders, self.board)

    def steps(self, scheduled: ScheduledSave | None = None) -> ScheduledSave | None:
        """Do a step; hold behind it if a version is due, as if it had been saved."""
        self.step += 1
        if scheduled is not None:
            self.board.schedule(self.step, scheduled)
        save = self.link.stepped(self.step, 1000)
        if save is not None:
            self._holding = threading.Thread(
                target=self.link.hold, args=(self.step, save), daemon=True
            )
            self._holding.start()
            until(lambda: self.board.of_rank(0, RankFlag.HELD) == self.step)
        return save

    def goes_on(self) -> bool:
        if self._holding.ident is None:
            return True
        self._holding.join(1.0)
        return not self._holding.is_alive()

    def close(self) -> None:
        self.board.words[Flag.RESUMED] = 2**63
        assert self.goes_on()
        self.link.close()


def agent_of(folder: Path, machine: str) -> Agent:
    return Agent(
        AgentEnvironment(machine, b"", folder, lambda: "http://127.0.0.1:9", "127.0.0.1"), None
    )


def test_a_save_that_is_retried_between_two_heartbeats_is_saved_anew(tmp_path: Path) -> None:
    """The version for which trainers hold has failed: it is not the one requested now."""
    agent = agent_of(tmp_path, "m1")
    rank = Rank(agent, 0, 1)
    rank.told(1.0)
    first = rank.steps()
    assert first is not None and first.request == 1
    agent._save_reported({"version": 1, "save": list(first), "error": "the bucket is full"})
    rank.told(3.0)
    assert rank.goes_on(), "it holds for a version that has failed"
    again = rank.steps()
    assert again is not None and (again.request, again.reason) == (2, SaveReason.EMERGENCY)
    assert not rank.goes_on(), "what it did next would be lost"
    rank.told(3.0)  # the same order
    assert not rank.goes_on() and rank.board.words[Flag.REQUEST] == 2
    rank.told(None)
    assert rank.goes_on() and agent._there == 0
    rank.close()
    agent._over.set()
    agent._reporter.join()


def test_ranks_of_other_machines_go_on_with_it(tmp_path: Path) -> None:
    """Rank 0 has the next step marked, in which they take part."""
    agent = agent_of(tmp_path, "m2")
    rank = Rank(agent, 1, 2)
    rank.told(1.0)
    assert (
        rank.steps(ScheduledSave(SaveReason.EMERGENCY, int((time.time() + 60) * 1000), 1))
        is not None
    )
    rank.told(3.0)
    assert rank.goes_on()
    assert (
        rank.steps(ScheduledSave(SaveReason.EMERGENCY, int((time.time() + 60) * 1000), 2))
        is not None
    )
    assert not rank.goes_on()
    rank.close()


@pytest.mark.parametrize(
    ("safe", "unsaved"), [(None, "step 7"), (4, "not saved so far: 3 steps after it"), (7, "")]
)
def test_steps_that_are_not_saved_in_time_are_named_in_the_logs(
    safe: int | None, unsaved: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """That of the machine, and that of the trainers; once."""
    agent = agent_of(tmp_path, "m1")
    rank = Rank(agent, 0, 1)
    rank.board.set_of_rank(0, RankFlag.STEP, 7)
    if safe is not None:
        agent._save_reported(
            {
                "version": safe,
                "save": list(ScheduledSave(SaveReason.NONE)),
                "took_s": 0,
                "stall_s": 0,
            }
        )
    rank.told(1.0)
    assert not caplog.messages
    for _ in range(2):
        rank.told(2.0, left_s=0.5)
    lines = [event["text"] for event in agent._reporter._events if event["event"] == LINE]
    assert len(lines) == bool(unsaved) and lines == [
        f"deepvm: {message}" for message in caplog.messages
    ]
    assert all(
        unsaved in line and line.startswith("deepvm: the time to save is over: ") for line in lines
    )
    rank.close()
    agent._over.set()
    agent._reporter.join()


def test_a_backup_that_is_refused_at_once_has_failed(tmp_path: Path) -> None:
    """The controller hears of it, not the log alone: with the wrong tiers all are."""
    agent = agent_of(tmp_path, "m1")
    rank = Rank(agent, 0, 1)
    agent._backups = Backups(None, tmp_path / "here")
    wrong = {
        "ask": "backup",
        "path": str(tmp_path),
        "step": 3,
        "save": list(ScheduledSave(SaveReason.INSURANCE)),
    }
    found = agent._answer({**wrong, "epoch": 1, "rank": 0, "local_rank": 0, "world": 1})
    assert "none of the job's tiers takes backups" in found["error"]
    (said,) = (e for e in agent._reporter._events if e["event"] == "unsaved")
    assert (said["reason"], said["why"]) == (SaveReason.INSURANCE, found["error"])
    rank.close()
    agent._over.set()
    agent._reporter.join()


def test_a_step_that_the_controller_does_not_have_saved_has_failed(tmp_path: Path) -> None:
    agent = agent_of(tmp_path, "m1")
    rank = Rank(agent, 0, 2)
    agent._orders = rank.orders
    asked = {
        "ask": "schedule",
        "step": 3,
        "save": list(ScheduledSave(SaveReason.INSURANCE)),
        "epoch": 1,
    }
    assert agent._answer({**asked, "peers": True})["error"]
    assert not [e for e in agent._reporter._events if e["event"] == "unsaved"], (
        "the ranks agree over their own store"
    )
    assert agent._answer({**asked, "peers": False})["error"]
    (said,) = (e for e in agent._reporter._events if e["event"] == "unsaved")
    assert said["why"].startswith("step 3 is not marked: ")
    rank.close()
    agent._over.set()
    agent._reporter.join()


def test_a_rank_that_comes_late_to_a_save_that_has_failed_does_not_hold(tmp_path: Path) -> None:
    rank = Rank(agent_of(tmp_path, "m2"), 1, 2)
    rank.told(1.0)
    failed = ScheduledSave(SaveReason.EMERGENCY, int((time.time() + 60) * 1000), 1)
    rank.board.schedule(1, failed)
    rank.told(3.0)
    assert rank.link.stepped(1, 1000) == failed
    began = time.monotonic()
    rank.link.hold(1, failed)
    assert time.monotonic() - began < 5.0
    rank.close()


def test_what_ranks_have_saved_by_themselves_is_what_the_controller_asks_for(
    tmp_path: Path,
) -> None:
    agent = agent_of(tmp_path, "m1")
    rank = Rank(agent, 0, 1)
    number = rank.board.request(SaveReason.EMERGENCY, int((time.time() + 60) * 1000))
    save = rank.steps()
    assert save is not None and save.request == number
    rank.told(1.0)
    assert agent._there == 1 and rank.board.words[Flag.REQUEST] == number and not rank.goes_on()
    rank.close()
