"""``deepvm jobs orphans`` where clouds do not answer, and controllers that begin and end beside
each other.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
from support.jobs.runs import Home, until

from deepvm.cli.jobs import jobs_group
from deepvm.errors import RequestError
from deepvm.io.file_lock import FileLock
from deepvm.jobs.cloud import Listing, UnknownError
from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import JobLimits, JobState, MachineRecord, Pool
from deepvm.jobs.history.history import PLACE, History
from deepvm.jobs.orphans import Search, search
from deepvm.jobs.standing import LOCK, JobLine, job_lines, standing_of
from deepvm.reports.text import print_text


class Cloud:
    """Has one machine of each job; fails as it is told."""

    def __init__(self, *, fails: str = "") -> None:
        self.fails, self.ended = fails, list[str]()

    def listing(self, job: str) -> Listing:
        if self.fails == "listing":
            raise UnknownError("no network")
        return Listing({"m1": 1.0, "m2": 2.0})

    def release(self, job: str, machine: str) -> None:
        if self.fails == machine:
            raise UnknownError("throttled")
        self.ended.append(machine)


@pytest.mark.parametrize(
    ("fails", "found", "ended", "problem"),
    [
        ("", 4, ["m1", "m2"], ""),
        ("listing", 2, [], "one: no network"),
        ("m1", 4, ["m2"], "one, m1: throttled"),
        ("open", 2, [], "one: no such region"),
    ],
)
def test_a_cloud_that_fails_hides_no_others(
    tmp_path: Path, fails: str, found: int, ended: list[str], problem: str
) -> None:
    bad, good = Cloud(fails=fails), Cloud()

    def cloud_of(name: str) -> Cloud:
        if name == "bad" and fails == "open":
            raise UnknownError("no such region")
        return bad if name == "bad" else good

    world = JobState(JobLimits(1, 1), 0.0, pools=(Pool("g4dn.xlarge", "z", "spot", 0.3),))
    with History.open({PLACE: str(tmp_path / "h.db")}) as history:
        for name, cloud in (("one", "bad"), ("two", "good")):
            (tmp_path / name).mkdir()
            history.add_job(name, 0.0, tmp_path / name, {"cloud": cloud}, world)
        result = search(history, cloud_of, release=True)  # type: ignore[arg-type]
    assert len(result.orphans) == found and result.problems == ([problem] if problem else [])
    assert bad.ended == ended and good.ended == ["m1", "m2"]


class LiveCloud(Cloud):
    """Lists what was not released, and of that when it ended if it ``knows``."""

    def __init__(self, *, knows: bool = True) -> None:
        super().__init__()
        self.knows = knows

    def listing(self, job: str) -> Listing:
        alive = {name: 1.0 for name in ("m1", "m2") if name not in self.ended or not self.knows}
        return Listing(alive, {name: (1.0, 90.0) for name in self.ended if self.knows})


@pytest.mark.parametrize("knows", [True, False])
def test_the_bill_of_a_released_machine_ends(
    tmp_path: Path, knows: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = Pool("g4dn.xlarge", "z", "spot", 0.3)
    machines = {
        name: MachineRecord(name, pool, 0.0, Machine.MEMBER, launched_s=1.0, ready_s=5.0)
        for name in ("m1", "m2")
    }
    world = JobState(JobLimits(1, 2), 50.0, Job.SAVING, machines, pools=(pool,), generation=1)
    (tmp_path / "one").mkdir()
    cloud = LiveCloud(knows=knows)
    with History.open({PLACE: str(tmp_path / "h.db")}) as history:
        history.add_job("one", 0.0, tmp_path / "one", {"cloud": "local"}, world)
        history.commit("one", replace(world, machines={}), world, [])

        def line(now_s: float) -> JobLine:
            return job_lines(history, now_s)[0]

        assert line(1e9).machines == 2
        result = search(history, lambda _: cloud, release=True)  # type: ignore[arg-type]
        assert not result.problems and cloud.ended == ["m1", "m2"]
        first, later = line(time.time()), line(time.time() + 1e6)
        assert (first.machines, first.cost_usd) == (0, later.cost_usd)
        ends = [m.ended_s for m in history.world("one").machines.values()]
        assert ends == [90.0, 90.0] or not knows and time.time() - max(map(float, ends)) < 60  # type: ignore
        events = history.events("one")
        assert [(e.kind, e.facts["id"], e.facts["why"]) for e in events] == [
            ("machine", "m1", "released"),
            ("machine", "m2", "released"),
        ]
        row = history.job("one")
        assert row is not None
        shown = standing_of(history, row, time.time())
    print_text("job", document=shown.document, events=events, status=shown)
    printed = " ".join(capsys.readouterr().out.split())
    assert "one: saving, no controller, no machine: deepvm jobs resume one continues it" in printed


def test_a_live_controller_records_the_ends_itself(tmp_path: Path) -> None:
    pool = Pool("g4dn.xlarge", "z", "spot", 0.3)
    world = JobState(JobLimits(1, 1), 0.0, pools=(pool,))
    (tmp_path / "one").mkdir()
    cloud, lock = LiveCloud(), FileLock(tmp_path / "one" / LOCK)
    assert lock.take(shared=False)
    with History.open({PLACE: str(tmp_path / "h.db")}) as history:
        history.add_job("one", 0.0, tmp_path / "one", {"cloud": "local"}, world)
        search(history, lambda _: cloud, release=True)  # type: ignore[arg-type]
        assert not history.events("one") and not cloud.ended
    lock.release()


class Owner(Cloud):
    """Knows whose machines it has."""

    @classmethod
    def used(cls, folder: Path) -> bool:
        return True

    def jobs(self) -> list[str]:
        if self.fails == "jobs":
            raise UnknownError("no network")
        return ["lost", "one"]


@pytest.mark.parametrize(
    ("fails", "named", "found", "ended", "problem"),
    [
        ("", [], ["one", "one", "lost", "lost"], ["m1", "m2"], ""),
        ("", ["lost"], ["lost", "lost"], ["m1", "m2"], ""),
        ("jobs", [], ["one", "one"], ["m1", "m2"], "far: no network"),
    ],
)
def test_jobs_that_the_history_lacks_are_released_by_their_name_alone(
    tmp_path: Path, fails: str, named: list[str], found: list[str], ended: list[str], problem: str
) -> None:
    cloud = Owner(fails=fails)
    world = JobState(JobLimits(1, 1), 0.0, pools=(Pool("g4dn.xlarge", "z", "spot", 0.3),))
    (tmp_path / "one").mkdir()
    with History.open({PLACE: str(tmp_path / "h.db")}) as history:
        history.add_job("one", 0.0, tmp_path / "one", {"cloud": "far"}, world)
        result = search(
            history,
            lambda name: cloud,
            release=True,
            named=named,
            folder=tmp_path,
            owned=["far"],  # type: ignore
        )
    assert [o.job for o in result.orphans] == found and result.problems == (
        [problem] if problem else []
    )
    assert cloud.ended == ended and all(o.known is (o.job == "one") for o in result.orphans)


@pytest.mark.parametrize("fails", ["", "jobs"])
def test_a_misspelt_job_releases_none_and_is_no_job_without_machines(
    tmp_path: Path, fails: str
) -> None:
    """Unless a cloud does not answer, which may know it."""
    cloud = Owner(fails=fails)
    world = JobState(JobLimits(1, 1), 0.0, pools=(Pool("g4dn.xlarge", "z", "spot", 0.3),))
    (tmp_path / "one").mkdir()
    with History.open({PLACE: str(tmp_path / "h.db")}) as history:
        history.add_job("one", 0.0, tmp_path / "one", {"cloud": "far"}, world)

        def search_for(*names: str) -> Search:
            return search(
                history, lambda _: cloud, release=True, named=names, folder=tmp_path, owned=["far"]
            )  # type: ignore

        if fails:
            assert search_for("losst").problems == ["far: no network"]
        else:
            with pytest.raises(RequestError, match="did you mean lost"):
                search_for("one", "losst")
    assert not cloud.ended


def test_a_job_of_another_history_whose_controller_lives_has_no_orphans(tmp_path: Path) -> None:
    (tmp_path / "lost").mkdir()
    cloud, lock = Owner(), FileLock(tmp_path / "lost" / LOCK)
    assert lock.take(shared=False)
    with History.open({PLACE: str(tmp_path / "h.db")}) as history:
        result = search(
            history,
            lambda name: cloud,
            release=True,
            named=["lost"],
            folder=tmp_path,
            owned=["far"],  # type: ignore
        )
    lock.release()
    assert not result.orphans and not result.problems and not cloud.ended


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    yield found
    found.end()


def test_a_controller_in_the_background_finds_relative_places(home: Home) -> None:
    del home.env["DEEPVM_DATA_DIR"]
    job = home.job("away", "exec python own.py 20 0.01;")
    places = {"DEEPVM_DATA_DIR": "mine", "DEEPVM_HISTORY": "h.db"}
    words = home.command("run", str(job), "--detach")
    done = subprocess.run(
        words, env={**home.env, **places}, cwd=home.folder, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "away\n"), done.stderr
    with History.open({PLACE: str(home.folder / "h.db")}) as history:
        until(lambda: (row := history.job("away")) is not None and row.result is not None, 60)
    until((home.folder / "mine" / "jobs" / "away" / "run.html").exists)  # written behind the result


def test_a_controller_in_the_background_that_cannot_begin(home: Home) -> None:
    job = home.job("taken", "exec python own.py 20 0.01;")
    folder = home.jobs / "taken"
    folder.mkdir(parents=True)
    lock = FileLock(folder / LOCK)
    assert lock.take(shared=True)  # for ever, as by a file system that has lost an owner
    try:
        done = home.run("run", str(job), "--detach")
    finally:
        lock.release()
    assert done.returncode == 4
    assert (
        "the controller of taken has ended: Error: another process is the controller" in done.stderr
    )


def test_who_goes_on_with_a_job_knows_what_the_one_before_wrote_last(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that ends while another waits for it may have formed one generation more."""
    assert home.run(
        "run", str(home.job("next", "exec python own.py 5 0.01;", budget={"total_usd": 1e-9}))
    ).returncode
    for name, value in home.env.items():
        monkeypatch.setenv(name, value)
    known = list[int]()

    @contextlib.contextmanager
    def last_words(name: str, folder: Path) -> Iterator[None]:
        with History.open() as history:
            world = history.world(name)
            history.commit(name, world, replace(world, generation=7), [])
        yield

    monkeypatch.setattr(jobs_group.run, "only_controller", last_words)
    monkeypatch.setattr(
        jobs_group.run, "control", lambda job, world, *_, **__: known.append(world.generation)
    )
    flags = {f.name: f.default for f in fields(jobs_group.run.ResumeFlags)}
    jobs_group.resume(name="next", **{**flags, "total_usd": 10.0}, detach=False, keep=False)
    assert known == [7]
