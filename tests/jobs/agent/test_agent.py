"""A machine's agent from its start to its end, under orders of a test."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.jobs.metadata_services import Imds
from support.jobs.real_agents import Commander, running
from support.jobs.runs import until

from deepvm.io.agent_board import RankWord
from deepvm.jobs.agent.agent import Agent, Orders
from deepvm.jobs.agent.preparation import Surroundings

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


@WHOLE
def test_a_setup_that_a_signal_ends(commander: Commander, tmp_path: Path) -> None:
    """It is as failed as any: nothing is trained after it, and a restart does not take it for done."""
    commander.spec |= {"setup": "echo too large; kill -9 $$", "train": f"touch {tmp_path}/trained;"}
    commander.run(1, "m1")
    with running(commander, tmp_path / "m1") as agent:
        assert agent.wait(20) != 0
        (failed,) = commander.heard("setup-failed")
        assert failed["code"] == 137 and failed["lines"] == ["too large"]
    assert not (tmp_path / "m1" / "agent" / "setup-done").exists() and not (tmp_path / "trained").exists()


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
def test_a_notice_during_the_setup_is_heard(commander: Commander, imds: Imds, tmp_path: Path) -> None:
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
        assert ended["code"] == 127 and ended["lines"] == ["python: No such file or directory"]
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
    """They look at the board at any time, also while it is replaced; and say no step of an older one."""
    agent = Agent(Surroundings("m1", b"", tmp_path, lambda: commander.url, "127.0.0.1"), None)
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
            agent._change(Orders(generation=generation, ranks=[mine]))
        assert agent._board is not None
        agent._board.set_of_rank(0, RankWord.STEP, generation)
    still = beats.is_alive()
    agent._over.set()
    beats.join()
    assert still, "the thread of the heartbeats is gone"
    assert len(said) > 500 and all(not beat["step"] or beat["step"] >= beat["generation"] for beat in said)


def test_what_trainers_of_an_older_generation_say_does_not_count(commander: Commander, tmp_path: Path) -> None:
    """They were killed, and their last message is answered after the next ones have begun."""
    agent = Agent(Surroundings("m1", b"", tmp_path, lambda: commander.url, "127.0.0.1"), None)
    agent._running = 2
    saved = {"tell": "saved", "version": 900, "save": [0, 0, 0], "took_s": 1.0, "stall_s": 0.0}
    assert "generation 1 is over" in agent._answer({**saved, "epoch": 1})["error"]
    assert agent._safe == 0 and "version" not in str(agent._reporter._events)
    assert agent._answer({**saved, "epoch": 2}) == {} and agent._safe == 900
    agent._over.set()
    agent._reporter.join()
