"""Outputs in a folder and in a bucket: whole or as before, and only names below a folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.checkpoint.object_store import BUCKET, running
from support.effort import in_ring_2

from deepvm.checkpoint.tiers.s3 import Bucket
from deepvm.errors import CheckpointError
from deepvm.jobs.storage.output_store import (
    FolderObjects,
    MachineOutputs,
    OutputFile,
    OutputStore,
    named_outputs,
    unfit,
)

pytestmark = pytest.mark.xdist_group("object store")  # one process starts the server, once


@contextmanager
def in_a_folder(folder: Path) -> Iterator[OutputStore]:
    yield OutputStore(FolderObjects(folder / "versions" / "job" / "outputs"))


@contextmanager
def in_a_bucket(folder: Path) -> Iterator[OutputStore]:
    with running() as found:
        place = "run/job/outputs"
        yield OutputStore(Bucket(BUCKET, place, endpoint=found.url, attempts=1))


PLACES = {"folder": in_a_folder, "bucket": in_a_bucket}


@pytest.fixture(params=in_ring_2(PLACES, "bucket"))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OutputStore]:
    with PLACES[request.param](tmp_path) as found:
        yield found


def send(store: OutputStore, machine: str, data: bytes) -> OutputFile:
    sha256 = hashlib.sha256(data).hexdigest()
    store.send(machine, sha256, len(data), lambda start, end: data[start:end])
    return OutputFile(len(data), sha256, 1, 0, 5.0)


def test_what_is_kept_is_read(store: OutputStore) -> None:
    assert store.machines() == [] and store.read("m1").files == {}
    large = bytes(range(256)) * 40_000  # more than one request's
    files = {"model.pt": send(store, "m1", large), "logs/a.txt": send(store, "m1", b"a")}
    store.write(MachineOutputs("m1", files))
    store.write(MachineOutputs("m10", {"b": send(store, "m10", b"b")}))
    store.write(MachineOutputs("m2", {}))
    assert store.machines() == ["m1", "m2", "m10"]
    assert store.read("m1").files == files
    assert b"".join(store.pieces("m1", files["model.pt"])) == large


def test_bytes_that_are_not_named_any_more_are_removed(store: OutputStore) -> None:
    old = send(store, "m1", b"old")
    store.write(MachineOutputs("m1", {"model.pt": old}))
    new = send(store, "m1", b"new")
    store.write(MachineOutputs("m1", {"model.pt": new}))
    assert b"".join(store.pieces("m1", new)) == b"new"
    with pytest.raises(CheckpointError):
        list(store.pieces("m1", old))


def test_a_folder_that_is_not_here_is_no_empty_one(tmp_path: Path) -> None:
    store = OutputStore(FolderObjects(tmp_path / "gone" / "run" / "job" / "outputs"))
    with pytest.raises(CheckpointError, match="there is no such folder"):
        store.machines()


def document(name: str, machine: str = "m1", **changes: object) -> bytes:
    file = {"bytes": 1, "sha256": "a" * 64, "generation": 1, "rank": 0, "kept_s": 1.0, **changes}
    return json.dumps({"machine": machine, "files": {name: file}}).encode()


@pytest.mark.parametrize(
    "data",
    [
        document("/etc/passwd"),
        document("../../.ssh/authorized_keys"),
        document("a/../../b"),
        document("a//b"),
        document("./a"),
        document("a\0b"),
        document(""),
        document("\udc80"),
        document("a", "../m1"),
        document("a", sha256="../../../../etc/passwd"),
        document("a", sha256="aa"),
        document("a", bytes=-1),
        document("a", bytes=True),
        document("a", rank="0"),
        document("a", kept_s="now"),
        document("a", kept_s=1e300),
        document("a", kept_s=10**400),
        document("a", sha256=1),
        document("a", more=1),
        json.dumps({"machine": "m1", "files": {f"f{n}": {} for n in range(3)}}).encode(),
        b"[]",
        b"not JSON",
        b"[" * 100_000,
    ],
)
def test_a_list_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="."):
        MachineOutputs.from_json(data)


@given(st.text())
def test_a_name_that_fits_stays_below_its_folder(name: str) -> None:
    if not unfit(name):
        path = Path("/folder", name)
        assert os.path.normpath(path).startswith("/folder/") and path.name
        assert PurePosixPath(name).as_posix() == name


def of(machine: str, generation: int, rank: int, **contents: str) -> MachineOutputs:
    files = {
        name: OutputFile(1, content * 64, generation, rank, float(generation))
        for name, content in contents.items()
    }
    return MachineOutputs(machine, files)


Names = Callable[..., dict[str, str]]


def names(found: list[MachineOutputs], *, all_files: bool = False) -> dict[str, str]:
    return {one.name: one.file.sha256[0] for one in named_outputs(found, all_files=all_files)}


def test_the_newest_generations_first_machine_has_the_name() -> None:
    found = [
        of("m1", 1, 0, model="a", old="b", same="c"),
        of("m2", 2, 1, model="d", log="e", same="c"),
        of("m3", 2, 0, model="f", log="1"),
    ]
    newest = {"model": "f", "log": "1", "old": "b", "same": "c"}
    # Of one generation nothing is lost; what a later one has written again is replaced
    both = {"machines/m2/model": "d", "machines/m2/log": "e"}
    assert names(found) == newest | both
    assert names(found, all_files=True) == newest | both | {"machines/m1/model": "a"}


def test_a_name_of_the_scripts_own_is_not_taken() -> None:
    found = [of("m1", 1, 0, a="1", **{"machines/m2/a": "2"}), of("m2", 1, 1, a="3")]
    assert names(found) == {"a": "1", "machines/m2/a": "2", "machines/machines/m2/a": "3"}


def test_another_machines_list_is_refused(store: OutputStore) -> None:
    store.write(MachineOutputs("m1", {}))
    objects = store._objects
    objects.write(f"{objects.prefix}m2.json", MachineOutputs("m1", {}).to_json())
    with pytest.raises(ValueError, match="names another machine"):
        store.read("m2")


def test_a_later_time_counts_in_one_generation() -> None:
    early = OutputFile(1, "a" * 64, 1, 0, 1.0)
    assert early.precedence < replace(early, kept_s=2.0).precedence
