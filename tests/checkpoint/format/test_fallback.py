"""A release of torch whose files are not understood: versions are slower, and as good."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.checkpoint.trainings import Job, Slow, contents, fill_and_save, simple  # noqa: E402

from deepvm.checkpoint.files.commit_record import verify  # noqa: E402
from deepvm.checkpoint.files.version_dir import VersionFolder  # noqa: E402
from deepvm.checkpoint.format import torch_zip  # noqa: E402
from deepvm.checkpoint.format.flatten import flatten  # noqa: E402
from deepvm.errors import CheckpointError  # noqa: E402


@pytest.fixture(autouse=True)
def _unknown_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise CheckpointError("torch loads another state than the one it laid out")

    monkeypatch.setattr(torch_zip, "_test", fails)
    monkeypatch.setattr(torch_zip, "_warned", set())


def test_an_interrupted_run_goes_on_bit_by_bit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = Job(tmp_path / "whole", every=None)
    whole.train(30)
    first = Job(tmp_path / "cut", every=1, keep=100)
    first.train(13)
    first.saver.save(block=True)
    first.saver.close()
    for found in VersionFolder(tmp_path / "cut").found():
        verify(found.path)
    second = Job(tmp_path / "cut", every=1)
    assert second.saver.restore_latest() == 13
    second.train(30)
    assert second.bits() == whole.bits()
    second.saver.close()
    assert [r.message for r in caplog.records if "torch.save" in r.message] == [
        "torch loads another state than the one it laid out; each checkpoint is saved by torch.save"
        " while training stalls"
    ]


def test_a_version_holds_the_numbers_of_one_step(tmp_path: Path) -> None:
    found = fill_and_save(tmp_path, 10, 2)
    assert 10 in found and len(found) >= 2
    assert all(values == {version} for version, values in found.items()), found


def test_a_slow_tier_costs_no_more_memory_than_the_slots() -> None:
    tier = Slow()
    before = threading.active_count()
    optimizer, saver = simple(tier, every=1)
    for _ in range(10):
        optimizer.step()
    saver.wait()
    assert saver.metrics["skipped"] == 8
    tier.go.set()
    assert saver.save(block=True).remote_done.result(0) == 10
    saver.close()
    assert tier.taken == [1, 2, 10]
    assert threading.active_count() <= before + 4


def test_several_ranks_are_told() -> None:
    tree = {"x": torch.ones(3)}
    with pytest.raises(CheckpointError, match="several ranks need a release of torch"):
        torch_zip.lay_out(tree, flatten(tree), 2)


def test_files_are_those_of_torch(tmp_path: Path) -> None:
    fill_and_save(tmp_path, 3, 1)
    assert set(contents(tmp_path)) >= {3}
