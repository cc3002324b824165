"""Outputs on a machine: what is new there, nothing half-written, and a storage that fails."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.jobs.runs import until

from deepvm.errors import CheckpointError
from deepvm.jobs.agent import outputs as agent_outputs
from deepvm.jobs.agent.outputs import Outputs
from deepvm.jobs.storage.output_store import OutputStore, open_objects


class Machine:
    """The outputs of a machine, and what it has reported."""

    def __init__(self, folder: Path, patterns: list[str], tier: str = "") -> None:
        self.code = folder / "machine" / "code"
        self.tier = tier or (folder / "tier").as_uri()
        self.patterns = patterns
        self.reports: list[dict[str, Any]] = []
        self.code.mkdir(parents=True, exist_ok=True)
        self._outputs: Outputs | None = None

    def _report(self, **facts: Any) -> None:
        self.reports.append(facts)

    @property
    def outputs(self) -> Outputs:
        if self._outputs is None:
            spec = {"name": "job", "outputs": self.patterns, "outputs_to": self.tier}
            self._outputs = Outputs("m1", 0.05, spec, self.code, self._report)
            self._outputs.trains(1, 0)
        return self._outputs

    def write(self, name: str, data: bytes = b"\0data") -> Path:
        path = self.code / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def last(self) -> dict[str, Any]:
        """What is reported after a last look."""
        until(lambda: self.outputs.look_last(), 20)
        self.outputs.trains(1, 0)
        return self.reports[-1]

    def kept(self) -> dict[str, bytes]:
        store = OutputStore(open_objects(self.tier, "job"))
        files = store.read("m1").files
        return {name: b"".join(store.pieces("m1", file)) for name, file in files.items()}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    made: list[Machine] = []

    def make(*patterns: str, tier: str = "") -> Machine:
        made.append(Machine(tmp_path, list(patterns), tier))
        return made[-1]

    yield make
    for one in made:
        one.outputs.close(20)


def test_only_what_the_training_has_written(machine: Callable[..., Machine]) -> None:
    here = machine("*.pt", "logs/", "runs/**/*.csv", "*.nope")
    here.write("old.pt")
    changed = here.write("again.pt")
    assert here.outputs is not None
    os.utime(changed, (1, 1))
    here.write("model.pt", b"\0model")
    here.write("logs/deep/a", b"a")
    here.write("runs/1/b.csv", b"b")
    here.write("other.bin")
    found = here.last()
    assert here.kept() == {
        "again.pt": b"\0data",
        "model.pt": b"\0model",
        "logs/deep/a": b"a",
        "runs/1/b.csv": b"b",
    }
    assert (found["files"], found["bytes"], found["why"]) == (4, 13, "")
    assert (found["unmatched"], found["others"]) == (["*.nope"], ["other.bin"])
    (here.code / "model.pt").unlink()
    here.write("again.pt", b"\0new")
    here.last()
    assert here.kept().keys() == {"again.pt", "logs/deep/a", "runs/1/b.csv"}
    assert here.kept()["again.pt"] == b"\0new"


def test_looks_come_by_themselves(machine: Callable[..., Machine]) -> None:
    here = machine("*.txt")
    assert here.outputs is not None
    here.write("log.txt", b"1")
    assert until(lambda: here.kept() == {"log.txt": b"1"}, 10)
    here.write("log.txt", b"12")
    assert until(lambda: here.kept() == {"log.txt": b"12"}, 10)


def test_a_binary_file_that_is_being_written_waits(
    machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    # This process is the trainer, too
    monkeypatch.setattr(agent_outputs, "descendants", lambda pid: {pid})
    here = machine("*.pt", "*.log")
    here.write("model.pt", b"\0old")
    here.outputs.trains(1, 0)
    here.write("model.pt", b"\0whole")
    here.last()
    with (here.code / "model.pt").open("wb") as model, (here.code / "a.log").open("w") as text:
        model.write(b"\0ha")
        model.flush()
        text.write("line 1\n")
        text.flush()
        assert until(lambda: "a.log" in here.kept(), 10)
        # Of a log each line is good; half a model would replace a whole one
        assert here.kept() == {"model.pt": b"\0whole", "a.log": b"line 1\n"}
        with here.outputs.killing():
            pass
    here.outputs.trains(2, 0)
    assert here.last()["why"] == "" and here.kept()["model.pt"] == b"\0whole"
    here.write("model.pt", b"\0next")
    here.last()
    assert here.kept()["model.pt"] == b"\0next"


def test_a_pipe_blocks_nothing(
    machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_outputs, "descendants", lambda pid: {pid})
    here = machine("*")
    here.outputs.trains(1, 0)
    os.mkfifo(here.code / "pipe")
    opened = os.open(here.code / "pipe", os.O_RDWR)
    try:
        here.write("model.pt")
        with here.outputs.killing():
            pass
        here.outputs.look()
        assert until(lambda: here.kept() == {"model.pt": b"\0data"}, 10)
    finally:
        os.close(opened)


def test_links_within_the_folder_count(machine: Callable[..., Machine], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "huge").write_bytes(b"secret")
    here = machine("outputs/", "outputs/*/huge")
    here.outputs.trains(1, 0)
    here.write("outputs/model-2.pt", b"\0two")
    (here.code / "outputs" / "latest.pt").symlink_to("model-2.pt")
    (here.code / "outputs" / "data").symlink_to(tmp_path / "data")
    (here.code / "outputs" / "huge").symlink_to(tmp_path / "data" / "huge")
    here.last()
    assert here.kept() == {"outputs/model-2.pt": b"\0two", "outputs/latest.pt": b"\0two"}


def test_a_storage_that_fails_is_reported_and_tried_again(
    machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a full disk, or a bucket that is out of reach: the training goes on."""
    full = threading.Event()
    full.set()
    send = OutputStore.send

    def sent(self: OutputStore, *words: Any) -> None:
        if full.is_set():
            raise CheckpointError("cannot write: No space left on device")
        send(self, *words)

    monkeypatch.setattr(OutputStore, "send", sent)
    here = machine("*.pt")
    here.outputs.trains(1, 0)
    here.write("model.pt")
    assert (
        until(lambda: here.reports, 10)[-1]["why"]
        == "model.pt: cannot write: No space left on device"
    )
    assert len(here.reports) == 1, "it is said once"
    full.clear()
    assert until(lambda: here.reports[-1]["why"] == "", 10)
    assert here.kept() == {"model.pt": b"\0data"}


def test_a_file_that_cannot_be_kept_does_not_keep_others_from_it(
    machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is too large for what is free in the storage."""
    send = OutputStore.send

    def sent(self: OutputStore, name: str, sha256: str, size: int, *words: Any) -> None:
        if size > 100:
            raise CheckpointError("cannot write: No space left on device")
        send(self, name, sha256, size, *words)

    monkeypatch.setattr(OutputStore, "send", sent)
    here = machine("outputs/")
    here.outputs.trains(1, 0)
    here.write("outputs/a-model.pt", bytes(1000))
    here.write("outputs/log", b"1")
    assert here.last()["why"] == "outputs/a-model.pt: cannot write: No space left on device"
    assert here.kept() == {"outputs/log": b"1"}
    monkeypatch.setattr(agent_outputs, "_MAX_PROBLEMS", 1)
    here.write("outputs/log", b"12")
    here.last()
    assert here.kept() == {"outputs/log": b"1"}  # a storage out of reach is not asked for each


def test_a_storage_that_cannot_be_opened(machine: Callable[..., Machine], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    here = machine("*.pt", tier=(tmp_path / "file").as_uri())
    here.outputs.trains(1, 0)
    here.write("model.pt")
    assert "Not a directory" in here.last()["why"]


def test_no_place_for_outputs(machine: Callable[..., Machine]) -> None:
    here = machine("*.pt")
    here.tier = ""
    here.outputs.trains(1, 0)
    assert here.last()["why"] == ""
    here.write("model.pt")
    assert "none of the job's tiers takes outputs" in here.last()["why"]


def test_an_agent_that_is_started_again_continues(tmp_path: Path) -> None:
    first = Machine(tmp_path, ["*.pt"])
    first.outputs.trains(1, 0)
    first.write("model.pt", b"\0one")
    first.last()
    first.outputs.close(20)
    second = Machine(tmp_path, ["*.pt"])
    second.outputs.trains(2, 0)
    second.write("more.pt", b"\0two")
    second.last()
    second.outputs.close(20)
    assert second.kept() == {"model.pt": b"\0one", "more.pt": b"\0two"}
    store = OutputStore(open_objects(second.tier, "job"))
    files = store.read("m1").files
    assert {name: file.generation for name, file in files.items()} == {"model.pt": 1, "more.pt": 2}


def test_too_many_files(machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_outputs, "MAX_FILES", 2)
    here = machine("**/*")
    here.outputs.trains(1, 0)
    for number in range(3):
        here.write(f"{number}.bin")
    assert "match more than 2 files" in here.last()["why"]


def test_without_patterns_nothing_is_done(machine: Callable[..., Machine]) -> None:
    here = machine()
    here.write("model.pt")
    assert here.outputs.look_last() and not here.reports
    assert not list(here.code.parent.glob("*.json"))
