"""From the user's computer: one head however often it is tried, and the history of a job as its
head has written it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.jobs import worlds
from support.jobs.memory_bucket import NAME, HeadCloud, head_in, place_of, submitted

from deepvm.cli.main import main
from deepvm.errors import DataError
from deepvm.jobs.cloud import RefusedError, UnknownError
from deepvm.jobs.decisions.states import Job
from deepvm.jobs.head import remote
from deepvm.jobs.head.mirror import (
    BEGINS_S,
    FOLDER,
    FRESH_S,
    MIRROR,
    HeadState,
    decoded,
    encoded,
    get_folder,
    put_folder,
)
from deepvm.jobs.history.history import EventRow, History, JobRow
from deepvm.jobs.orphans import search
from deepvm.jobs.standing import ALIVE, ELSEWHERE, GONE, OVER, controller_of


@pytest.fixture
def cloud() -> HeadCloud:
    return HeadCloud()


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[tuple[History, JobRow]]:
    (tmp_path / "laptop").mkdir()
    history, row = submitted(tmp_path / "laptop")
    yield history, row
    history.close()


def state_of(row: JobRow) -> HeadState:
    found = HeadState.load(row.folder)
    assert found is not None
    return found


def mirror_of(cloud: HeadCloud) -> dict[str, Any]:
    return decoded(cloud.bucket.objects[MIRROR][0])


def begin(cloud: HeadCloud, folder: Path, number: int = 1) -> tuple[History, Any]:
    """The head has booted, and its controller begun."""
    history, keeper = head_in(folder, cloud, number, mirror_of(cloud))
    keeper.take(history.world(NAME), history, cloud, f"nonce{number}")
    return history, keeper


class Killed(BaseException):
    pass


POINTS = ["head.intended", "head.fenced", "head.packed", "head.started"]


@pytest.mark.parametrize("where", POINTS)
def test_a_start_that_was_killed_anywhere_is_taken_up_with_one_head(
    where: str, cloud: HeadCloud, laptop: tuple[History, JobRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    history, row = laptop

    def kill(label: str) -> None:
        if label == where:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(remote, "point", kill)
        with pytest.raises(Killed):
            remote.RemoteController(row, history, cloud).start()
    if where == "head.started":
        with pytest.raises(DataError, match="head-1 runs the controller"):
            remote.RemoteController(row, history, cloud).start()
    else:
        assert not cloud.alive
        remote.RemoteController(row, history, cloud).start()
        assert state_of(row).alive
    assert list(cloud.alive) == ["head-1"] and set(cloud.asked) == {1}
    assert f"{FOLDER}secret/0000" in cloud.bucket.objects and mirror_of(cloud)["head"] == 1


@pytest.mark.parametrize(
    ("error", "number"), [(UnknownError("no answer"), 1), (RefusedError("no capacity"), 2)]
)
def test_a_refusal_is_asked_about_by_another_name_and_silence_by_the_same(
    cloud: HeadCloud,
    laptop: tuple[History, JobRow],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    number: int,
) -> None:
    history, row = laptop

    def fails(job: str, number: int) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(cloud, "start_head", fails)
        with pytest.raises(type(error)):
            remote.RemoteController(row, history, cloud).start()
    assert controller_of(row) == GONE
    remote.RemoteController(row, history, cloud).start()
    assert cloud.asked == [number] and controller_of(row) == ALIVE


def test_one_that_lives_is_not_replaced(
    cloud: HeadCloud, laptop: tuple[History, JobRow], tmp_path: Path
) -> None:
    history, row = laptop
    remote.RemoteController(row, history, cloud).start()
    head, _ = begin(cloud, tmp_path / "head")
    with pytest.raises(DataError, match="head-1 runs the controller"):
        remote.RemoteController(row, history, cloud).start()
    assert cloud.asked == [1]
    head.close()


def test_what_its_head_writes_is_in_the_history_here(
    cloud: HeadCloud, laptop: tuple[History, JobRow], tmp_path: Path
) -> None:
    history, row = laptop
    remote.RemoteController(row, history, cloud).start()
    assert controller_of(row) == ALIVE  # it boots
    head, keeper = begin(cloud, tmp_path / "head")
    before = head.world(NAME)
    world = replace(before, job=Job.RUNNING, generation=1, reached=7, now_s=before.now_s + 5)
    head.commit(NAME, before, world, [EventRow(1.0, "ready", "running", {"id": "m1"})])
    keeper._put(head)
    for _ in range(2):  # once more changes nothing
        remote.RemoteController(row, history, cloud).refresh()
        assert history.world(NAME) == world and [e.kind for e in history.events(NAME)] == ["ready"]
    assert controller_of(row) == ALIVE and state_of(row).nonce == "nonce1"
    head.commit(NAME, world, replace(world, reached=9), [EventRow(2.0, "safe", "running", {})])
    keeper._put(head)
    remote.RemoteController(row, history, cloud).refresh()
    assert [e.kind for e in history.events(NAME)] == ["ready", "safe"]
    cloud.bucket.age(MIRROR, FRESH_S + 1)
    remote.RemoteController(row, history, cloud).refresh()
    assert controller_of(row) == GONE
    cloud.bucket.down = True
    with pytest.raises(UnknownError):
        remote.RemoteController(row, history, cloud).refresh()
    assert controller_of(row) == ELSEWHERE  # nobody knows
    head.close()


def test_an_older_mirror_does_not_overwrite_what_is_known(
    cloud: HeadCloud, laptop: tuple[History, JobRow], tmp_path: Path
) -> None:
    history, row = laptop
    old = history.copy(NAME)
    before = history.world(NAME)
    history.commit(
        NAME,
        before,
        replace(before, now_s=before.now_s + 9),
        [EventRow(1.0, "ready", "running", {})],
    )
    assert not history.put_copy(old, row.folder)
    assert len(history.events(NAME)) == 1


def test_after_the_end_all_is_here_and_nothing_in_the_bucket(
    cloud: HeadCloud, laptop: tuple[History, JobRow], tmp_path: Path
) -> None:
    history, row = laptop
    remote.RemoteController(row, history, cloud).start()
    head, keeper = begin(cloud, tmp_path / "head")
    (tmp_path / "head" / NAME / "logs" / "m1.log").write_text(
        "2026-11-26T12:00:00.000Z a line\nand one without an end"
    )
    head.finish(NAME, {"state": "done"})
    keeper.finish(head)
    remote.RemoteController(row, history, cloud).refresh()
    found = history.job(NAME)
    assert found is not None and found.result == {"state": "done"} and not cloud.bucket.objects
    assert controller_of(replace(found, state="done")) == OVER
    assert "and one without an end" in (row.folder / "logs" / "m1.log").read_text()
    head.close()


@pytest.mark.parametrize("words", [("ls",), ("show", NAME), ("logs", NAME), ("stop", NAME)])
def test_after_the_end_its_page_is_here(
    cloud: HeadCloud,
    laptop: tuple[History, JobRow],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    """Whatever command looks first: the head that has written one is gone with its disk."""
    history, row = laptop
    remote.RemoteController(row, history, cloud).start()
    head, keeper = begin(cloud, tmp_path / "head")
    done = worlds.one_machine()
    world = replace(done.world, now_s=time.time() + 1)
    head.commit(NAME, head.world(NAME), replace(world, job=Job.RUNNING), done.events)
    page = row.folder / "run.html"
    monkeypatch.setattr("deepvm.jobs.submission.cloud_of", lambda name: cloud)
    for name, value in place_of(tmp_path / "laptop").items():
        monkeypatch.setenv(name, value)
    keeper._put(head)
    with pytest.raises(SystemExit):
        main(["jobs", "ls"])
    assert history.world(NAME).job is Job.RUNNING and not page.exists()
    head.commit(NAME, head.world(NAME), world, [])
    head.finish(NAME, done.document)
    keeper.finish(head)
    with pytest.raises(SystemExit):
        main(["jobs", *words])
    assert 'badge good">done<' in page.read_text() and not cloud.bucket.objects


def test_what_is_left_in_the_bucket_at_the_end_is_fetched_the_next_time(
    cloud: HeadCloud,
    laptop: tuple[History, JobRow],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The final document was read, the last lines were not: the network was gone, or somebody
    pressed Ctrl-C.
    """
    history, row = laptop
    remote.RemoteController(row, history, cloud).start()
    head, keeper = begin(cloud, tmp_path / "head")
    (tmp_path / "head" / NAME / "logs" / "m1.log").write_text(
        "2026-11-26T12:00:00.000Z the last line\n"
    )
    head.finish(NAME, {"state": "failed"})
    keeper.finish(head)

    def gone(*_: Any) -> Any:
        raise UnknownError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(remote.mirror, "fetch_logs", gone)
        with pytest.raises(UnknownError):
            remote.RemoteController(row, history, cloud).refresh()
    over = history.job(NAME)
    assert over is not None and over.result == {"state": "failed"} and remote.is_to_be_read(over)
    remote.RemoteController(over, history, cloud).refresh()
    assert (
        "the last line" in (row.folder / "logs" / "m1.log").read_text() and not cloud.bucket.objects
    )
    assert not remote.is_to_be_read(over)
    head.close()


def test_another_head_goes_on_from_the_mirror(
    cloud: HeadCloud, laptop: tuple[History, JobRow], tmp_path: Path
) -> None:
    """Its predecessor hangs: it is ended and fenced; what both have cost is counted, each once."""
    history, row = laptop
    remote.RemoteController(row, history, cloud).start()
    head, keeper = begin(cloud, tmp_path / "head")
    before = head.world(NAME)
    head.commit(NAME, before, replace(before, generation=3, now_s=before.now_s + 10), [])
    keeper._put(head)
    cloud.bucket.age(MIRROR, FRESH_S + 1)
    remote.RemoteController(row, history, cloud).start(lambda: history.world(NAME))
    assert (
        cloud.asked == [1, 2]
        and list(cloud.alive) == ["head-2"]
        and list(cloud.ended) == ["head-1"]
    )
    assert mirror_of(cloud)["head"] == 2 and controller_of(row) == ALIVE
    cloud.ended["head-1"] = (cloud.ended["head-1"][0], cloud.ended["head-1"][0] + 20.0)
    other, _ = begin(cloud, tmp_path / "other", 2)
    world = other.world(NAME)
    assert world.generation == 3 and [h.name for h in world.heads] == ["head-1", "head-2"]
    assert (
        world.heads[0].usd(world.now_s + 1e6) == pytest.approx(20.0)
        and world.heads[1].ended_s is None
    )
    for each in (head, other):
        each.close()


@pytest.mark.parametrize("listed", [True, False])
def test_one_that_never_began_is_replaced_by_one_of_another_name(
    cloud: HeadCloud, laptop: tuple[History, JobRow], listed: bool
) -> None:
    """A token that was used brings the old machine: its end, that is."""
    history, row = laptop
    remote.RemoteController(row, history, cloud).start()
    replace(state_of(row), asked_s=state_of(row).asked_s - BEGINS_S).save(row.folder)
    assert controller_of(row) == GONE
    if not listed:
        cloud.alive.clear()
    remote.RemoteController(row, history, cloud).start()
    assert cloud.asked == [1, 2] and list(cloud.alive) == ["head-2"]


def test_terms_that_cannot_be_change_nothing(
    cloud: HeadCloud, laptop: tuple[History, JobRow]
) -> None:
    history, row = laptop

    def wrong() -> Any:
        raise DataError("no such budget")

    with pytest.raises(DataError, match="no such budget"):
        remote.RemoteController(row, history, cloud).start(wrong)
    assert HeadState.load(row.folder) is None and not cloud.bucket.objects


def test_what_the_head_writes_meanwhile_is_not_lost(
    cloud: HeadCloud, laptop: tuple[History, JobRow], tmp_path: Path
) -> None:
    """Between the last look and the fence: an event more."""
    history, row = laptop
    remote.RemoteController(row, history, cloud).start()
    head, keeper = begin(cloud, tmp_path / "head")
    cloud.bucket.age(MIRROR, FRESH_S + 1)
    remote.RemoteController(row, history, cloud).refresh()

    def late() -> None:
        before = head.world(NAME)
        head.commit(
            NAME,
            before,
            replace(before, now_s=before.now_s + 1),
            [EventRow(1.0, "ready", "running", {})],
        )
        keeper._put(head)

    cloud.bucket.early = late
    remote.RemoteController(row, history, cloud).start(lambda: history.world(NAME))
    assert [e["kind"] for e in mirror_of(cloud)["events"]] == ["ready"] and mirror_of(cloud)[
        "head"
    ] == 2
    head.close()


def test_a_head_before_its_controller_has_begun_takes_no_command(
    cloud: HeadCloud, laptop: tuple[History, JobRow]
) -> None:
    history, row = laptop
    remote.RemoteController(row, history, cloud).start()
    with pytest.raises(DataError, match="has not started yet"):
        remote.RemoteController(row, history, cloud).send("00" * 32, {"command": "stop"})


def test_what_is_no_mirror(laptop: tuple[History, JobRow]) -> None:
    history, _ = laptop
    good = encoded(history.copy(NAME), 1, "", 0)
    for bad in (b"", b"x", good[:-9], encoded({}, 1, "", 0)[:20]):
        with pytest.raises(UnknownError, match="cannot be read"):
            decoded(bad)
    assert decoded(good)["job"]["name"] == NAME


def test_the_folder_of_a_job(cloud: HeadCloud, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "secret").write_text("s")
    (tmp_path / "a" / "other").write_text("o")
    assert not get_folder(cloud.bucket, tmp_path / "b")
    put_folder(cloud.bucket, tmp_path / "a")
    assert get_folder(cloud.bucket, tmp_path / "b")
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == ["logs", "secret"]
    assert (tmp_path / "b" / "secret").stat().st_mode & 0o777 == 0o600


def test_nothing_is_an_orphan_while_nobody_knows_whether_the_head_lives(
    cloud: HeadCloud, laptop: tuple[History, JobRow], tmp_path: Path
) -> None:
    history, row = laptop
    remote.RemoteController(row, history, cloud).start()
    head, _ = begin(cloud, tmp_path / "head")
    cloud.bucket.down = True
    with pytest.raises(UnknownError):
        remote.RemoteController(row, history, cloud).refresh()
    found = search(history, lambda name: cloud, release=True)  # type: ignore[arg-type, return-value]
    assert (
        not found.orphans
        and "cannot be read" in found.problems[0]
        and list(cloud.alive) == ["head-1"]
    )
    head.close()
