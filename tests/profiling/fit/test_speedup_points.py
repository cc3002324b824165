"""Points as people write them: what is read, and what is said about what cannot be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.documents.declared import properties
from deepvm.errors import CatalogFormatError, DataError
from deepvm.profiling.fit.points import read_medians, read_points
from deepvm.profiling.fit.scaling_document import Curve, Run, write_curve


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
    assert "no row with n = 1 (expected a measurement of n = 1 as well" in text


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("# n,speedup\n", 1, "no column n in '' (expected CSV with the columns n and speedup"),
        ("n,speedup\n", 0, "invalid value for rows: a list of 0 (expected measurements"),
        ("1,1\n2,1.8\n", 1, "repeated column 1 (expected CSV with the columns n and speedup"),
        ("n,speed\n1,1\n", 0, "n: no column with its values (expected the columns n"),
        ("n,speedup\n1,1\n\n2\n", 4, "1 fields (expected 2,"),
        ("n,speedup\n1.5,1\n", 2, "invalid value for n: '1.5' (expected VMs: a whole"),
        ("n,speedup\n1,\n", 2, "invalid value for speedup: '' (expected speed-up over"),
        ("n,seconds\n1,x\n", 2, "invalid value for seconds: 'x' (expected seconds of the"),
        ('n,seconds\n1,"10\n', 2, "not CSV"),
    ],
)
def test_what_cannot_be_read(text: str, line: int, found: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    where = f"{path}:{line}" if line else f"{path}"
    assert refused(path).startswith(f"{where}: {found}")


def test_every_problem_is_said_at_once(tmp_path: Path) -> None:
    text = refused(written(tmp_path, "n,speedup\nx,1\n2,1\n3,0\ny,z\n"))
    assert [re.findall(r":([0-9]): .* for (\w+):", line)[0] for line in text.splitlines()] == [
        ("2", "n"),
        ("4", "speedup"),
        ("5", "n"),
        ("5", "speedup"),
    ]


def test_files_that_are_none(tmp_path: Path) -> None:
    assert "does not exist (expected CSV" in refused(tmp_path / "points.csv")
    (tmp_path / "points.csv").mkdir()
    assert "is a folder (expected CSV" in refused(tmp_path / "points.csv")
    with pytest.raises(DataError, match="does not exist"):
        read_points(tmp_path / "points.json")


def test_too_many_rows(tmp_path: Path) -> None:
    limit = properties("points.Points")["rows"]["maxItems"]
    text = "n,speedup\n" + "1,1\n" * (limit + 5)
    assert f"a list of {limit + 5}" in refused(written(tmp_path, text))


def scaling(folder: Path, *runs: Run) -> Path:
    workload = {"model": "resnet18", "batch": 8, "processes": 1}
    plan = {"sizes": [1, 2], "repeats": 2, "batches": [8, 16]}
    path = folder / "scaling.JSON"
    write_curve(path, Curve(workload, ("a", "b"), plan, local=False, runs=runs))
    return path


def test_a_scaling_document_gives_its_runs_of_one_batch(tmp_path: Path) -> None:
    path = scaling(
        tmp_path,
        Run(2, 1, (0.2, 0.2), 80.0),
        Run(2, 2, failed="host b did not answer"),
        Run(1, 1, (0.1,), 80.0),
        Run(1, 2, (0.3,), 26.7),
        Run(1, 1, (0.9,), 17.8, batch=16),
    )
    assert read_points(path) == ((1, 2.0), (1, pytest.approx(2 / 3)), (2, 2.0))


def test_a_document_that_is_none(tmp_path: Path) -> None:
    assert "no run with n = 1 (expected" in refused(scaling(tmp_path, Run(2, 1, (0.2,), 80.0)))
    for text in ("{", "[]", '{"schema_version": "deepvm.fit/1"}'):
        with pytest.raises(DataError, match="scaling.json"):
            read_points(written(tmp_path, text, "scaling.json"))


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
