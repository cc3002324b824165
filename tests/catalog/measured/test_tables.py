"""The file of measured tables: whatever happens while it is written, and whatever stands in it when
it is read.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import platformdirs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.profiling.measurements import (
    DAY,
    WORKLOAD,
    eflops,
    eflops_document,
    saturation,
    saturation_document,
    scaling,
    scaling_document,
    tables,
)
from support.small_disk import small_disk

from deepvm.catalog.measured import tables as storage
from deepvm.catalog.measured.entries import Entry
from deepvm.catalog.measured.tables import (
    PREVIOUS,
    Tables,
    encode_tables,
    entry_of,
    load_tables,
    previous_tables,
    read_tables,
    restore_previous,
    save_entries,
)
from deepvm.errors import CatalogFormatError, DataError, RequestError
from deepvm.io.atomic_write import write_bytes
from deepvm.io.user_dirs import MEASURED, own_data_folder

FORK = multiprocessing.get_context("fork")


def test_saved_and_loaded(tmp_path: Path) -> None:
    entries = (eflops("g4dn.xlarge"), scaling("g4dn.xlarge"), saturation())
    before, after = save_entries(tmp_path / "new" / "folder", entries)
    assert (
        load_tables(tmp_path / "new" / "folder").entries
        == after.entries
        == tables(*entries).entries
    )
    assert not before and Path(after.path).name == MEASURED


def test_of_two_of_the_same_thing_the_later_stays(tmp_path: Path) -> None:
    early, late = eflops("g4dn.xlarge", 1e12), eflops("g4dn.xlarge", 2e12, DAY + timedelta(1))
    for order in ((early, late), (late, early)):
        folder = tmp_path / str(order[0].document["eflops"])
        for entry in order:
            save_entries(folder, [entry])
        assert load_tables(folder).entries == (late,)
    again = eflops("g4dn.xlarge", 3e12)  # of the same moment: the one that is saved now
    assert tables(early).merged([again]).entries == (again,)


def test_the_previous_version_is_kept_and_comes_back(tmp_path: Path) -> None:
    first, second = eflops("g4dn.xlarge"), eflops("g5.xlarge")
    with pytest.raises(DataError, match="there is no earlier version"):
        restore_previous(tmp_path)
    save_entries(tmp_path, [first])
    save_entries(tmp_path, [second])
    assert previous_tables(tmp_path).entries == (first,)
    save_entries(tmp_path, [second])  # nothing new: no version of its own
    save_entries(tmp_path, [])
    assert previous_tables(tmp_path).entries == (first,)
    restore_previous(tmp_path)
    assert load_tables(tmp_path).entries == (first,)
    restore_previous(tmp_path)
    assert load_tables(tmp_path).entries == (first, second)
    save_entries(tmp_path, (), [first.name])
    assert load_tables(tmp_path).entries == (second,)
    assert previous_tables(tmp_path).entries == (first, second)


def test_the_first_change_can_be_undone_too(tmp_path: Path) -> None:
    """Before it nothing was measured, which no file says."""
    save_entries(tmp_path, [eflops("g4dn.xlarge")])
    restore_previous(tmp_path)
    assert load_tables(tmp_path).entries == ()
    restore_previous(tmp_path)
    assert load_tables(tmp_path).entries == (eflops("g4dn.xlarge"),)


def test_a_damaged_first_file_gives_way_and_is_kept(tmp_path: Path) -> None:
    (tmp_path / MEASURED).write_text("{")
    restore_previous(tmp_path)
    assert load_tables(tmp_path).entries == ()
    assert (tmp_path / PREVIOUS).read_text() == "{"
    with pytest.raises(CatalogFormatError) as refused:
        restore_previous(tmp_path)
    assert f"remove {tmp_path / PREVIOUS}" in refused.value.__notes__[0]
    save_entries(tmp_path, [eflops("g4dn.xlarge")])
    assert load_tables(tmp_path).entries == (eflops("g4dn.xlarge"),)


def test_no_room_for_the_previous_version_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        if path.name == PREVIOUS:
            raise DataError(f"{path}: cannot be written: No space left on device")
        write_bytes(path, data)

    save_entries(tmp_path, [eflops("g4dn.xlarge")])
    monkeypatch.setattr(storage, "write_bytes", full)
    with pytest.raises(DataError, match="No space left on device"):
        save_entries(tmp_path, [eflops("g5.xlarge")])
    assert load_tables(tmp_path).entries == (eflops("g4dn.xlarge"),)
    assert {p.name for p in tmp_path.iterdir()} == {MEASURED, storage.LOCK}


# --- kills, full disks, several at once ---


def killed_at(folder: str, step: int) -> None:
    """Save, and die in the system call with this number among those that change the folder."""
    left = step

    def dying(call: Any) -> Any:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return wrapped

    for name in ("open", "replace", "link", "fsync", "unlink", "fchmod"):
        setattr(os, name, dying(getattr(os, name)))
    save_entries(folder, [eflops("g5.xlarge")])


@pytest.mark.system
def test_a_kill_at_any_step_leaves_whole_tables(tmp_path: Path) -> None:
    old, both = (eflops("g4dn.xlarge"),), (eflops("g4dn.xlarge"), eflops("g5.xlarge"))
    ends = []
    for step in range(100):
        folder = tmp_path / str(step)
        save_entries(folder, [scaling("g3s.xlarge")])
        save_entries(folder, (), [scaling("g3s.xlarge").name])
        save_entries(folder, old)
        process = FORK.Process(target=killed_at, args=(str(folder), step))
        process.start()
        process.join(60)
        assert load_tables(folder).entries in (old, both)
        assert previous_tables(folder).entries in ((), old)
        ends.append(load_tables(folder).entries)
        # And the next save works.
        save_entries(folder, [eflops("g5.xlarge")])
        assert load_tables(folder).entries == both
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    else:
        pytest.fail("it never came to the end")
    assert step > 5 and old in ends and both in ends
    save_entries(folder, [saturation()])
    assert {p.name for p in folder.iterdir()} == {MEASURED, PREVIOUS, storage.LOCK}


def test_the_new_tables_are_on_the_disk_before_they_have_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut, which no kill can stand for, must not leave the name with an empty file."""
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        steps.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        fsync(descriptor)

    def renamed(old: Any, new: Any) -> None:
        steps.append(f"{Path(old).name} to {Path(new).name}")
        replace(old, new)

    save_entries(tmp_path, [eflops("g4dn.xlarge")])
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    save_entries(tmp_path, [eflops("g5.xlarge")])
    assert steps[0].startswith("fsync ..measured.json.")
    assert steps[-2].startswith(f".{MEASURED}.") and steps[-2].endswith(f" to {MEASURED}")
    assert steps[-1] == f"fsync {tmp_path.name}"


def save_many(folder: str, name: str, count: int, start: Any) -> None:
    start.wait(60)
    for i in range(count):
        save_entries(folder, [eflops(f"{name}{i}.xlarge")])


@pytest.mark.system
def test_saves_at_once_lose_nothing(tmp_path: Path) -> None:
    start, count = FORK.Barrier(3), 12
    processes = [
        FORK.Process(target=save_many, args=(str(tmp_path), name, count, start)) for name in "abc"
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [p.exitcode for p in processes] == [0, 0, 0]
    assert {e.subject for e in load_tables(tmp_path)} == {
        f"{n}{i}.xlarge" for n in "abc" for i in range(count)
    }


def test_a_lock_that_nobody_lets_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    monkeypatch.setattr(storage, "LOCK_WAIT_S", 0.2)
    save_entries(tmp_path, [eflops("g4dn.xlarge")])
    with open(tmp_path / storage.LOCK) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(
            DataError, match=r"another process has locked .*; nothing was saved, try again"
        ):
            save_entries(tmp_path, [eflops("g5.xlarge")])
    assert len(load_tables(tmp_path)) == 1


def test_a_full_disk_leaves_the_old_tables(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "128k") as place:
        leaves_the_old_tables(place)


def leaves_the_old_tables(disk: Path) -> None:
    first, second = eflops("a.xlarge", notes="x" * 1000), eflops("b.xlarge", notes="x" * 1000)
    save_entries(disk, [first])
    save_entries(disk, [second])
    with pytest.raises(DataError, match=r"No space left on device"):
        save_entries(disk, [eflops("c.xlarge", notes="x" * 120_000)])
    assert load_tables(disk).entries == (first, second)
    assert previous_tables(disk).entries == (first,)
    assert {p.name for p in disk.iterdir()} == {MEASURED, PREVIOUS, storage.LOCK}


def test_damaged_tables_are_not_overwritten(tmp_path: Path) -> None:
    save_entries(tmp_path, [eflops("g4dn.xlarge")])
    (tmp_path / MEASURED).write_text("{")
    with pytest.raises(CatalogFormatError) as refused:
        save_entries(tmp_path, [eflops("g5.xlarge")])
    assert "deepvm tables restore" in refused.value.__notes__[0]
    assert (tmp_path / MEASURED).read_text() == "{"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="DEEPVM_DATA_DIR names another folder"):
        save_entries(tmp_path / "file" / "folder", [eflops("g4dn.xlarge")])


# --- what stands in a file ---


def good() -> dict[str, Any]:
    entries = (eflops("g4dn.xlarge"), saturation(), scaling("g4dn.xlarge"))
    document: dict[str, Any] = json.loads(encode_tables(tables(*entries)))
    return document


def changed(path: tuple[Any, ...], value: Any) -> str:
    document = good()
    at: Any = document
    for step in path[:-1]:
        at = at[step]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return json.dumps(document)


EFLOPS, SATURATION, SCALING = (("entries", i) for i in range(3))
BAD: dict[str, tuple[str | bytes, str]] = {
    "time without a zone": (
        changed((*EFLOPS, "measured_at"), "2026-03-01T12:00:00"),
        "with a time zone",
    ),
    "a size twice": (
        changed((*SCALING, "document", "points", 2, "n"), 2),
        "points[2].n: 2 occurs twice",
    ),
    "only one VM": (
        changed((*SCALING, "document", "points"), [{"n": 1, "speedup": 1}]),
        "no n above 1",
    ),
    "a key twice": (
        json.dumps(good()).replace('"kind"', '"kind": "eflops", "kind"', 1),
        "repeated key entries[0].kind",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_named_with_the_place(name: str, tmp_path: Path) -> None:
    content, named = BAD[name]
    file = tmp_path / MEASURED
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CatalogFormatError) as refused:
        load_tables(tmp_path)
    assert str(refused.value).startswith(f"{file}:")
    assert named in str(refused.value)
    assert "catalog show" not in str(refused.value)


def test_a_good_file_is_good(tmp_path: Path) -> None:
    """So that what the cases above change is what is refused."""
    (tmp_path / MEASURED).write_text(json.dumps(good()))
    assert len(load_tables(tmp_path)) == 3


def test_files_that_are_none(tmp_path: Path) -> None:
    place = tmp_path / MEASURED
    place.mkdir()
    with pytest.raises(CatalogFormatError, match="is a folder"):
        load_tables(tmp_path)
    place.rmdir()
    os.mkfifo(place)
    with pytest.raises(CatalogFormatError, match="is a pipe"):
        load_tables(tmp_path)
    place.unlink()
    with open(place, "wb") as stream:
        stream.truncate(65 * 2**20)
    with pytest.raises(CatalogFormatError, match="has 65 MiB"):
        load_tables(tmp_path)
    place.unlink()
    place.symlink_to("nowhere")
    with pytest.raises(CatalogFormatError, match="does not exist"):
        load_tables(tmp_path)


@pytest.mark.parametrize(
    ("document", "types", "error"),
    [
        (eflops_document(), {}, "instance_type: ''"),
        (saturation_document(), {"sender_type": "a"}, "receiver_type: ''"),
    ],
)
def test_entries_need_their_types(document: Any, types: dict[str, str], error: str) -> None:
    with pytest.raises(RequestError) as refused:
        entry_of(document, measured_at=DAY, **types)
    assert error in str(refused.value)


def test_a_document_that_is_not_valid_is_named() -> None:
    with pytest.raises(CatalogFormatError, match=r"^my\.json: points: no n above 1"):
        entry_of(scaling_document(((1, 1),)), measured_at=DAY, instance_type="a", name="my.json")


# --- any tables, there and back ---

WORDS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"]),
    min_size=1,
    max_size=12,
).filter(lambda s: s == s.strip() and not s.startswith("#"))
NUMBERS = st.floats(1e7, 1e20)
EXTRAS = st.dictionaries(
    WORDS,
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS,
    max_size=3,
).map(lambda d: {"extra": d})
MOMENTS = st.datetimes(
    datetime(2001, 1, 1), datetime(2199, 1, 1), timezones=st.just(timezone.utc)
).map(lambda d: d.replace(microsecond=0))


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    kind = draw(st.sampled_from(["eflops", "scaling", "saturation"]))
    workload = {**WORKLOAD, "model": draw(WORDS), "batch": draw(st.none() | st.integers(1, 999))}
    extra = draw(EXTRAS)
    if kind == "eflops":
        document = eflops_document(draw(NUMBERS), workload=workload, **extra)
    elif kind == "scaling":
        sizes = draw(st.sets(st.integers(2, 1000), min_size=1, max_size=4))
        speedups = draw(st.lists(st.floats(1e-6, 1e6), min_size=len(sizes), max_size=len(sizes)))
        document = scaling_document(zip(sizes, speedups, strict=True), workload=workload, **extra)
    else:
        knee = draw(st.none() | st.floats(1, 1000))
        document = saturation_document(
            knee, draw(st.none() | st.floats(0.001, 1000)), transport=draw(WORDS), **extra
        )
    types = ("sender_type", "receiver_type") if kind == "saturation" else ("instance_type",)
    return entry_of(document, measured_at=draw(MOMENTS), **{t: draw(WORDS) for t in types})


@settings(max_examples=examples(100))
@given(st.lists(entries(), max_size=5), st.lists(entries(), max_size=3))
def test_there_and_back(first: list[Entry], second: list[Entry]) -> None:
    """Saved, exported, imported elsewhere: the same.

    And in whatever order, of different moments, the same.
    """
    with tempfile.TemporaryDirectory() as name:
        here, there = Path(name) / "here", Path(name) / "there"
        save_entries(here, first)
        save_entries(here, second)
        exported = Path(name) / "export.json"
        exported.write_bytes(encode_tables(load_tables(here)))
        _, imported = save_entries(there, read_tables(exported))
        assert imported.entries == load_tables(there).entries == load_tables(here).entries
        assert load_tables(here).entries == Tables().merged(first).merged(second).entries
        assert [e.name for e in imported] == sorted({e.name for e in [*first, *second]})
        if len({e.measured_at for e in [*first, *second]}) == len(first) + len(second):
            assert Tables().merged(second).merged(first).entries == imported.entries


# --- where it is, and what it costs ---


def test_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for environ in ({"XDG_DATA_HOME": str(tmp_path)}, {"XDG_DATA_HOME": ""}, {}):
        monkeypatch.delenv("XDG_DATA_HOME", raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        assert own_data_folder(environ) == platformdirs.user_data_path("deepvm")
    assert own_data_folder({"DEEPVM_DATA_DIR": str(tmp_path)}) == tmp_path


def test_without_a_file_nothing_slow_is_loaded(tmp_path: Path) -> None:
    script = (
        "import sys; from deepvm.catalog.measured.tables import load_tables; load_tables();"
        " print(*sys.modules)"
    )
    environment = {**os.environ, "DEEPVM_DATA_DIR": str(tmp_path)}
    out = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert not {
        "pydantic",
        "pydantic.main",
        "pandas",
        "scipy",
        "deepvm.catalog.measured.apply",
    } & set(out.stdout.split())
