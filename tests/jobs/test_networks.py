"""Jobs whose machines have networks of their own: links that are cut without a word, notices in
short time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.effort import THOROUGH
from support.jobs.kills import CHAIN, final_of
from support.jobs.runs import Home, until
from support.pace import slowness
from support.profiling.namespaces import need_namespaces

from deepvm.jobs.clouds.netns import NetnsCloud
from deepvm.jobs.history.history import PLACE, History


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    need_namespaces()
    found = Home(tmp_path)
    (found.code / "chain.py").write_text(CHAIN)
    yield found
    found.end()


STEPS = 1800 if THOROUGH else 500


def started(home: Home, name: str, **more: Any) -> tuple[Any, Path]:
    """A job that has a version, and the folder of its backups."""
    job = home.job(
        name, f"exec python chain.py {STEPS};", cloud="netns", save_policy="static:20", **more
    )
    process = home.start("run", str(job))
    backups = home.folder / "data" / "deepvm" / "jobs" / name / "versions" / name / "backups"
    until(lambda: list(backups.glob("0*")))
    return process, backups


def finished(home: Home, process: Any, name: str) -> dict[str, Any]:
    """The final document of a job that ends well and leaves nothing."""
    try:
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.communicate()
    assert (home.result / "final-0").read_text() == final_of(STEPS)
    assert until(lambda: not home.processes(), 10)
    return home.document("jobs", "show", name)


@pytest.mark.skipif(
    not THOROUGH, reason="the thorough suite: it waits for the second deadline of a silent machine"
)
def test_a_machine_that_stays_silent_is_replaced(home: Home) -> None:
    name = f"cut{time.time_ns() % 10**9}"
    process, backups = started(home, name)
    NetnsCloud(home.jobs).cut(name, "m1")
    found = finished(home, process, name)
    assert (found["generations"], found["preemptions"], found["notices"]) == (2, 1, 0)
    assert [m["end_reason"] for m in found["machines"]] == ["lost", "released"]
    assert {int(folder.name.partition("-")[2]) for folder in backups.glob("0*")} == {2}


@pytest.mark.skipif(
    not THOROUGH, reason="the thorough suite: it waits for the second deadline of a silent machine"
)
def test_losses_that_nobody_hears_of(home: Home) -> None:
    """Of the injector: the first machine's link is taken away, and it lives on until it is given
    up.
    """
    name = f"silent{time.time_ns() % 10**9}"
    process, _ = started(home, name, inject={"lives": ["2s"], "silent": 1.0})
    found = finished(home, process, name)
    assert (found["generations"], found["preemptions"], found["notices"]) == (2, 1, 0)
    assert [m["end_reason"] for m in found["machines"]] == ["lost", "released"]


@pytest.mark.slow
def test_a_machine_that_comes_back_begins_a_new_generation(home: Home) -> None:
    """What its older trainers did in the dark is part of the training, or of nothing."""
    name = f"back{time.time_ns() % 10**9}"
    process, _ = started(home, name)
    cloud = NetnsCloud(home.jobs)
    cloud.cut(name, "m1")
    until(
        lambda: home.document("jobs", "show", name)["generations"] == 1 and _is_silent(home, name),
        20,
    )
    cloud.cut(name, "m1", down=False)
    found = finished(home, process, name)
    assert (found["generations"], found["preemptions"], len(found["machines"])) == (2, 0, 1)


def _is_silent(home: Home, name: str) -> bool:
    return "m1 has gone silent" in home.run("jobs", "show", name).stdout


@pytest.mark.parametrize("seed", range(10 if THOROUGH else 1))
def test_every_notice_of_five_seconds_is_heeded(home: Home, seed: int) -> None:
    count, steps = (10, 2000) if THOROUGH else (1, 200)
    name = f"notices{time.time_ns() % 10**9}"
    inject = {"mttp": "1s", "count": count, "grace": "5s", "seed": seed}
    job = home.job(name, f"exec python chain.py {steps};", cloud="netns", inject=inject)
    before = slowness()
    found = home.document("run", str(job))
    assert (found["state"], found["notices"], found["lost_steps"]) == ("done", count, 0)
    assert found["saves"]["emergency"] == count
    slow = 3 * max(before, slowness())
    for waited_s, limit_s in _confirmed(home, name, count):
        assert waited_s <= slow * limit_s, f"{waited_s:.2f} s; {limit_s:.2f} s on a quiet machine"
    assert (home.result / "final-0").read_text() == final_of(steps)


def _confirmed(home: Home, name: str, count: int) -> list[tuple[float, float]]:
    """From each notice to its version, seconds, and the limit: a step, half again the save's own
    time, and 0.3 s.
    """
    with History.open({PLACE: str(home.jobs.parent / "history.db")}) as history:
        events = history.events(name)
    notices = [e for e in events if e.kind == "noticed"]
    safe = [e for e in events if e.kind == "safe" and e.facts["reason"] == "emergency"]
    assert len(notices) == len(safe) == count
    found = []
    for notice, version in zip(notices, safe, strict=True):
        save_s = version.facts["took_s"] + version.facts["stall_s"]
        found.append((version.at_s - notice.at_s, version.facts["step_s"] + 1.5 * save_s + 0.3))
    return found
