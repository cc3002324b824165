"""The faulty disk: what is written below its folder meets it by whatever way Python writes, and
nothing else does.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import time
from collections import ChainMap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from deepvm.lab.faults.disk import FailingDisk, Faults, FaultyDisk, FullDisk, SlowDisk
from deepvm.lab.faults.fault import FaultSchedule

DATA = bytes(4096)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Faults], list[str]]:
    """Put it below tmp_path/here; returns the errors that it has made."""
    (tmp_path / "here").mkdir()
    for module, names in (
        (os, ("write", "pwrite", "fsync", "fdatasync")),
        (io, ("open",)),
        (builtins, ("open",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name))  # so that it is put back

    def put(faults: Faults) -> list[str]:
        made: list[str] = []
        FaultyDisk(
            tmp_path / "here", faults, lambda event, **facts: made.append(facts.get("error", event))
        ).install()
        return made

    return put


def by_os(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.write(descriptor, DATA)
    finally:
        os.close(descriptor)


def by_pwrite(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.pwrite(descriptor, DATA, 0)
    finally:
        os.close(descriptor)


def by_open(path: Path) -> None:
    with open(path, "wb") as file:
        file.write(DATA)


def by_path(path: Path) -> None:
    path.write_bytes(DATA)


def by_torch(path: Path) -> None:
    with path.open("wb") as file:
        torch.save(torch.zeros(1024), file)


WAYS = [by_os, by_pwrite, by_open, by_path, by_torch]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_write_meets_it(
    way: Callable[[Path], None], install: Any, tmp_path: Path
) -> None:
    made = install(Faults(enospc=1.0))
    with pytest.raises((OSError, RuntimeError)) as raised:
        way(tmp_path / "here" / "file")
    assert isinstance(raised.value, RuntimeError) or raised.value.errno == errno.ENOSPC
    assert set(made) == {"ENOSPC"}
    way(tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere").stat().st_size >= len(DATA)


@pytest.mark.parametrize("way", WAYS)
def test_what_it_lets_through_is_as_it_was_written(
    way: Callable[[Path], None], install: Any, tmp_path: Path
) -> None:
    install(Faults())
    way(tmp_path / "here" / "file")
    way(tmp_path / "elsewhere")
    if way is by_torch:
        assert torch.equal(torch.load(tmp_path / "here" / "file"), torch.zeros(1024))
    else:
        assert (
            (tmp_path / "here" / "file").read_bytes()
            == (tmp_path / "elsewhere").read_bytes()
            == DATA
        )


def test_notes_are_spared(install: Any, tmp_path: Path) -> None:
    made = install(Faults(eio=1.0, enospc=1.0))
    path = tmp_path / "here" / "note.json"
    with path.open("w") as text:
        text.write("{}")
        os.fsync(text.fileno())
    with path.open("ab") as file:
        file.write(b"{}")
        file.flush()
        os.fsync(file.fileno())
    assert path.read_bytes() == b"{}{}" and made == []


def test_shares_are_what_they_say(install: Any, tmp_path: Path) -> None:
    made, failed = install(Faults(enospc=0.25, seed=3)), 0
    for _ in range(400):
        try:
            by_os(tmp_path / "here" / "file")
        except OSError:
            failed += 1
    assert failed == len(made) and 70 <= failed <= 130


@pytest.mark.parametrize(
    ("faults", "error"),
    [(Faults(eio=1e-9, first=True), "EIO"), (Faults(enospc=1e-9, first=True), "ENOSPC")],
)
def test_the_first_one_fails_for_sure(
    faults: Faults, error: str, install: Any, tmp_path: Path
) -> None:
    made = install(faults)
    with pytest.raises(OSError, match=os.strerror(getattr(errno, error))):
        by_os(tmp_path / "here" / "file")
    for _ in range(20):
        by_os(tmp_path / "here" / "file")
    assert made == [error]


def test_a_disk_without_faults_has_no_first_one(install: Any, tmp_path: Path) -> None:
    made = install(Faults(first=True))
    by_os(tmp_path / "here" / "file")
    assert made == []


def test_syncs_fail_too(install: Any, tmp_path: Path) -> None:
    path = tmp_path / "here" / "file"
    path.write_bytes(DATA)
    made = install(Faults(eio=1.0))
    with path.open("rb") as file, pytest.raises(OSError, match=os.strerror(errno.EIO)):
        os.fsync(file.fileno())
    assert made == ["EIO"]


def test_slow_is_as_slow_as_it_says(install: Any, tmp_path: Path) -> None:
    made = install(Faults(mbps=0.02))
    began = time.perf_counter()
    by_open(tmp_path / "here" / "file")
    assert time.perf_counter() - began >= len(DATA) / 0.02e6 and made == ["slowed"]


def test_several_faults_are_one_disk() -> None:
    slow = SlowDisk().faults(FaultSchedule(mbps=2), 5)
    full = FullDisk().faults(FaultSchedule(share=0.2, seed=4), 5)
    failing = FailingDisk().faults(FaultSchedule(share=0.1), 5)
    assert Faults(**ChainMap(slow, full, failing)) == Faults(0.1, 0.2, 2, 5)
    assert Faults(**ChainMap()) == Faults()
