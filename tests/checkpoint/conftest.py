"""Folders for the tests of checkpoints."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.checkpoint.folders import memory_folder as memory_folder
from support.checkpoint.folders import (
    temporary_folders_count_as_disks as temporary_folders_count_as_disks,
)
from support.checkpoint.memory_nodes import WAYS, NodeDisk

from deepvm.checkpoint.files import durable_write


@pytest.fixture(autouse=True, scope="module")
def one_name() -> Iterator[None]:
    """A name for training jobs that are given none: that of the test runner's script would differ
    between machines.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEEPVM_JOB", "job")
        yield


@pytest.fixture
def mappable(tmp_path: Path) -> Iterator[Path]:
    """A folder whose files can be mapped and filled (strategy D): not on the overlay of a
    container.
    """
    if durable_write.medium(tmp_path).mappable:
        yield tmp_path
        return
    if not durable_write.medium(Path("/dev/shm")).mappable:
        pytest.skip("no folder here on ext4 or tmpfs")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture(params=WAYS)
def node_disk(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[NodeDisk]:
    """The disk of all nodes in this process, for troubles on each way to it."""
    found = NodeDisk(request.param, monkeypatch)
    yield found
    assert bool(found.early) is (found.way != "complete"), (
        "the versions took another way than this test is about"
    )
