"""A training job's view: each version holds one step's numbers.

A cut run goes on as if nothing had been.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint.slow_copies import notice_no_change, slow_copy
from support.closed_form import CHOOSING

torch = pytest.importorskip("torch")

from support.checkpoint.trainings import (  # noqa: E402
    Fill,
    Job,
    Slow,
    contents,
    fill_and_save,
    model_of,
    numbers_in,
    simple,
)
from support.pace import soon  # noqa: E402

from deepvm.checkpoint import Checkpointer  # noqa: E402
from deepvm.checkpoint.arguments import parse_every  # noqa: E402
from deepvm.checkpoint.files.version_dir import VersionFolder  # noqa: E402
from deepvm.checkpoint.format.manifest import Level, Shard  # noqa: E402
from deepvm.checkpoint.snapshot import snapshotter  # noqa: E402
from deepvm.checkpoint.snapshot.host_buffer import Slot  # noqa: E402
from deepvm.checkpoint.tiers.file import FileTier  # noqa: E402
from deepvm.core.preemption.savepolicy import (  # noqa: E402
    POLICIES,
    EverySeconds,
    EverySteps,
    SavePolicy,
    parse_policy,
)
from deepvm.errors import CheckpointError, RequestError  # noqa: E402


@pytest.mark.parametrize(("every", "slots"), [(1, 2), (7, 2), (3, 1)])
def test_a_version_holds_the_numbers_of_one_step(every: int, slots: int, tmp_path: Path) -> None:
    """ACUTE's hazard: the published code has a gate that never waits, and one file held six
    versions.
    """
    found = fill_and_save(tmp_path, 120, every, pause=True, slots=slots)
    assert 120 in found and len(found) >= 2
    assert all(values == {version} for version, values in found.items()), found


def test_without_the_gate_that_test_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutation: nobody waits for the copy, which is slowed down so that the next steps come
    meanwhile.
    """
    monkeypatch.setattr(Slot, "copy", slow_copy(0.0005))
    assert all(
        values == {version} for version, values in fill_and_save(tmp_path / "gate", 40, 5).items()
    )
    monkeypatch.setattr(Checkpointer, "_before_step", Checkpointer._before_forward)
    refused = fill_and_save(tmp_path / "refused", 40, 5)
    assert all(values == {version} for version, values in refused.items()) and len(refused) < 8
    notice_no_change(monkeypatch)  # else they are not made, see the line before
    found = fill_and_save(tmp_path / "none", 40, 5)
    assert any(values != {version} for version, values in found.items())


@pytest.mark.parametrize("end", ["by hand", "by the schedule", "killed in the next step"])
def test_an_interrupted_run_goes_on_bit_by_bit(end: str, tmp_path: Path) -> None:
    whole = Job(tmp_path / "whole", every=None)
    whole.train(30)
    first = Job(tmp_path / "cut", every=None if end == "by hand" else 13)
    first.train(13)
    if end == "by hand":
        first.saver.save(block=True)
    elif end == "killed in the next step":
        # The next batch moves the random numbers on, before the rest of version 13 is taken
        torch.randn(1)
        first.model(torch.ones(4, 8))
    first.saver.close()
    second = Job(tmp_path / "cut")
    assert second.saver.restore_latest() == 13 == second.saver.version
    second.train(30)
    assert second.bits() == whole.bits()
    assert second.scheduler.get_last_lr() == whole.scheduler.get_last_lr()


def test_there_is_nothing_to_restore(tmp_path: Path) -> None:
    assert Job(tmp_path / "empty").saver.restore_latest() == 0


def test_damaged_and_incomplete_versions_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(tmp_path, every=None, keep=10)
    for version in range(1, 5):
        job.train(version)
        job.saver.save(block=True).durable.result(30)
    job.saver.close()
    folder = VersionFolder(tmp_path)
    with folder.file("job", 4).open("r+b") as file:
        file.seek(2000)
        byte = file.read(1)
        file.seek(2000)
        file.write(bytes([byte[0] ^ 1]))
    folder.file("job", 3).with_name("job-000000000003.pt.json").unlink()
    assert Job(tmp_path).saver.restore_latest() == 2
    assert "version 4" in caplog.text and "bytes 0 to" in caplog.text


def test_a_run_does_not_begin_anew_because_all_is_damaged(tmp_path: Path) -> None:
    job = Job(tmp_path, every=None)
    job.train(1)
    job.saver.save(block=True)
    job.saver.close()
    path = VersionFolder(tmp_path).file("job", 1)
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(CheckpointError, match="all checkpoints of job are damaged.*DEEPVM_JOB"):
        Job(tmp_path).saver.restore_latest()


def test_a_place_that_takes_nothing_is_told_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(
            CheckpointError,
            match="no checkpoint can be written there: .*file is not a writable folder",
        ):
            Job(wrong)
    assert Job(tmp_path / "not" / "yet" / "there").saver.restore_latest() == 0
    # Root has the right to write there, and still cannot
    for wrong in (Path("/proc/nothing"), Path("/proc")):
        with pytest.raises(
            CheckpointError,
            match="no checkpoint can be written there: /proc is not a writable folder",
        ):
            Job(wrong)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"], "nothing was left by looking"
    monkeypatch.setattr(os, "access", lambda place, mode: False)  # root may do what it likes
    with pytest.raises(CheckpointError, match=f"{tmp_path} is not a writable folder"):
        Job(tmp_path / "new")


def test_one_tier_needs_no_list(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Checkpointer(model=model, optimizer=optimizer, tiers=tmp_path.as_uri()) as saver:
        saver.save(block=True)
    assert [m.version for m in VersionFolder(tmp_path).versions("job")] == [0]


def test_steps_of_another_optimizer_are_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The one that was given is wrapped, or was replaced: its steps are not seen."""
    model = torch.nn.Linear(2, 2)
    given, used = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    saver = Checkpointer(model=model, optimizer=given, tiers=[tmp_path.as_uri()], every=2)
    saver.restore_latest()
    saver.save(block=True)
    assert not caplog.records
    with pytest.warns(RuntimeWarning, match="give it the optimizer that steps"):
        for optimizer in (used, used, given):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            saver.save(block=True)
            assert caplog.text.count("give it the optimizer that steps") == 1
    saver.close()


def test_where_nobody_answers_a_run_does_not_begin_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A new machine's disk is empty; the versions are on the node, which is not up yet."""
    silent = Slow(CheckpointError("slow:// does not answer"))
    model = model_of(2, 64)
    optimizer = Fill(model.parameters())
    with Checkpointer(
        model=model, optimizer=optimizer, tiers=[silent, (tmp_path / "f").as_uri()]
    ) as saver:
        with pytest.raises(
            CheckpointError, match="slow:// does not answer.*a checkpoint may be there"
        ):
            saver.restore_latest()
        silent.go.set()
        optimizer.step()
        saver.save(block=True)
        assert saver.restore_latest() == 1  # better than nothing, and the log says so
        assert "a newer checkpoint may exist where no tier answers" in caplog.text


def test_training_does_not_wait_for_a_slow_tier_but_skips() -> None:
    tier = Slow()
    optimizer, saver = simple(tier, every=1)
    with soon(5):
        for _ in range(20):
            optimizer.step()
    saver.wait()
    assert saver.metrics["skipped"] == 18
    skipped = saver.handles[-1]
    assert skipped.skipped and "skipped" in str(skipped.remote_done.exception(0))
    threading.Timer(0.2, tier.go.set).start()  # a save that was asked for waits for a slot
    assert saver.save().remote_done.result(60) == 20
    saver.close()
    assert tier.taken == [1, 2, 20]


def test_a_tier_that_fails_is_noted_and_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    tier = Slow(CheckpointError("the place is gone"))
    tier.go.set()
    optimizer, saver = simple(tier, every=1)
    for _ in range(5):
        optimizer.step()
    with pytest.raises(CheckpointError, match="the place is gone"):
        saver.save(block=True)
    assert "the place is gone" in caplog.text
    with pytest.raises(CheckpointError, match="the place is gone"):
        saver.restore_latest()
    with pytest.raises(
        CheckpointError,
        match="version 5 was due and is not safe: the place is gone; .* none of this",
    ):
        saver.close()
    assert saver.metrics["failed"] >= 1 and saver.metrics["saved"] == 0


def test_one_tier_of_two_is_enough(tmp_path: Path) -> None:
    bad = Slow(CheckpointError("the place is gone"))
    bad.go.set()
    model = model_of(2, 32)
    optimizer = Fill(model.parameters())
    saver = Checkpointer(model=model, optimizer=optimizer, tiers=[bad, tmp_path.as_uri()])
    optimizer.step()
    handle = saver.save(block=True)
    assert handle.durable.result(10) == 1
    assert saver.restore_latest() == 1
    saver.close()


def test_loading_a_state_waits_for_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, every=None)
    job.train(2)
    copy, ended = Slot.copy, []

    def slow(self: Slot, *args: Any) -> None:
        time.sleep(0.2)
        copy(self, *args)
        ended.append(time.monotonic())

    monkeypatch.setattr(Slot, "copy", slow)
    state = {k: v + 1 for k, v in job.model.state_dict().items()}
    job.saver.save()
    job.model.load_state_dict(state)
    assert len(ended) >= 2  # what may change at any time, and what only the optimizer changes
    job.saver.close()


def test_a_layout_that_changes(tmp_path: Path) -> None:
    """Adam's state comes with its first step; a group of parameters may come later."""
    job = Job(tmp_path, every=None, keep=10)
    job.saver.save(block=True)
    job.train(1)
    job.saver.save(block=True)
    job.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})
    job.train(2)
    job.saver.save(block=True)
    job.saver.close()
    assert sorted(contents(tmp_path)) == [0, 1, 2]


def test_a_version_of_another_model(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.train(1)
    job.saver.save(block=True)
    job.saver.close()
    _, saver = simple(Slow())
    model = model_of(2, 32)
    saver = Checkpointer(model=model, optimizer=Fill(model.parameters()), tiers=[tmp_path.as_uri()])
    with pytest.raises(
        CheckpointError, match=r"version 1 of job on file://\S+: it is of another model.*DEEPVM_JOB"
    ) as found:
        saver.restore_latest()
    assert len(str(found.value)) < 800, "torch's error has a line for each parameter"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tiers": []}, "tiers"),
        ({"tiers": ["ftp://x"]}, "ftp://x"),
        ({"tiers": "/mnt/x"}, "did you mean file:///mnt/x?"),
        ({"every": "soon"}, "every"),
        ({"every": "0s"}, "every"),
        ({"job": "../x"}, "job"),
        ({"extra": {"a": 3}}, "state_dict"),
    ],
    ids=str,
)
def test_bad_arguments(options: dict[str, Any], named: str, tmp_path: Path) -> None:
    model = model_of(1, 4)
    with pytest.raises(RequestError, match=named):
        Checkpointer(
            **{
                "model": model,
                "optimizer": Fill(model.parameters()),
                "tiers": [tmp_path.as_uri()],
                **options,
            }
        )


def test_time_as_schedule(tmp_path: Path) -> None:
    """Between two versions the training works for that time, what it stands still not counted."""
    job = Job(tmp_path, every="0.2s", keep=100)
    made = job.saver._snapshotter
    begun = [made.last_s]
    while len(begun) < 5:
        stood_s = job.saver._context().facts.save_s
        job.train(job.saver.version + 1)
        if made.last_s > begun[-1]:
            assert made.last_s - begun[-1] >= 0.2 + stood_s
            begun.append(made.last_s)
    job.saver.close()
    assert job.saver.metrics["saved"] == 4


def test_a_policy_that_never_saves_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its class: no layout is made for versions that nobody asks for."""

    class Mine(SavePolicy):
        pass

    monkeypatch.setitem(POLICIES, "mine", Mine)
    job = Job(tmp_path, every="mine")
    job.train(2)
    assert job.saver._snapshotter.layout is None
    job.saver.close()


def test_auto_saves_at_once_and_then_as_often_as_pays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPVM_MTBF", "1s")
    job = Job(tmp_path, every="auto", keep=1000)
    job.train(1)
    job.saver.wait()
    end = time.monotonic() + 2
    while time.monotonic() < end:
        job.train(job.saver.version + 1)
    job.saver.close()
    assert 2 <= job.saver.metrics["saved"] < job.saver.version / 2
    monkeypatch.setenv("DEEPVM_MTBF", "soon")
    with pytest.raises(RequestError, match="DEEPVM_MTBF"):
        Job(tmp_path, every="auto")


@pytest.mark.parametrize("name", CHOOSING)
def test_the_simulators_policies_schedule_a_job(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same code decides, with the measured stall and the mean time between failures."""
    monkeypatch.setenv("DEEPVM_MTBF", "30d")
    job = Job(tmp_path, every=name, keep=1000)
    assert type(job.saver._schedule) is type(parse_policy(name))
    job.train(1)
    job.saver.wait()
    job.train(4)
    facts = job.saver._context().facts
    assert facts.mttp_s == facts.scale_s == 30 * 86400 and facts.age_s > 0
    job.saver.close()
    assert job.saver.metrics["saved"] == 1  # the first one; then none for minutes
    with pytest.raises(RequestError, match="hazard"):
        Job(tmp_path, every="sometimes")
    monkeypatch.setenv("DEEPVM_MTBF", "soon")
    with pytest.raises(RequestError, match="DEEPVM_MTBF"):
        Job(tmp_path, every=name)
    Job(tmp_path, every=100).saver.close()


class Held(FileTier):
    """A folder that writes nothing before it is told to."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, keep=1000)
        self.go = threading.Event()

    def put(self, shard: Shard, acknowledged: Callable[[Level], None]) -> None:
        assert self.go.wait(30)
        super().put(shard, acknowledged)


def test_a_training_that_goes_back_waits_for_what_is_under_way(tmp_path: Path) -> None:
    """After a NaN: else it begins at 0, and the version comes to the folder behind its back."""
    tier = Held(tmp_path)
    optimizer, saver = simple(tier, every=2, job="job")
    for _ in range(5):
        optimizer.step()
    assert [(handle.version, handle.done) for handle in saver.handles] == [(2, False), (4, False)]
    threading.Timer(0.3, tier.go.set).start()
    assert saver.restore_latest() == 4 == saver.version
    assert numbers_in(optimizer.param_groups[0]["params"]) == {4.0}
    assert all(handle.done for handle in saver.handles)
    assert [m.version for m in VersionFolder(tmp_path).versions("job")] == [4, 2]
    saver.close()
    assert sorted(contents(tmp_path)) == [2, 4]


def test_a_training_that_goes_back_does_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = Held(tmp_path)
    optimizer, saver = simple(tier, every=2, job="job")
    for _ in range(5):
        optimizer.step()
    monkeypatch.setattr(snapshotter, "WAIT_S", 0.2)
    with pytest.raises(CheckpointError, match="checkpoints 2, 4 are under way"):
        saver.restore_latest()
    assert saver.version == 5 and numbers_in(optimizer.param_groups[0]["params"]) == {5.0}
    tier.go.set()
    monkeypatch.undo()
    assert saver.restore_latest() == 4
    saver.close()


@pytest.mark.parametrize("every", ["0.05s", "auto", "adaptive", "hazard"])
def test_a_training_that_goes_back_saves_on(every: str, tmp_path: Path) -> None:
    """A loss spike, or a damaged version: the steps from an older version on are saved as those of
    any other.
    """
    job = Job(tmp_path, every=every, keep=1000)
    job.train(5)
    job.saver.save(block=True)
    job.train(30)
    job.saver.save(block=True)
    for path in [
        p for p in tmp_path.iterdir() if any(int(n) > 5 for n in re.findall(r"\d{6,}", p.name))
    ]:
        path.unlink()
    assert job.saver.restore_latest() == 5
    made = job.saver._snapshotter
    restored_s = made.last_s
    while made.last_step == 5 and job.saver.version < 30:
        job.train(job.saver.version + 1)
        time.sleep(0.003)
    first, waited_s = made.last_step, made.last_s - restored_s
    job.saver.close()
    assert first in {m.version for m in VersionFolder(tmp_path).versions("job")}
    if every == "0.05s":
        assert 5 < first < 30 and waited_s >= 0.05
    else:
        assert first == 6  # it shows what one costs


def test_fixed_schedules_as_the_simulator_names_them() -> None:
    assert parse_every("static:51") == parse_every(51) == parse_every("51") == EverySteps(51)
    assert (
        parse_every("every:10min")
        == parse_every("10min")
        == parse_every("every:600")
        == EverySeconds(600)
    )
    for wrong in (
        "static:0",
        "static:",
        "every:0",
        "every:soon",
        "young:2",
        "auto:",
        ":",
        "9" * 5000,
    ):
        with pytest.raises(RequestError, match=r"every: .* \(expected a whole number of steps"):
            parse_every(wrong)


@pytest.mark.slow
def test_who_forgets_to_close_loses_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, torch\n"
        "from deepvm.checkpoint import Checkpointer\n"
        "model = torch.nn.Linear(2000, 2000)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "saver = Checkpointer(model=model, optimizer=optimizer, tiers=sys.argv[1:], every=1)\n"
        "model(torch.ones(1, 2000)).sum().backward()\n"
        "optimizer.step()\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path.as_uri()], check=True)
    assert list(contents(tmp_path)) == [1]


@pytest.mark.slow
def test_it_needs_nothing_but_torch_and_the_standard_library(tmp_path: Path) -> None:
    """A training image has no typer and no pydantic."""
    code = (
        "import sys\n"
        "barred = 'boto3 fsspec isal numpy pandas pulp pydantic rich safetensors scipy typer'\n"
        "for name in barred.split(): sys.modules[name] = None\n"
        "import torch\n"
        "from deepvm.checkpoint import training_run\n"
        "model = torch.nn.Linear(4, 1)\n"
        "loader = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2, shuffle=True)\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "options = {'tiers': sys.argv[1], 'every': 1, 'epochs': 1}\n"
        "with training_run(model=model, optimizer=optimizer, loader=loader, **options) as run:\n"
        "    for batch in run:\n"
        "        model(batch).sum().backward()\n"
        "        optimizer.step()\n"
        "        if run.step == 2: break\n"
        "    print(run.checkpointer.version)\n"
    )
    for version in ("2", "4"):
        ended = subprocess.run(
            [sys.executable, "-c", code, tmp_path.as_uri()], capture_output=True, text=True
        )
        assert (ended.returncode, ended.stdout.strip()) == (0, version), ended.stderr


def test_the_best_stays_until_a_better_one_comes(tmp_path: Path) -> None:
    model = model_of(2, 64)
    optimizer = Fill(model.parameters())
    with Checkpointer(
        model=model, optimizer=optimizer, tiers=[tmp_path.as_uri()], every=1, keep=1, keep_every=6
    ) as saver:
        for step in range(1, 11):
            optimizer.step()
            saver.save(block=True, best=step in (3, 5))
            saver.wait()
    assert sorted(VersionFolder(tmp_path).versions("job"), key=lambda m: m.version)[0].best
    assert sorted(contents(tmp_path)) == [5, 6, 10]


def test_the_journal_tells_what_became_of_each_version(tmp_path: Path) -> None:
    model = model_of(2, 64)
    optimizer = Fill(model.parameters())
    journal = tmp_path / "journal.jsonl"
    saver = Checkpointer(
        model=model,
        optimizer=optimizer,
        tiers=[(tmp_path / "f").as_uri()],
        job="mine",
        journal=journal,
    )
    saver.restore_latest()
    optimizer.step()
    saver.save(block=True)
    (tmp_path / "f").rename(tmp_path / "g")
    (tmp_path / "f").write_text("in the way")
    optimizer.step()
    with pytest.raises(CheckpointError):
        saver.save(block=True)
    with pytest.raises(
        CheckpointError, match="version 2 was due and is not safe: .* that is safe: version 1"
    ):
        saver.close()
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    assert all(row["job"] == "mine" and row["rank"] == 0 and row["time"] for row in rows)
    (sent,) = (row for row in rows if row["event"] == "sent")
    assert (sent["version"], sent["tier"]) == (1, (tmp_path / "f").as_uri())
    assert (
        sent["bytes"] == VersionFolder(tmp_path / "g").file("mine", 1).stat().st_size
        and sent["took_s"] > 0
    )
    rows.remove(sent)
    # Two threads write them: a disk that syncs at once may be done first
    rows[1:3] = sorted(rows[1:3], key=lambda row: str(row["event"]), reverse=True)
    assert [(row["event"], row.get("version")) for row in rows] == [
        ("restored", 0),
        ("snapshot", 1),
        ("durable", 1),
        ("snapshot", 2),
        ("failed", 2),
        ("closed", None),
    ]
    assert rows[1]["seconds"] > 0 and rows[2]["seconds"] > 0 and rows[1]["stall_s"] > 0
    assert str(tmp_path / "f") in rows[4]["error"]
    assert (rows[5]["saved"], rows[5]["failed"], rows[5]["skipped"], rows[5]["bytes"]) == (
        1,
        1,
        0,
        sent["bytes"],
    )


def test_a_journal_that_cannot_be_written_costs_no_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = model_of(2, 64)
    optimizer = Fill(model.parameters())
    with Checkpointer(
        model=model, optimizer=optimizer, tiers=[(tmp_path / "f").as_uri()], journal=tmp_path
    ) as saver:
        optimizer.step()
        saver.save(block=True)
    assert "no more events are recorded" in caplog.text
    assert len(contents(tmp_path / "f")) == 1
