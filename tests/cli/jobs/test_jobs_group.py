"""``deepvm jobs`` as a user meets it, with a history that is made by hand."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.command import Run
from support.jobs import worlds

from deepvm.cli.jobs import jobs_group
from deepvm.jobs.decisions.states import Job
from deepvm.jobs.history.history import History
from deepvm.jobs.history.log_files import add_line


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(tmp_path / "data"))
    place = tmp_path / "job"
    place.mkdir()
    for at_s, machine, text in ((1.0, "m1", "one"), (3.0, "m1", "three"), (2.0, "m2", "two")):
        add_line(place, machine, text, at_s)
    with History.open() as history:
        worlds.store(history, worlds.many(20), place)
    return place


def test_logs_in_order_of_one_machine_and_the_last(run: Run, folder: Path) -> None:
    assert run("jobs", "logs", "resnet-7")[1] == "m1 | one\nm2 | two\nm1 | three\n"
    assert (
        run("jobs", "logs", "resnet-7", "-f", "--machine", "m1", "--tail", "1")[1] == "m1 | three\n"
    )
    assert (
        run("jobs", "logs", "resnet-7", "-t", "--tail", "1")[1]
        == "1970-01-01T00:00:03.000Z m1 | three\n"
    )
    assert run("jobs", "logs", "resnet-7", "--tail", "0")[1] == ""


def test_logs_of_no_machine(run: Run, folder: Path) -> None:
    code, _, err = run("jobs", "logs", "resnet-7", "--machine", "m99999")
    assert code == 2 and "machine" in err
    assert run("jobs", "logs", "resnet-7", "--tail", "-1")[0] == 2


def test_a_job_whose_folder_is_gone(run: Run, folder: Path) -> None:
    shutil.rmtree(folder)
    code, out, _ = run("jobs", "show", "resnet-7")
    assert code == 0 and "resnet-7: done" in out
    code, out, _ = run("jobs", "show", "resnet-7", "-o", "html")
    assert code == 0 and out.startswith("<!doctype html>")
    code, _, err = run("jobs", "logs", "resnet-7")
    assert code == 4 and "is not here" in err


def test_more_jobs_than_a_page_has(run: Run, folder: Path) -> None:
    with History.open() as history:
        for number in range(120):
            worlds.store(history, worlds.one_machine(name=f"job-{number}"), folder)
    code, out, _ = run("jobs", "ls")
    assert code == 0 and len(out.splitlines()) == 122


def test_a_misspelt_job_is_not_one_without_machines(run: Run, folder: Path) -> None:
    code, out, err = run("jobs", "orphans", "--release", "resnet-8")
    assert code == 2 and not out and "resnet-8" in err and "did you mean resnet-7?" in err


def test_inject_where_the_cloud_cannot(run: Run, folder: Path) -> None:
    code, _, err = run("inject", "resnet-7", "--mttp", "30s")
    assert (
        code == 2
        and "expected only with local, netns and ssh; the cloud aws preempts machines itself"
        in " ".join(err.split())
    )


def running(folder: Path, **more: object) -> None:
    """The job with no result, as a running one."""
    with History.open() as history:
        found = worlds.one_machine(name="plain", over=False)
        world = replace(found.world, job=Job.RUNNING, **more)  # type: ignore[arg-type]
        row = replace(found.row, result=None, spec=worlds.spec(cloud="local"))
        worlds.store(history, replace(found, row=row, world=world, samples=[]), folder)


@pytest.mark.parametrize("reported", [True, False])
def test_only_a_script_that_reports_steps_is_promised_a_checkpoint(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, reported: bool
) -> None:
    monkeypatch.setattr(jobs_group, "_send", lambda *_: {})
    monkeypatch.setattr("deepvm.jobs.submission.secret_in", lambda _: "ab" * 32)
    steps = {"reached": 5} if reported else {"reached": 0, "version": 0, "peak": None}
    running(folder, **steps)
    saved, stopped = (" ".join(run("jobs", does, "plain")[2].split()) for does in ("save", "stop"))
    unreported = "has not reported a step: if it saves nothing through deepvm,"
    if reported:
        assert "plain saves after its next step; 'deepvm jobs show plain'" in saved
        assert "plain saves a checkpoint and ends; " in stopped
        assert stopped.endswith("'deepvm jobs resume plain' continues it")
    else:
        assert f"plain {unreported} no checkpoint comes; 'deepvm jobs show plain' says" in saved
        assert "plain ends; 'deepvm jobs show plain' says when" in stopped
        assert f"it {unreported} 'deepvm jobs resume plain' starts it again at its" in stopped


def test_stop_without_a_controller_names_what_ends_the_machines(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepvm.jobs.submission.secret_in", lambda _: "ab" * 32)
    running(folder)
    (folder / "controller").write_text("http://127.0.0.1:9")
    cure = "deepvm jobs orphans --release plain ends its machines, deepvm jobs resume plain starts"
    code, _, error = run("jobs", "stop", "plain")
    assert code == 4 and cure in " ".join(error.split())
    code, _, error = run("jobs", "save", "plain")
    assert code == 4 and "orphans" not in error and "deepvm jobs resume plain starts" in error
