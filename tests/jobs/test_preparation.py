"""Machines that take long until they train: they say how far they are, and one that hangs is
replaced.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs.runs import Home, until

from deepvm.jobs.agent.controller_client import ControllerClient, Reporter
from deepvm.jobs.agent.liveness import ControllerLiveness
from deepvm.jobs.agent.preparation import AgentEnvironment, Preparation
from deepvm.jobs.controller.messages import beat_of
from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.reconcile import react
from deepvm.jobs.decisions.states import Machine
from deepvm.jobs.decisions.world import JobLimits, JobState, Pool
from deepvm.jobs.decisions.world_document import from_document, to_document
from deepvm.jobs.history.history import History
from deepvm.jobs.storage import data


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    yield found
    found.end()


def booting() -> JobState:
    world, _ = react(
        JobState(JobLimits(1, 1), 0.0, pools=(Pool("g4dn.xlarge", "z", "spot", 0.3),)),
        d.Tick(),
        0.0,
    )
    return react(world, d.Launched("m1", 1.0), 1.0)[0]


def test_a_machine_that_gets_further_may_take_as_long_as_it_needs() -> None:
    world = booting()
    for second in range(10, 5_000, 10):
        world, acts = react(
            world, d.Heartbeat("m1", preparing=f"fetches data: {second} of 5000 MB"), second
        )
        assert not acts and world.machines["m1"].state is Machine.WARMING, second
    world, acts = react(world, d.Heartbeat("m1", warm=True), 5_000.0)
    assert world.machines["m1"].state is Machine.MEMBER and not world.preparing


def test_a_machine_that_gets_no_further_is_replaced() -> None:
    world = booting()
    for second in range(10, 3_000, 10):
        text = f"fetches data: {min(second, 100)} of 5000 MB"
        world, acts = react(world, d.Heartbeat("m1", preparing=text), second)
        if acts:
            break
    assert second == 100 + 900 and d.Release("m1") in acts and d.Request("m2") in acts


def test_what_it_does_is_written_down_each_10_s() -> None:
    world, known = booting(), set[tuple[str, float]]()
    for tenth in range(20, 1_000):
        world, _ = react(
            world, d.Heartbeat("m1", preparing=f"runs setup, {tenth} lines so far"), tenth / 10
        )
        known.add(world.preparing["m1"])
    times = sorted(at_s for _, at_s in known)
    assert len(times) == 10 and all(b - a >= 10 for a, b in zip(times, times[1:], strict=False))
    again = from_document(json.loads(json.dumps(to_document(world))), world.machines)
    assert again.preparing == world.preparing


def test_what_a_machine_says_is_bounded() -> None:
    beat = {"generation": 0, "step": 0, "warm": False, "address": "a", "port": 1, "seen": ""}
    beat |= {"scheduled": 0, "wait_s": 0.0}
    assert beat_of("m1", beat).preparing == ""
    assert beat_of("m1", {**beat, "preparing": "x" * 10_000}).preparing == "x" * 200
    with pytest.raises(ValueError, match="valid string"):
        beat_of("m1", {**beat, "preparing": 3})


@pytest.mark.system
def test_a_setup(tmp_path: Path) -> None:
    around = AgentEnvironment("m1", b"", tmp_path, lambda: "", "")
    client = ControllerClient(around.controller, around.machine, around.secret)
    reporter = Reporter(client, over := threading.Event())
    over.set()
    preparation = Preparation(around, client, reporter, ControllerLiveness(1.0))
    said, printed = list[str](), list[str]()

    def both(line: str) -> None:
        said.append(preparation.doing)
        printed.append(line)

    environ = {"PATH": "/usr/bin:/bin"}
    failed, last = preparation.run_setup("seq 50; exit 3", tmp_path, environ, both)
    assert failed == 3 and printed == [f"setup: {n}" for n in range(1, 51)]
    assert last == printed[10:], "labeled as in the logs"
    assert said[0] == "runs setup" and preparation.doing == "runs setup, 50 lines so far"


def test_a_large_file_is_seen_to_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a slow disk: half of it, then the other half."""
    monkeypatch.setattr(data, "_SAY_S", 0.05)
    (tmp_path / "source").write_bytes(b"x" * 2_000_000)
    said = list[str]()

    def slowly(source: str, target: Path) -> None:
        with target.open("wb", buffering=0) as file:
            file.write(b"x" * 1_000_000)
            until(
                lambda: any(
                    line.startswith("data it: 1 MB of 2 MB, 0 of 1 files") for line in said
                ),
                10,
            )
            file.write(b"x" * 1_000_000)

    monkeypatch.setattr(data.shutil, "copyfile", slowly)
    data.have_data({"it": str(tmp_path / "source")}, tmp_path / "data", said.append)
    assert said[0].startswith("data it: 0 B of 2 MB") and said[-1].startswith(
        "data it: 2 MB of 2 MB, 1 of 1 files"
    )
    assert (tmp_path / "data" / "it").stat().st_size == 2_000_000


@pytest.mark.slow
def test_the_history_says_what_machines_prepare(home: Home) -> None:
    setup = "for n in $(seq 24); do echo $n; sleep 0.5; done"
    job = home.job("slow", "exec python own.py 20 0.02;", setup=setup)
    found = home.document("run", str(job))
    assert (found["state"], found["generations"], len(found["machines"])) == ("done", 1, 1)
    with History.open(home.env) as history:
        said = [event for event in history.events("slow") if event.kind == "preparing"]
    assert 2 <= len(said) <= 3 and all(event.facts["id"] == "m1" for event in said)
    assert said[-1].facts["doing"].startswith("runs setup, ")
