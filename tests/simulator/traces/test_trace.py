"""Reading traces: which runs are lives, which files are refused with which words."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.simulator.trace_files import REAL, needs_traces, write

from deepvm.errors import CatalogFormatError, RequestError
from deepvm.simulator.traces.trace import Trace, lives_of, read_trace, read_traces


def test_lives_of_a_small_trace(tmp_path: Path) -> None:
    """The first run is nobody's life, the last is one that was only watched."""
    found = read_trace(
        write(tmp_path / "a.json", [1, 1, 0, 1, 1, 1, 0, 0, 1, 0, 1, 1], gap=10)
    ).lives()
    assert found.pairs == ((30.0, True), (10.0, True), (20.0, False))
    assert found.low_s.tolist() == [25, 5, 15] and found.high_s.tolist() == [35, 15, np.inf]
    assert (found.seen_s, found.preemptions) == (60.0, 2)


def test_full_is_the_largest_count_unless_it_is_said(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "a.json", [0, 2, 4, 4, 3, 4, 0, 4, 4], gap=10))
    assert trace.lives().pairs == ((20.0, True), (10.0, True), (20.0, False))
    assert trace.lives(3).pairs == ((40.0, True), (20.0, False))
    assert trace.lives(1).pairs == ((50.0, True), (20.0, False))
    assert trace.lives(5).pairs == ()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 3))
def test_lives_against_a_walk_along_the_ticks(counts: list[int], nodes: int) -> None:
    runs, tick = [], 0
    for up, group in groupby(counts, lambda c: c >= nodes):
        ticks = len(list(group))
        if up and tick > 0:
            runs.append((ticks * 7.0, tick + ticks < len(counts)))
        tick += ticks
    trace = Trace(Path("x"), 7.0, np.array(counts))
    assert trace.lives(nodes).pairs == tuple(runs)
    if max(counts) == nodes:
        assert trace.lives().pairs == tuple(runs)


def test_machines_that_never_were_there_have_no_life(tmp_path: Path) -> None:
    nothing = write(tmp_path / "a.json", [0, 0, 0])
    with pytest.raises(
        CatalogFormatError, match=r"a\.json: no life of all machines begins.*at most 0 at once"
    ):
        lives_of([nothing])
    said: list[str] = []
    found = lives_of([nothing, write(tmp_path / "b.json", [0, 1, 0])], say=said.append)
    assert [p.pairs for p in found] == [((60.0, True),)]
    assert said == [f"{nothing} is left out: no life of all machines begins in it"]


def test_a_folder_is_all_its_files_and_a_copy_counts_once(tmp_path: Path) -> None:
    write(tmp_path / "b.json", [0, 1, 0])
    write(tmp_path / "deep" / "a.json", [0, 1, 1, 0])
    write(tmp_path / "deep" / "c.json", [0, 1, 0])
    write(tmp_path / "deep" / "d.json", [0, 1, 0], gap=61)
    (tmp_path / "readme.txt").write_text("not a trace")
    said: list[str] = []
    found = read_traces([tmp_path], said.append)
    assert [t.path.name for t in found] == ["b.json", "a.json", "d.json"]
    assert said == [f"{tmp_path}/deep/c.json is left out: it holds the same as {tmp_path}/b.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{}",
            "invalid value for metadata.gap_seconds: null (expected the seconds between two tic",
        ),
        ('{"metadata": {"gap_seconds": 0}, "data": [1]}', ":1: invalid value for metadata.gap_sec"),
        ('{"metadata": {"gap_seconds": true}, "data": [1]}', "metadata.gap_seconds: true"),
        ('{"metadata": {"gap_seconds": NaN}, "data": [1]}', "metadata.gap_seconds: nan"),
        ('{"metadata": {"gap_seconds": 1e999}, "data": [1]}', "metadata.gap_seconds: 1E+999"),
        ('{"metadata": {"gap_seconds": 60}, "data": []}', "data: a list of 0 (expected the number"),
        ('{"metadata": {"gap_seconds": 60}, "data": [1, -1]}', "data[1]: -1"),
        ('{"metadata": {"gap_seconds": 60}, "data": [1, 0, true]}', "data[2]: true"),
        ('{"metadata": {"gap_seconds": 60}, "data": [0.5]}', "data[0]: 0.5"),
        ('{"metadata": {"gap_seconds": 60}, "data": [100001]}', "data[0]: 100001"),
        ('{"metadata": {"gap_seconds": 60}, "data": [1], "data": [0]}', "repeated key data"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(CatalogFormatError) as error:
        read_trace(path)
    assert str(path) in str(error.value) and message in str(error.value)


def test_every_wrong_count_is_named(tmp_path: Path) -> None:
    with pytest.raises(CatalogFormatError) as error:
        read_trace(write(tmp_path / "a.json", [1, "up", None, 1], gap="600"))
    assert [p.key for p in error.value.problems] == ["metadata.gap_seconds", "data[1]", "data[2]"]


def test_missing_files_and_wrong_wishes(tmp_path: Path) -> None:
    with pytest.raises(CatalogFormatError, match="does not exist .expected a trace"):
        read_trace(tmp_path / "none.json")
    with pytest.raises(CatalogFormatError, match="holds no .json file"):
        read_traces([tmp_path])
    with pytest.raises(RequestError):
        read_traces([])
    path = write(tmp_path / "a.json", [0, 1, 0])
    with pytest.raises(RequestError, match="nodes: 0"):
        lives_of([path], nodes=0)
    with pytest.raises(CatalogFormatError, match="no life of 2 machines"):
        lives_of([path], nodes=2)


@needs_traces
def test_the_real_traces() -> None:
    """34 files, of which three are the same: 32 histories.

    Two of the three would be counted twice more.
    """
    said: list[str] = []
    pools = lives_of([REAL], say=said.append)
    files = sorted(REAL.rglob("*.json"))
    assert (len(files), len(pools), len(said)) == (34, 32, 2)
    assert (sum(p.life_s.size for p in pools), sum(p.preemptions for p in pools)) == (4276, 4254)
    for file in files:
        raw = json.loads(file.read_text())
        trace = read_trace(file)
        assert (
            trace.counts.tolist() == raw["data"] and trace.gap_s == raw["metadata"]["gap_seconds"]
        )
        # The largest count is what was asked for
        assert trace.nodes == int(file.parts[-3].removesuffix("-node"))
