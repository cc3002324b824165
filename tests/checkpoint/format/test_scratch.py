"""A layout is tested without a folder.

Where there is no place at all, versions are slower or the error names it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.checkpoint.zip_images import write  # noqa: E402

from deepvm.checkpoint.format import torch_zip  # noqa: E402
from deepvm.checkpoint.format.flatten import flatten  # noqa: E402
from deepvm.checkpoint.format.torch_zip import plan_image  # noqa: E402
from deepvm.errors import CheckpointError  # noqa: E402

TREE = {"a": torch.arange(1000.0), "version": 3}


def refused(*_: Any) -> int:
    raise OSError(38, "Function not implemented")


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files that is none."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    monkeypatch.setattr(torch_zip, "_warned", set())
    return tmp_path / "gone"


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux only")
def test_no_folder_is_needed(nowhere: Path, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    write(TREE, tmp_path / "x.pt")
    assert torch.load(tmp_path / "x.pt", weights_only=True)["a"].tolist() == TREE["a"].tolist()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_folder_serves_where_there_are_no_files_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "memfd_create", refused, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert plan_image(TREE).size > 4000
    assert not list(tmp_path.iterdir())


def test_where_there_is_neither_the_folder_is_named(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "memfd_create", refused, raising=False)
    with pytest.raises(CheckpointError, match=f"{nowhere}: .*TMPDIR"):
        plan_image(TREE)
    image = torch_zip.lay_out(TREE, flatten(TREE), 1)
    assert not image.lasting and "saved by torch.save" in caplog.text
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(nowhere)])
    with pytest.raises(CheckpointError, match="TMPDIR.*No usable temporary directory"):
        plan_image(TREE)


SCRIPT = """
import resource, sys, torch
from deepvm.checkpoint import Checkpointer
resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))
model = torch.nn.Linear(1000, 1000)
try:
    with Checkpointer(model=model, optimizer=torch.optim.SGD(model.parameters()), tiers=[sys.argv[1]]) as saver:
        print("skipped", saver.save().skipped)
        saver.save(block=True)
except Exception as error:
    print(type(error).__name__, error)
"""  # noqa: E501


def test_a_limit_for_files_is_told(tmp_path: Path) -> None:
    """The layout falls back on torch.save, and then the folder says what it cannot do."""
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "saved by torch.save" in ended.stderr and "file size limit" in ended.stderr
    assert "CheckpointError" in ended.stdout and str(tmp_path) in ended.stdout
