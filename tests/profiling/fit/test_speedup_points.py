"""Points as people write them: what is read, and what is said about what cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.errors import CatalogFormatError
from deepvm.profiling.fit.speedup_points import MAX_ROWS, read_medians, read_points


def written(folder: Path, text: str, name: str = "points.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refused(path: Path) -> str:
    with pytest.raises(CatalogFormatError) as error:
        read_points(path)
    assert error.value.exit_code == 4
    assert str(path) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "n,speedup\n1,1\n2,1.8\n2,1.9\n",
        "speedup,n\n1.8,2\n1.9,2\n1,1\n",
        "\ufeffN , Speedup\r\n\r\n# by hand\r\n2,1.8\r\n 2 , 1.9 \r\n1,1e0\r\n",
        '"n","speedup"\n"1","1"\n2,1.8\n,\n2,1.9',
    ],
)
def test_speed_ups(text: str, tmp_path: Path) -> None:
    assert read_points(written(tmp_path, text)) == ((1, 1), (2, 1.8), (2, 1.9))


def test_seconds_count_from_the_median_of_one_vm(tmp_path: Path) -> None:
    path = written(tmp_path, "n,seconds\n4,30\n1,100\n1,90\n1,130\n2,50\n2,80\n")
    assert read_points(path) == (
        (1, 1.0),
        (1, 100 / 90),
        (1, 100 / 130),
        (2, 2.0),
        (2, 1.25),
        (4, 100 / 30),
    )


def test_seconds_without_one_vm_say_what_to_measure(tmp_path: Path) -> None:
    text = refused(written(tmp_path, "n,seconds\n2,50\n4,30\n"))
    assert "no row with n = 1, only n = 2, 4 (expected a measurement of n = 1 as well" in text


@pytest.mark.parametrize(
    ("text", "place", "found", "expected"),
    [
        ("# n,speedup\n", "file", "is empty", "the columns n and speedup, or n and seconds"),
        ("n,speedup\n", "file", "holds no measurement", "columns n,speedup"),
        ("1,1\n2,1.8\n", "line 1", "'1,1'", "the columns n and speedup, or n and seconds"),
        ("n,speedup\n1,1\n\n2\n", "line 4", "1 fields", "one field for n and speedup"),
        ("n,speedup\n1.5,1\n", "line 2, column n", "1.5", "a whole number of VMs, 1 to 4096"),
        ("n,speedup\n1,\n", "line 2, column speedup", "is empty", "a number above 0"),
        ("n,seconds\n1,1_0\n", "line 2, column seconds", "'1_0'", "a number above 0"),
        ('n,seconds\n1,"10\n', "line 2", "not CSV", "the columns n"),
    ],
)
def test_what_cannot_be_read(
    text: str, place: str, found: str, expected: str, tmp_path: Path
) -> None:
    path = written(tmp_path, text)
    message = refused(path)
    first = message.splitlines()[0]
    assert f"{place}: {found}".removeprefix("file: ") in first, first
    assert expected in first


def test_every_problem_is_said_at_once(tmp_path: Path) -> None:
    text = refused(written(tmp_path, "n,speedup\nx,1\n2,1\n3,0\ny,z\n"))
    assert [line.split(": ")[1] for line in text.splitlines()] == [
        "line 2, column n",
        "line 4, column speedup",
        "line 5, column n",
        "line 5, column speedup",
    ]


@pytest.mark.parametrize("name", ["points.csv", "points.json"])
def test_files_that_are_none(name: str, tmp_path: Path) -> None:
    assert "does not exist (expected CSV" in refused(tmp_path / name)
    (tmp_path / name).mkdir()
    assert "is a folder (expected CSV" in refused(tmp_path / name)
    (tmp_path / "bad").mkdir()
    path = tmp_path / "bad" / name
    path.write_bytes(b"n,speedup\n\xff")
    assert "is not UTF-8 (expected CSV" in refused(path)


def test_too_many_rows(tmp_path: Path) -> None:
    text = "n,speedup\n" + "1,1\n" * (MAX_ROWS + 5)
    assert f"more than {MAX_ROWS} rows" in refused(written(tmp_path, text))


SCALING: dict[str, Any] = {
    "schema_version": "deepvm.scaling/1",
    "workload": {"model": "resnet18"},
    "runs": [
        {"n": 2, "repeat": 0, "seconds_per_step": [0.1], "images_per_s": 180.0, "failed": None},
        {
            "n": 2,
            "repeat": 1,
            "seconds_per_step": [],
            "images_per_s": None,
            "failed": "host b did not answer",
        },
        {"n": 1, "repeat": 0, "seconds_per_step": [0.1], "images_per_s": 100, "failed": None},
        {"n": 1, "repeat": 1, "seconds_per_step": [0.1], "images_per_s": 125, "failed": None},
    ],
    "points": [{"n": 1, "seconds": 0.1, "speedup": 1.0}, {"n": 2, "seconds": 0.05, "speedup": 1.7}],
    "warnings": [],
}


def changed(**fields: Any) -> str:
    return json.dumps({**SCALING, **fields})


def test_a_scaling_document_gives_its_runs_and_leaves_out_what_failed(tmp_path: Path) -> None:
    one = (1 / 100 + 1 / 125) / 2
    found = read_points(written(tmp_path, changed(), "scaling.json"))
    assert [n for n, _ in found] == [1, 1, 2]
    assert [s for _, s in found] == pytest.approx([one * 100, one * 125, one * 180])


@pytest.mark.parametrize("runs", [[], SCALING["runs"][:2], None])
def test_its_points_are_used_where_the_runs_have_no_unit(runs: Any, tmp_path: Path) -> None:
    found = read_points(written(tmp_path, changed(runs=runs), "scaling.json"))
    assert found == ((1, 1.0), (2, 1.7))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '{"schema_version": "deepvm.fit/1"}',
            "schema_version: 'deepvm.fit/1' (expected 'deepvm.scaling/1'",
        ),
        ("{", ":1: not JSON"),
        (changed(runs=[], points=[]), "points: holds no speed-up (expected"),
        (changed(runs=[], points=[7]), "points[0].n: is missing (expected a whole number"),
        (
            changed(runs=[{"n": True, "images_per_s": 5}]),
            "run 1 that did not fail, n: True (expected a whole number",
        ),
    ],
)
def test_a_document_that_is_none(text: str, words: str, tmp_path: Path) -> None:
    assert words in refused(written(tmp_path, text, "scaling.JSON"))


sizes = st.integers(1, 4096)
values = st.floats(1e-8, 1e8)


@given(rows=st.lists(st.tuples(sizes, values), min_size=1, max_size=20))
def test_what_is_written_is_read(
    rows: list[tuple[int, float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("points") / "points.csv"
    path.write_text("n,speedup\n" + "".join(f"{n},{s!r}\n" for n, s in rows))
    assert sorted(read_points(path)) == sorted((float(n), s) for n, s in rows)


@given(text=st.text(max_size=60))
def test_any_text_is_points_or_is_refused_with_its_place(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("points") / "points.csv"
    path.write_bytes(("n,speedup\n" + text).encode("utf-8", "surrogatepass"))
    try:
        assert read_points(path)
    except CatalogFormatError as error:
        assert error.problems


def test_a_curve_has_one_point_for_each_size(tmp_path: Path) -> None:
    path = written(tmp_path, "n,seconds\n1,100\n2,80\n2,50\n2,40\n1,100\n")
    assert read_medians(path) == ((1, 1.0), (2, 2.0))
