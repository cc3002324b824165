"""Fixtures: folders on disks and in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepvm.checkpoint.files import durable_write

_VOLATILE = durable_write.Medium.volatile


@pytest.fixture(autouse=True)
def temporary_folders_count_as_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where /tmp lies in memory, nothing written there is durable, which most tests ask for."""
    if durable_write.medium(Path(tempfile.gettempdir())).volatile:
        monkeypatch.setattr(durable_write.Medium, "volatile", False)


@pytest.fixture
def memory_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in memory (tmpfs), known as one."""
    if durable_write.medium(Path("/dev/shm")).kind != "tmpfs":
        pytest.skip("no tmpfs here")
    monkeypatch.setattr(durable_write.Medium, "volatile", _VOLATILE)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)
