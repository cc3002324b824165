"""Without a fence, an intent or an agreement a scenario fails: the tests of these promises can see
them broken.

The same of memory nodes and buckets is beside their own tests: test_generations.py,
test_bucket_generations.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.effort import THOROUGH
from support.jobs.campaign import processes, world_of
from support.jobs.kills import CHAIN, MUTATIONS, SYNCED, arm, nothing_is_left, stale
from support.jobs.markets import meets_the_deadline
from support.jobs.runs import Home, until
from support.jobs.simulation import Faults, Simulation, finished
from support.profiling.namespaces import need_namespaces

from deepvm.checkpoint.files.version_dir import EpochFile
from deepvm.errors import CheckpointError
from deepvm.jobs.agent.backups import Backups, open_backups
from deepvm.jobs.clouds.netns import NetnsCloud
from deepvm.jobs.decisions import apply_events as heard
from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions import markets
from deepvm.jobs.decisions.world import JobLimits, JobState
from deepvm.jobs.storage.backup_store import Part


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    (found.code / "synced.py").write_text(SYNCED)
    (found.code / "chain.py").write_text(CHAIN)
    yield found
    found.end()


def mutated(home: Home, name: str) -> None:
    home.env |= {
        "JOBS_MUTATION": name,
        "PYTHONPATH": os.pathsep.join([str(MUTATIONS), home.env.get("PYTHONPATH", "")]),
    }


# --- no intent before the call --------------------------------------------------------------------


def adopted(home: Home) -> None:
    """A controller is killed when its cloud has made the machine: it is known, and the next one
    goes on with it.
    """
    arm(home, ["cloud.after-request"])
    process = home.start("run", str(home.job("intent", "exec python own.py 60 0.02;")))
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    alive = {orphan["machine"] for orphan in home.document("jobs", "orphans")["orphans"]}
    known = {machine["id"] for machine in home.document("jobs", "show", "intent")["machines"]}
    assert alive == known == {"m1"}, "a machine that is not written down"
    found = home.document("jobs", "resume", "intent")
    assert (found["preemptions"], found["generations"], len(found["machines"])) == (0, 1, 1)


@pytest.mark.slow
def test_a_machine_is_adopted_that_was_asked_for_before_a_kill(home: Home) -> None:
    adopted(home)


@pytest.mark.slow
def test_no_intent_is_noticed(home: Home) -> None:
    mutated(home, "no-intent")
    with pytest.raises(AssertionError, match="not written down"):
        adopted(home)


# --- ranks that save different steps --------------------------------------------------------------


def agreed(home: Home) -> None:
    """Every version has all ranks."""
    job = home.job("agreed", "exec python synced.py 90;", count=2, save_policy="static:20")
    assert home.document("run", str(job))["state"] == "done"
    versions = list((home.jobs / "agreed" / "versions" / "agreed" / "backups").glob("0*-*"))
    assert versions
    for version in versions:
        assert {rank.parent.name for rank in version.glob("rank-*/record.json")} == {
            "rank-0",
            "rank-1",
        }, version.name
        assert json.loads((version / "whole.json").read_text())["ranks"] == 2


@pytest.mark.slow
def test_all_ranks_save_the_same_step(home: Home) -> None:
    pytest.importorskip("torch")
    agreed(home)


@pytest.mark.slow
def test_no_agreement_is_noticed(home: Home) -> None:
    pytest.importorskip("torch")
    mutated(home, "no-agreement")
    with pytest.raises(AssertionError, match="rank-"):
        agreed(home)


# --- no fence -------------------------------------------------------------------------------------


def fenced(home: Home) -> None:
    """A machine dies.

    The other, which trains on alone, loses its link, and saves until it is given up.
    """
    name = f"fence{time.time_ns() % 10**9}"
    more: dict[str, Any] = {
        "count": {"min": 1, "max": 2},
        "cloud": "netns",
        "save_policy": "static:20",
    }
    process = home.start("run", str(home.job(name, "exec python chain.py 3000;", **more)))

    def seen(what: Callable[[JobState], Any]) -> JobState:
        found = until(
            lambda: (world := world_of(home, name)) is not None and what(world) and world, 60
        )
        assert isinstance(found, JobState)
        return found

    first, second = seen(lambda world: len(world.started) == 2).members
    (pid,) = (p for p in processes(home, "machine") if f"/{second} " in _words(p))
    os.kill(pid, signal.SIGKILL)
    seen(lambda world: world.generation == 2 and world.started == {first})
    NetnsCloud(home.jobs).cut(name, first)
    shown = set[str]()  # what is newer is made, and older versions go
    seen(lambda world: shown.update(stale(home, name)) or world.machines[first].state.over)
    home.hurry()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert not shown, shown
    assert nothing_is_left(home, name)["generations"] >= 3


@pytest.mark.slow
def test_what_a_machine_that_was_thought_lost_saves_is_refused(home: Home) -> None:
    need_namespaces()
    fenced(home)


@pytest.mark.slow
def test_no_fence_is_noticed(home: Home) -> None:
    need_namespaces()
    mutated(home, "no-fence")
    with pytest.raises(AssertionError, match="of generation 2, and generation 3 found only"):
        fenced(home)


def _words(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() + " "


def fenced_backups(folder: Path) -> None:
    """A machine that was thought lost ends a backup after the next generation has begun."""
    older, newer = (
        Backups(open_backups([folder.as_uri()], "job"), folder / name) for name in ("one", "two")
    )
    file = folder / "file"
    file.write_text("by the older generation")
    assert newer.latest(0, 2) is None
    assert older._store is not None
    with contextlib.suppress(CheckpointError):
        older._store.save(file, Part(40, 0, 1))
        older._store.seal(Part(40, 0, 1), 1)
    assert newer.latest(0, 2) is None, "a version of an older epoch is visible"


def test_backups_of_an_older_generation_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fenced_backups(tmp_path)
    monkeypatch.setattr(EpochFile, "_check", lambda self, epoch: None)
    with pytest.raises(AssertionError, match="older epoch"):
        fenced_backups(tmp_path)


def fenced_folder(folder: Path) -> None:
    EpochFile(folder, "job").begin(2)
    with pytest.raises(CheckpointError), EpochFile(folder, "job").current(1):
        (folder / "version").touch()
    assert not (folder / "version").exists()


def test_commits_of_an_older_generation_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fenced_folder(tmp_path)
    monkeypatch.setattr(EpochFile, "_check", lambda self, epoch: None)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        fenced_folder(tmp_path)


def simulated(seeds: range) -> None:
    for seed in seeds:
        faults = Faults(notices=3, losses=2, cuts=2)
        simulation = Late(random.Random(seed), JobLimits(1, 2), faults)
        finished(simulation)


class Late(Simulation):
    """What trainers of an older generation have said arrives behind the start of the next one."""

    def obey(self, machine: Any) -> None:
        was = machine.generation
        super().obey(machine)
        if was and machine.generation != was:
            self.at(2.0, lambda: self.feed(d.Ended(machine.id, was, 0, self.total)) and None)


def test_reports_of_an_older_generation_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = range(60 if THOROUGH else 15)
    simulated(seeds)
    true = heard._of_generation
    monkeypatch.setattr(
        heard, "_of_generation", lambda w, e: true(w, replace(e, generation=w.generation))
    )
    with pytest.raises(AssertionError, match="steps are missing"):
        simulated(seeds)


# --- no safety net for the deadline ---------------------------------------------------------------


def deadlines_met(policy: str) -> None:
    for seed in range(20):
        meets_the_deadline(seed, policy, 1 + seed % 2, 0.4, 2, 1, 150.0, 0.0, 100.0)


@pytest.mark.parametrize("policy", ["greedy", "uniform-progress"])
def test_no_safety_net_is_noticed(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines_met(policy)
    monkeypatch.setattr(markets, "_kept", lambda world, policy, now: world)
    with pytest.raises(AssertionError, match="the deadline has come"):
        deadlines_met(policy)
