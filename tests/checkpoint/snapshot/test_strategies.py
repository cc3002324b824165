"""Strategies: whichever way a version leaves the memory, it holds one step's numbers, and the gate
opens in time.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.places import TESTS

torch = pytest.importorskip("torch")

from support.checkpoint.slow_copies import notice_no_change  # noqa: E402
from support.checkpoint.small_training import small  # noqa: E402
from support.checkpoint.trainings import Fill, contents, fill_and_save, model_of  # noqa: E402

from deepvm.checkpoint import Checkpointer  # noqa: E402
from deepvm.checkpoint.arguments import choose_strategy  # noqa: E402
from deepvm.checkpoint.files import durable_write  # noqa: E402
from deepvm.checkpoint.files.commit_record import verify  # noqa: E402
from deepvm.checkpoint.files.durable_write import Medium  # noqa: E402
from deepvm.checkpoint.files.version_dir import VersionFolder  # noqa: E402
from deepvm.checkpoint.snapshot.copying import SnapshotCopy  # noqa: E402
from deepvm.checkpoint.snapshot.host_buffer import Slot  # noqa: E402
from deepvm.checkpoint.snapshot.strategies import DeviceCopyStrategy  # noqa: E402
from deepvm.checkpoint.tiers import file as file_tier  # noqa: E402
from deepvm.errors import CheckpointError, RequestError  # noqa: E402


@pytest.mark.parametrize("strategy", ["C", "G", "D"])
@pytest.mark.parametrize(("every", "slots"), [(1, 2), (4, 1)])
def test_a_version_holds_the_numbers_of_one_step(
    strategy: str, every: int, slots: int, mappable: Path
) -> None:
    found = fill_and_save(mappable, 60, every, pause=True, slots=slots, strategy=strategy)
    assert 60 in found and len(found) >= 2
    assert all(values == {version} for version, values in found.items()), found
    for row in VersionFolder(mappable).found():
        verify(row.path)
    assert not VersionFolder(mappable).leftovers()


def test_without_the_gate_a_clone_mixes_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutation: nobody waits for the clones, which are slowed down."""
    clone = SnapshotCopy._clone

    def slow(self: SnapshotCopy, clones: Any, sources: Any, which: Any) -> None:
        for number in which:
            time.sleep(0.0005)
            clone(self, clones, sources, [number])

    monkeypatch.setattr(SnapshotCopy, "_clone", slow)
    found = fill_and_save(tmp_path / "gate", 30, 5, strategy="G")
    assert found and all(values == {version} for version, values in found.items())
    monkeypatch.setattr(Checkpointer, "_before_step", Checkpointer._before_forward)
    notice_no_change(monkeypatch)
    found = fill_and_save(tmp_path / "none", 30, 5, strategy="G")
    assert any(values != {version} for version, values in found.items())


def test_with_g_training_goes_on_while_the_clone_drains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, copy = threading.Event(), Slot.copy

    def drain(self: Slot, sources: Any, which: Any, *reached: Any) -> None:
        assert not reached or go.wait(30)
        copy(self, sources, which, *reached)

    monkeypatch.setattr(Slot, "copy", drain)
    optimizer, saver = small(tmp_path, strategy="G")
    optimizer.step()
    handle = saver.save()
    for _ in range(10):
        optimizer.step()
    assert not handle.snapshot_done.done()
    go.set()
    assert handle.durable.result(30) == 1
    saver.close()
    assert contents(tmp_path) == {1: {1}}


@pytest.mark.parametrize("why", ["too little is free", "the allocation fails"])
def test_g_without_room_is_c(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("no more memory")

    if why == "too little is free":
        monkeypatch.setattr(DeviceCopyStrategy, "_room", lambda self, device: 10)
    else:
        monkeypatch.setattr(torch, "empty_like", refuse)
    optimizer, saver = small(tmp_path, strategy="G", every=1, keep=9)
    for _ in range(5):
        optimizer.step()
    saver.save(block=True)
    saver.close()
    found = contents(tmp_path)
    assert 5 in found and all(values == {version} for version, values in found.items())
    assert [r.message for r in caplog.records].count(
        caplog.messages[0]
    ) == 1 and "C is used" in caplog.messages[0]


def test_d_uses_the_files_of_deleted_versions_again(mappable: Path) -> None:
    optimizer, saver = small(mappable, strategy="D", slots=1)
    inodes = set()
    for version in range(1, 9):
        optimizer.step()
        saver.save(block=True)
        saver._pipeline.give_back(saver._pipeline.take(30))  # the next slot is there
        inodes |= {p.stat().st_ino for p in mappable.iterdir() if not p.name.endswith(".json")}
        assert set(contents(mappable)) == {v for v in (version - 1, version) if v}
    saver.close()
    # Two that are kept, one that is written, and one more where a spare waits
    assert len(inodes) <= 4
    assert not VersionFolder(mappable).leftovers()


def test_d_leaves_a_version_alone_that_somebody_has_mapped(mappable: Path) -> None:
    optimizer, saver = small(mappable, strategy="D", slots=1)
    optimizer.step()
    saver.save(block=True)
    mapped = torch.load(VersionFolder(mappable).file("job", 1), mmap=True, weights_only=True)
    for _ in range(8):
        optimizer.step()
        saver.save(block=True)
    saver.close()
    assert 1 not in contents(mappable)  # deleted, and its bytes are still those of version 1
    assert mapped["model"]["0.weight"].unique().tolist() == [1]


def test_d_gives_other_tiers_the_same_bytes(mappable: Path, tmp_path: Path) -> None:
    model = model_of(4)
    optimizer = Fill(model.parameters())
    places = [mappable / "a", tmp_path / "b"]
    with Checkpointer(
        model=model, optimizer=optimizer, tiers=[p.as_uri() for p in places], strategy="D"
    ) as saver:
        optimizer.step()
        handle = saver.save(block=True)
        handle.snapshot_done.result(30)
    first, second = (VersionFolder(place).file("job", 1) for place in places)
    assert first.read_bytes() == second.read_bytes()
    assert verify(first).crcs == verify(second).crcs


KILLED = """
import sys, torch
sys.path.insert(0, sys.argv[2])
from support.checkpoint.slow_copies import notice_no_change  # noqa: E402
from support.checkpoint.small_training import small
from pathlib import Path
optimizer, saver = small(Path(sys.argv[1]), strategy="D", keep=9)
for version in range(1, 4):
    optimizer.step()
    saver.save(block=True)
    print(version, flush=True)
"""


@pytest.mark.parametrize(
    "label",
    [
        *(
            pytest.param(p, marks=pytest.mark.slow)
            for p in ("snapshot.after-copy", "home.before-sync")
        ),
        *("home.after-sync", "data.before-rename"),
        pytest.param("record.before-rename", marks=pytest.mark.slow),
    ],
)
def test_d_killed_anywhere_keeps_what_it_acknowledged(label: str, mappable: Path) -> None:
    environ = {**os.environ, "DEEPVM_CHECKPOINT_KILL_AT": f"{label}:2"}
    root = str(TESTS)
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(mappable), root],
        env=environ,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == -signal.SIGKILL and ended.stdout.split() == ["1"], ended.stderr
    folder = VersionFolder(mappable)
    assert [m.version for m in folder.versions("job")] == [1]
    verify(folder.file("job", 1))
    assert folder.leftovers() or label == "record.before-rename"  # hidden, for `ckpt gc`
    _, saver = small(mappable, strategy="D")
    assert saver.restore_latest() == 1
    saver.close()


def test_d_without_space_skips_and_training_goes_on(
    mappable: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    allocate = os.posix_fallocate

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    optimizer, saver = small(mappable, strategy="D", slots=1)
    monkeypatch.setattr(os, "posix_fallocate", full)
    optimizer.step()
    with pytest.raises(CheckpointError, match="version 1 was skipped"):
        saver.save()
    assert "No space left" in caplog.text and str(mappable) in caplog.text
    assert not VersionFolder(mappable).leftovers()
    monkeypatch.setattr(os, "posix_fallocate", allocate)
    optimizer.step()
    assert saver.save(block=True).version == 2
    saver.close()


def test_d_whose_disk_fails_loses_that_version_only(
    mappable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer, saver = small(mappable, strategy="D", keep=9)

    def broken(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(file_tier, "sync", broken)
        optimizer.step()
        with pytest.raises(CheckpointError, match="Input/output error"):
            saver.save(block=True)
    optimizer.step()
    saver.save(block=True)
    saver.close()
    assert contents(mappable) == {2: {2}} and not VersionFolder(mappable).leftovers()


def test_what_cannot_be_used_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match=r"strategy: 'X' \(expected C, G"):
        small(tmp_path, strategy="X")
    with pytest.raises(RequestError, match="file:///folder"):
        choose_strategy("D", [], "job", 1)
    optimizer, saver = small(tmp_path)
    with pytest.raises(RequestError, match="there are 3"):
        choose_strategy("D", saver._pipeline.tiers, "job", 3)
    saver.close()
    monkeypatch.setattr(durable_write, "medium", lambda folder: Medium("btrfs"))
    with pytest.raises(RequestError, match="is on btrfs: use C"):
        small(tmp_path, strategy="D")


def test_a_folder_in_memory_promises_no_more_than_it_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(durable_write, "medium", lambda folder: Medium("tmpfs"))
    optimizer, saver = small(tmp_path)
    assert "tmpfs: it survives the end of this process, not that of the machine" in caplog.text
    optimizer.step()
    handle = saver.save(block=True)
    assert handle.local_done.result(0) == 1
    saver.close()
    for promise in (handle.remote_done, handle.durable):
        with pytest.raises(CheckpointError, match="in this machine's memory only"):
            promise.result(0)


@pytest.mark.parametrize(
    ("medium", "told", "mappable"),
    [
        (Medium("ext4", ("rw", "relatime")), "page cache", True),
        (Medium("ext4", ("rw", "dax=always")), "DAX", True),
        (Medium("xfs", ("rw", "dax")), "DAX", True),
        (Medium("xfs", ("rw",)), "page cache", False),
        (Medium("tmpfs"), "not that of the machine", True),
        (Medium(), "unknown", False),
    ],
)
def test_a_medium_has_an_honest_name(
    medium: Medium, told: str, mappable: bool, monkeypatch: Any
) -> None:
    monkeypatch.undo()
    assert told in str(medium) and medium.mappable is mappable


def test_the_medium_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert durable_write.medium(tmp_path / "a" / "b") == durable_write.medium(tmp_path) != Medium()


def test_memory_is_found_before_the_first_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched, touch = threading.Event(), Slot.touch

    def noted(self: Slot) -> None:
        before = bytes(self.view)
        touch(self)
        assert bytes(self.view) == before  # the skeleton of the file is in it already
        touched.set()

    monkeypatch.setattr(Slot, "touch", noted)
    optimizer, saver = small(tmp_path, every=3)
    optimizer.step()
    assert touched.wait(30)
    optimizer.step()
    optimizer.step()
    saver.save(block=True)
    saver.close()
    assert contents(tmp_path) == {3: {3}}


def test_storages_that_are_replaced_or_grow_are_not_mistaken_for_others(tmp_path: Path) -> None:
    optimizer, saver = small(tmp_path, keep=9)
    parameter = optimizer.param_groups[0]["params"][0]
    for version in range(1, 7):
        optimizer.step()
        if version == 3:
            parameter.data = torch.full_like(parameter, 3.0)
        if version == 4:
            parameter.untyped_storage().resize_(parameter.nbytes * 2)  # the same storage, elsewhere
            parameter.data.fill_(4)
        if version == 5:
            optimizer.load_state_dict(optimizer.state_dict())
        saver.save(block=True)
    saver.close()
    found = contents(tmp_path)
    assert sorted(found) == [1, 2, 3, 4, 5, 6] and all(
        values == {version} for version, values in found.items()
    )
