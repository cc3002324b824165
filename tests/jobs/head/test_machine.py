"""The machine of a head: what runs there does what was asked for, and nothing more, and its user
hears of the end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from support.jobs.memory_bucket import NAME, HeadCloud, place_of, submitted

from deepvm.cli.jobs import jobs_group, run
from deepvm.errors import DataError
from deepvm.jobs.clouds.aws import s3_read
from deepvm.jobs.decisions.states import Job
from deepvm.jobs.decisions.world import JobState
from deepvm.jobs.head import machine, remote
from deepvm.jobs.head.machine import HeadMachine
from deepvm.jobs.head.mirror import FOLDER, MIRROR, HeadState, decoded
from deepvm.jobs.head.mirror_keeper import PULSE
from deepvm.jobs.history.history import PLACE, History, JobRow


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[History, JobRow]]:
    """A computer that is the head of a job, as its processes find it."""
    history, row = submitted(tmp_path)
    HeadState(1, time.time(), here=True).save(row.folder)
    for name, value in {**place_of(tmp_path), "DEEPVM_DATA_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    yield history, row
    history.close()


@pytest.fixture
def controlled(monkeypatch: pytest.MonkeyPatch) -> list[JobState]:
    """The worlds with which controllers are started."""
    found: list[JobState] = []
    monkeypatch.setattr(run, "control", lambda job, world, *_, **__: found.append(world))
    monkeypatch.setattr("deepvm.jobs.submission.submitted", lambda *_: None)
    return found


NO_FLAGS: dict[str, Any] = {
    **{f.name: f.default for f in fields(run.ResumeFlags)},
    "detach": False,
    "keep": False,
    "all_ranks": False,
}


def test_it_rents_no_other_head_when_its_own_address_is_not_known(
    head: tuple[History, JobRow], controlled: list[JobState], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its metadata service may not answer for a moment; the other head would end this one."""
    cloud = HeadCloud()
    assert not cloud.controls_here()
    monkeypatch.setattr("deepvm.jobs.submission.cloud_of", lambda name: cloud)
    jobs_group.resume(name=NAME, **NO_FLAGS)
    assert not cloud.asked and len(controlled) == 1


@pytest.mark.parametrize("state", [Job.STOPPED, Job.FAILED])
def test_a_controller_that_was_killed_while_the_job_ended_goes_on_ending_it(
    head: tuple[History, JobRow],
    controlled: list[JobState],
    monkeypatch: pytest.MonkeyPatch,
    state: Job,
) -> None:
    """Nobody has asked for more: its user does that from elsewhere, and rents a head for it."""
    monkeypatch.setattr("deepvm.jobs.submission.cloud_of", lambda name: HeadCloud())
    history, _ = head
    before = history.world(NAME)
    history.commit(NAME, before, replace(before, job=state, ending="stopped by the user"), [])
    jobs_group.resume(name=NAME, **NO_FLAGS)
    (world,) = controlled
    assert (world.job, world.ending) == (state, "stopped by the user")


# --- the process that keeps a controller running --------------------------------------------------


@pytest.fixture
def begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[HeadMachine, HeadCloud]]:
    """A head that has booted, on a computer of its own."""
    cloud, place = HeadCloud(), tmp_path / "head"
    (tmp_path / "laptop").mkdir()
    history, row = submitted(tmp_path / "laptop")
    remote.RemoteController(row, history, cloud).start()
    history.close()
    (place / "jobs").mkdir(parents=True)
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(place))
    monkeypatch.delenv(PLACE, raising=False)
    monkeypatch.setattr(machine, "_PAUSE_S", 0.01)
    yield HeadMachine(NAME, 1, place / "jobs", cloud), cloud


def finished() -> None:
    with History.open() as history:
        history.finish(NAME, {"state": "stopped"})


def test_a_controller_that_ends_without_a_word_is_not_started_again_at_once(
    begun: tuple[HeadMachine, HeadCloud], monkeypatch: pytest.MonkeyPatch
) -> None:
    head, _ = begun
    ends, slept = iter([lambda: None, lambda: None, finished]), list[float]()
    head._folder.mkdir()
    (head._folder / machine.CRASHES).touch()
    monkeypatch.setattr(head, "_control", lambda: next(ends)())
    monkeypatch.setattr(machine.time, "sleep", slept.append)
    head.run()
    assert len(slept) == 2


def test_the_end_leaves_what_another_head_brings_at_once(
    begun: tuple[HeadMachine, HeadCloud], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who sees that the job has stopped may have it go on in the next moment."""
    head, cloud = begun
    write = cloud.bucket.replace

    def seen(key: str, data: bytes, tag: str | None) -> str:
        assert not cloud.bucket.keys(FOLDER)  # the secret is gone when the end is known
        tag = write(key, data, tag)
        cloud.bucket.put(f"{FOLDER}secret/0000", b"for the next head")
        return tag

    monkeypatch.setattr(head, "_control", finished)
    monkeypatch.setattr(cloud.bucket, "replace", seen)
    head.run()
    assert cloud.bucket.objects[f"{FOLDER}secret/0000"][0] == b"for the next head"
    assert json.loads(decoded(cloud.bucket.objects[MIRROR][0])["job"]["result"]) == {
        "state": "stopped"
    }


def test_a_history_that_cannot_be_opened_for_a_moment_ends_no_head(
    begun: tuple[HeadMachine, HeadCloud], monkeypatch: pytest.MonkeyPatch
) -> None:
    head, cloud = begun
    open_, failures = History.open, list[Exception]()

    def sometimes() -> History:
        if failures:
            raise failures.pop()
        return open_()

    def ends() -> None:
        finished()
        failures.append(DataError("locked"))

    monkeypatch.setattr(head, "_control", ends)
    monkeypatch.setattr(History, "open", sometimes)
    head._folder.mkdir()
    (head._folder / machine.CRASHES).touch()
    head.run()
    assert json.loads(decoded(cloud.bucket.objects[MIRROR][0])["job"]["result"]) == {
        "state": "stopped"
    }


def controllers(
    head: HeadMachine, monkeypatch: pytest.MonkeyPatch, *scripts: str
) -> list[subprocess.Popen[bytes]]:
    """Have controllers be these, one after the other; none: there is no memory for it."""
    made, left, start = list[subprocess.Popen[bytes]](), [*scripts], subprocess.Popen
    begin = (
        f"import os, time; from pathlib import Path; pulse = Path({str(head._folder / PULSE)!r}); "
    )

    def started(words: list[str], **more: object) -> subprocess.Popen[bytes]:
        script = left.pop(0)
        if not script:
            raise OSError(12, "Cannot allocate memory")
        made.append(start([sys.executable, "-c", begin + script], **more))  # type: ignore[call-overload]
        return made[-1]

    monkeypatch.setattr(machine.subprocess, "Popen", started)
    head._folder.mkdir(exist_ok=True)
    return made


def test_a_controller_that_hangs_is_ended(
    begun: tuple[HeadMachine, HeadCloud], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its machine, and those that train, are paid for ever."""
    monkeypatch.setattr(machine, "_LOOK_S", 0.05)
    monkeypatch.setattr(machine, "HUNG_S", 1.0)
    head, _ = begun
    made = controllers(head, monkeypatch, "pulse.touch(); time.sleep(600)")
    head._control()
    assert made[0].returncode < 0
    assert "hangs" in (head._folder / machine.CRASHES).read_text()


@pytest.mark.parametrize(
    "script",
    [
        "[(time.sleep(0.1), pulse.touch()) for _ in range(30)]",
        "pulse.touch(); pulse.unlink(); time.sleep(3)",
    ],
    ids=["its loop turns", "its loop is over"],
)
def test_a_controller_that_works_is_not_ended(
    begun: tuple[HeadMachine, HeadCloud], monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """After its loop it may simulate the job for a long time."""
    monkeypatch.setattr(machine, "_LOOK_S", 0.05)
    monkeypatch.setattr(machine, "HUNG_S", 1.5)
    head, _ = begun
    made = controllers(head, monkeypatch, script)
    (head._folder / PULSE).touch()  # of the one before this
    head._control()
    assert made[0].returncode == 0


def test_a_head_without_memory_for_a_controller_tries_again(
    begun: tuple[HeadMachine, HeadCloud], monkeypatch: pytest.MonkeyPatch
) -> None:
    head, cloud = begun
    end = (
        "from deepvm.jobs.history.history import History; History.open().finish('resnet-7',"
        " {'state': 'stopped'})"
    )
    made = controllers(head, monkeypatch, "", "", end)
    head.run()
    assert len(made) == 1
    assert json.loads(decoded(cloud.bucket.objects[MIRROR][0])["job"]["result"]) == {
        "state": "stopped"
    }


def test_of_a_log_only_the_end_is_read(begun: tuple[HeadMachine, HeadCloud]) -> None:
    """A controller that was told for months that its cloud throttles has said much."""
    head, cloud = begun
    head._folder.mkdir()
    place = head._folder / machine.CRASHES
    place.touch()
    os.truncate(place, 2**42)
    with place.open("ab") as file:
        file.write(b"the end")
    head._tell()
    said, _, _ = cloud.bucket.objects[machine.CRASHES]
    assert said.endswith(b"\0the end") and len(said) < 100_000


def test_a_role_that_is_not_known_yet_ends_no_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS gives a new instance's role to it a while after it has booted."""
    settings = {
        "job": NAME,
        "owner": "me",
        "environ": {"AWS_REGION": "us-east-1", "DEEPVM_AWS_BUCKET": "b"},
    }
    said: list[Exception | bytes] = [
        OSError("403"),
        LookupError("no role"),
        json.dumps(settings).encode(),
    ]
    ran = list[tuple[object, ...]]()

    def read(region: str, bucket: str, key: str) -> bytes:
        found = said.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    class Recorded:
        def __init__(self, *given: object) -> None:
            ran.append(given)

        def run(self) -> None:
            pass

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["", "us-east-1", "b", "deepvm/me/job/head"])
    monkeypatch.setattr(machine.os, "environ", {})
    monkeypatch.setattr(machine, "_put_off", lambda over: None)
    monkeypatch.setattr(machine, "metadata", lambda path: "head-3")
    monkeypatch.setattr(s3_read, "read", read)
    monkeypatch.setattr(s3_read.time, "sleep", lambda s: None)
    monkeypatch.setattr(machine, "HeadMachine", Recorded)
    machine.main()
    assert ran[0][:2] == (NAME, 3) and not said


def test_a_head_that_has_no_memory_for_a_moment_is_not_shut_down_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over, asked = threading.Event(), list[list[str]]()

    def run(words: list[str], **_: object) -> None:
        asked.append(words)
        if len(asked) == 1:
            raise OSError("Cannot allocate memory")
        over.set()

    monkeypatch.setattr(machine, "PUT_OFF_S", 0.01)
    monkeypatch.setattr("subprocess.run", run)
    machine._put_off(over)
    assert len(asked) == 2
