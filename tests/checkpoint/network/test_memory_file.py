"""A trainer's memory that a node of the same machine reads: who may, and when it is freed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deepvm.checkpoint.network.memory_file import MemoryFile, TrainerMemory, location_of
from deepvm.checkpoint.network.protocol import BrokenError

SIZE = 100_000


def filled(size: int = SIZE) -> MemoryFile:
    memory = MemoryFile(size)
    memory[:] = os.urandom(size)
    return memory


def read(memory: TrainerMemory, start: int, length: int, step: int = 4096) -> bytes:
    view = memoryview(bytearray(length))
    reader = memory.reader(view, start, step)
    for end in (length // 3, length):
        reader(end)
    return bytes(view)


@pytest.mark.parametrize(("start", "length"), [(0, SIZE), (12_345, 54_321), (SIZE - 1, 1)])
def test_what_is_read_is_what_was_written(start: int, length: int) -> None:
    memory = filled()
    opened = TrainerMemory.open(memory.location)
    assert opened is not None
    assert read(opened, start, length) == memory[start : start + length]
    memory[start] ^= 1  # the same memory, no copy of it
    assert read(opened, start, length) == memory[start : start + length]
    opened.close()
    memory.close()


def test_an_image_knows_its_memory() -> None:
    memory = filled()
    view = memoryview(memory)
    assert location_of(view) == memory.location
    # Its bytes would be looked for at other places
    assert location_of(view[5:10]) is None and location_of(memoryview(bytearray(5))) is None
    view.release()


@pytest.mark.parametrize(
    "change",
    [
        {"name": "deepvm-" + "0" * 32},
        {"name": "../self/maps"},
        {"name": 5},
        {"process": 0},
        {"process": 2**70},
        {"process": "1/../self"},
        {"process": True},
        {"file": -1},
        {"file": 10**6},
        {"file": None},
    ],
    ids=str,
)
def test_another_location_is_not_opened(change: dict[str, object]) -> None:
    memory = filled()
    assert TrainerMemory.open({**memory.location, **change}) is None
    memory.close()


@pytest.mark.parametrize("location", [None, "name", [], {}, {"process": 1}], ids=str)
def test_what_is_no_location_is_not_opened(location: object) -> None:
    assert TrainerMemory.open(location) is None


def test_a_file_that_only_the_node_may_read_is_not_read(tmp_path: Path) -> None:
    """A peer can hold any file without permission to read it (``O_PATH``)."""
    memory = filled()
    secret = tmp_path / f"memfd:{memory.location['name']} (deleted)"
    secret.write_text("secret")
    file = os.open(secret, os.O_PATH)
    assert TrainerMemory.open({**memory.location, "file": file}) is None
    os.close(file)
    memory.close()


def test_a_file_that_takes_its_place_meanwhile_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = filled()
    (tmp_path / "secret").write_text("secret")
    opened: list[int] = []
    really_open = os.open

    def swapped(path: str, flags: int) -> int:
        opened.append(really_open(tmp_path / "secret", flags))
        return opened[-1]

    monkeypatch.setattr(os, "open", swapped)
    assert TrainerMemory.open(memory.location) is None
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(opened[0])  # closed


def test_a_file_mounted_under_such_a_name_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a name space of its own a peer can mount one that only the node may read."""
    memory = filled()
    secret = tmp_path / "secret"
    secret.write_text("secret")
    file = os.open(secret, os.O_PATH)
    monkeypatch.setattr(os, "readlink", lambda path: f"/memfd:{memory.location['name']} (deleted)")
    assert TrainerMemory.open({**memory.location, "file": file}) is None
    os.close(file)
    memory.close()


def test_a_forked_worker_keeps_no_memory() -> None:
    memory = filled()
    answers, answer = os.pipe()
    child = os.fork()
    if not child:
        links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        kept = [link for link in links if "memfd" in os.path.realpath(link)]
        memory.close()
        os.write(answer, str(len(kept)).encode())
        os._exit(0)
    assert os.read(answers, 10) == b"0"
    os.waitpid(child, 0)
    os.close(answers)
    os.close(answer)
    opened = TrainerMemory.open(memory.location)
    assert opened is not None and read(opened, 0, SIZE) == memory[:]
    opened.close()
    memory.close()


def test_memory_is_freed_with_its_last_reader() -> None:
    """Although a worker that was forked by other means than Python's keeps the file open."""
    memory = filled()
    worker = os.dup(memory.location["file"])
    view = memoryview(memory)
    with pytest.raises(BufferError):
        memory.close()
    del memory
    assert os.fstat(worker).st_blocks
    del view
    assert os.fstat(worker).st_blocks == 0
    os.close(worker)


def test_memory_is_freed_although_a_forked_worker_keeps_the_file_open() -> None:
    memory = filled()
    worker = os.dup(memory.location["file"])
    opened = TrainerMemory.open(memory.location)
    assert opened is not None and os.fstat(worker).st_blocks
    memory.close()
    assert os.fstat(worker).st_blocks == 0
    with pytest.raises(BrokenError, match="given up the memory"):
        read(opened, 0, 10)
    opened.close()
    os.close(worker)


def test_memory_that_is_in_use_is_not_freed() -> None:
    memory = filled()
    view = memoryview(memory)
    before = bytes(view)
    with pytest.raises(BufferError):
        memory.close()
    assert bytes(view) == before
    view.release()
    memory.close()


def test_no_file_is_left_open() -> None:
    count = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        memory = filled(10)
        opened = TrainerMemory.open(memory.location)
        assert opened is not None
        opened.close()
        del memory
    assert len(os.listdir("/proc/self/fd")) <= count + 1
