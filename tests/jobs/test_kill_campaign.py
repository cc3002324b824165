"""Whatever is killed, the job ends with the right result, and nothing is left."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.effort import THOROUGH
from support.jobs.campaign import SERVICE, VICTIMS, Campaign
from support.jobs.kills import CHAIN, TORCH, final_of, nothing_is_left, stale, undisturbed
from support.jobs.runs import Home
from support.profiling.namespaces import need_namespaces

from deepvm.jobs.decisions.states import Job, Machine

INJECT = {"mttp": "12s", "count": 3, "grace": "4s", "missed": 0.3}
CUTS = {**INJECT, "missed": 0.2, "silent": 0.2}
"""Where links can be cut: else no machine lives on while it is taken for gone."""
EACH = 9
CHAINS, TORCHES = 14, 12
"""Jobs of the thorough campaign."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = with_trainings(tmp_path)
    yield found
    found.end()


def with_trainings(folder: Path) -> Home:
    folder.mkdir(exist_ok=True)
    found = Home(folder)
    (found.code / "chain.py").write_text(CHAIN)
    (found.code / "train.py").write_text(TORCH)
    return found


def ends_well(home: Home, name: str, results: set[str], count: int) -> None:
    assert {(home.result / f"final-{rank}").read_text() for rank in range(count)} == results
    assert nothing_is_left(home, name)["state"] == "done"


@pytest.mark.slow
def test_it_ends_with_the_right_result(home: Home) -> None:
    job = home.job("kills", "exec python chain.py 600;", save_policy="static:25")
    Campaign().run(home, job, "kills", 0, kills=5)
    ends_well(home, "kills", {final_of(600)}, 1)


@pytest.mark.parametrize(
    ("restored", "backups", "seen"),
    [
        ("1 0 0\n2 40 1\n3 40 1\n4 80 3\n", ["40-1", "80-3"], 0),
        ("1 0 0\n2 40 1\n3 60 1\n", ["40-1"], 1),  # the first has saved after the second had begun
        ("1 0 0\n2 40 1\n", ["40-1", "60-1"], 1),
    ],
)
def test_what_is_stale_is_seen(home: Home, restored: str, backups: list[str], seen: int) -> None:
    (home.result / "restored-0").write_text(restored)
    for name in backups:
        step, epoch = map(int, name.split("-"))
        folder = home.jobs / "job" / "versions" / "job" / "backups" / f"{step:012d}-{epoch:09d}"
        folder.mkdir(parents=True)
        (folder / "whole.json").touch()
    assert len(stale(home, "job")) == seen


@pytest.mark.slow
@pytest.mark.skipif(not THOROUGH, reason="the thorough suite: half an hour")
def test_two_hundred_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of everything, in every state.

    All jobs have a memory node, some two ranks with a Checkpointer.

    Nothing can be hit on a machine that is ENDED or FAILED: nothing runs there. One that is
    RELEASING or LOST is told to end in the same moment, and has milliseconds left:
    tests/jobs/test_kill_points.py kills on both sides of these.
    """
    need_namespaces()
    pytest.importorskip("torch")
    campaign, steps = Campaign(), 600
    right = undisturbed(with_trainings(tmp_path / "calm"), steps)

    def chain(number: int) -> None:
        count, cloud = 1 + number % 2, ("netns", "local")[number % 3 == 2]
        inject = {**(CUTS if cloud == "netns" else INJECT), "seed": number}
        more: dict[str, Any] = {"cloud": cloud, "inject": inject, "anchor": {"type": "m7g.large"}}
        run(
            f"c{number}",
            {final_of(5000)},
            "exec python chain.py 5000;",
            count,
            save_policy="static:25",
            **more,
        )

    def torch(number: int) -> None:
        more: dict[str, Any] = {
            "cloud": "netns",
            "inject": {**CUTS, "seed": number},
            "anchor": {"type": "m7g.large"},
        }
        run(f"t{number}", {right}, f"python train.py {steps} 0.1", 2, **more)

    def run(what: str, results: set[str], train: str, count: int, **more: Any) -> None:
        # Networks are everybody's
        home, name = with_trainings(tmp_path / what), f"{what}at{time.time_ns() % 10**9}"
        try:
            campaign.run(home, home.job(name, train, count, **more), name, int(what[1:]), EACH)
            ends_well(home, name, results, count)
        except Exception as error:
            raise AssertionError(f"{what}: {error}") from error
        finally:
            home.end()

    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(torch, n) for n in range(TORCHES)] + [
            pool.submit(chain, n) for n in range(CHAINS)
        ]
    with capsys.disabled():
        sys.stdout.write(f"\n{campaign.table()}\n")
    wrong = [error for error in (one.exception() for one in done) if error is not None]
    assert not wrong, "\n\n".join(map(str, wrong))
    assert sum(campaign.seen.values()) >= 200
    assert {kill.victim for kill in campaign.seen} == {*VICTIMS, SERVICE}
    assert {kill.job for kill in campaign.seen} >= {
        s.value for s in (Job.PENDING, Job.FORMING, Job.RUNNING, Job.SAVING)
    }
    unhit = (Machine.RELEASING, Machine.LOST, Machine.ENDED, Machine.FAILED)
    assert {kill.machine for kill in campaign.seen} >= {s.value for s in Machine if s not in unhit}
