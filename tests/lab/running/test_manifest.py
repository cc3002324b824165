"""The manifest of a matrix: whole at every moment, and what is damaged is an error."""

from __future__ import annotations

import csv
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lab.made_runs import CONFIG

from deepvm.errors import DataError
from deepvm.lab.running import manifest as about
from deepvm.lab.running.manifest import NAME, Manifest, Row, RunState, key_of, read_manifest

ROW = Row("0123456789abcdef", "a-b-c-d-s0", "a", "b", "c", "d", 0, "completed", 1.5, 2.25, 3, "")
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
STATES, COUNT, AMOUNT = (
    st.sampled_from([s.value for s in RunState]),
    st.integers(0, 9),
    st.floats(0, 1e6),
)
ROWS = st.builds(Row, *[TEXT] * 6, COUNT, STATES, AMOUNT, AMOUNT, COUNT, TEXT)


@settings(deadline=None)
@given(st.lists(ROWS, max_size=5, unique_by=lambda row: row.run))
def test_rows_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row]
) -> None:
    folder = tmp_path_factory.mktemp("out")
    manifest = Manifest(folder)
    for row in rows:
        manifest.add(row)
    assert list(Manifest(folder).rows.values()) == rows


def test_a_run_has_one_row_the_newest(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path)
    manifest.add(ROW)
    manifest.add(dataclasses.replace(ROW, run="other"))
    manifest.add(dataclasses.replace(ROW, state="skipped_exists"))
    with (tmp_path / NAME).open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["state"]) for row in rows] == [
        ("a-b-c-d-s0", "skipped_exists"),
        ("other", "completed"),
    ]


def test_threads_lose_no_row(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path)
    threads = [
        threading.Thread(
            target=lambda n=n: [
                manifest.add(dataclasses.replace(ROW, run=f"{n}-{i}")) for i in range(20)
            ]
        )
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_manifest(tmp_path)) == 80


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has other columns"),
        ("key,run\n", "has other columns"),
        ("{}\n" * 3, "has other columns"),
        ("HEAD\n0123,r,a,b,c,d,zero,completed,1,2,3,\n", "damaged"),
        ("HEAD\n0123,r,a,b\n", "damaged"),
        ("HEAD\n\x00\n", "damaged"),
    ],
)
def test_a_damaged_manifest_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    head = ",".join(field.name for field in dataclasses.fields(Row))
    (tmp_path / NAME).write_text(text.replace("HEAD", head))
    with pytest.raises(DataError, match=f"manifest.csv: {message}"):
        read_manifest(tmp_path)


def test_no_manifest_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="give the folder of 'deepvm lab run --out'"):
        read_manifest(tmp_path)


def test_a_manifest_is_whole_whenever_its_writer_is_killed(tmp_path: Path) -> None:
    code = (
        "import dataclasses, pathlib, sys\nfrom deepvm.lab.running.manifest import Manifest,"
        " Row\nmanifest = Manifest(pathlib.Path(sys.argv[1]))\nfor i in range(10**6):\n   "
        " manifest.add(Row('k', f'run-{i % 50}', *'abcd', 0, 'completed', float(i), 1.0, 0, 'x' *"
        " 200))\n"
    )
    for turn in range(5):
        process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
        while not (tmp_path / NAME).exists():
            time.sleep(0.01)
        time.sleep(0.03 + 0.01 * turn)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert 1 <= len(read_manifest(tmp_path)) <= 50


@pytest.mark.system
def test_a_key_changes_with_what_may_change_a_run(tmp_path: Path) -> None:
    known = about.environment(tmp_path)
    first = key_of(CONFIG, known)
    assert first == key_of(dict(CONFIG), dict(known)) and len(first) == 16 and int(first, 16) >= 0
    assert key_of({**CONFIG, "seed": 4}, known) != first
    for name in ("PyTorch", "Python", "CPU", "deepvm"):
        assert name in known and key_of(CONFIG, {**known, name: "other"}) != first


def test_the_code_of_training_is_part_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for room in ("lab", "checkpoint", "profiling/workload", "reports"):
        (tmp_path / room).mkdir(parents=True)
        (tmp_path / room / "a.py").write_text("1")
    monkeypatch.setattr("deepvm.__file__", str(tmp_path / "__init__.py"))
    versions = []
    for path in (None, "lab/a.py", "checkpoint/b.py", "profiling/workload/c.py", "reports/a.py"):
        if path is not None:
            (tmp_path / path).write_text(f"{path}")
        about.code_version.cache_clear()
        versions.append(about.code_version())
    about.code_version.cache_clear()
    assert len(set(versions)) == 4 and versions[3] == versions[4]
