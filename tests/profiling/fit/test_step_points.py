"""Measured steps as people write them, and what --predict asks for: what is read, and what is said
of the rest.
"""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.core.training.steptime import Steps
from deepvm.documents.declared import properties
from deepvm.errors import CatalogFormatError, RequestError
from deepvm.profiling.fit.points import StepQuestion, asked_of, read_asked, read_steps

HEADER = "nodes,gpus,local_batch,step_time_s\n"


def written(folder: Path, text: str, name: str = "steps.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refused(path: Path) -> list[str]:
    with pytest.raises(CatalogFormatError) as error:
        read_steps(path)
    assert error.value.exit_code == 4
    lines = str(error.value).splitlines()
    assert all(line.startswith(f"{path}:") for line in lines[:10])
    return [line.removeprefix(f"{path}:") for line in lines]


def rows_of(steps: Steps) -> list[tuple[float, ...]]:
    return list(zip(*(column.tolist() for column in astuple(steps)), strict=True))


@pytest.mark.parametrize(
    "text",
    [
        HEADER + "2,8,20,0.5\n1,1,0.5,2e-3\n",
        "step_time_s,local_batch,gpus,nodes\n0.5,20,8,2\n2e-3,.5,1,1\n",
        "model,nodes,gpu,gpus,local_batch,step_time_s\na,2,T4,8,20,0.5\nb,1,T4,1,0.5,2e-3",
        (
            "\ufeffNodes , GPUs,Local_Batch,step_time_s\r\n\r\n# by hand\r\n 2"
            " ,8,20,.5\r\n,,,\r\n1,1.0,0.5,0.002\r\n"
        ),
        '"nodes","gpus","local_batch","step_time_s","note"\n2,8,20,0.5,"a, b"\n1,1,0.5,0.002,\n',
    ],
)
def test_steps(text: str, tmp_path: Path) -> None:
    assert rows_of(read_steps(written(tmp_path, text))) == [(2, 8, 20, 0.5), (1, 1, 0.5, 0.002)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,1,20\n", "2: 3 fields (expected 4,"),
        ("1.5,2,20,1\n", "2: invalid value for nodes: '1.5' (expected VMs: a whole"),
        (",2,20,1\n", "2: invalid value for nodes: '' (expected VMs: a whole number"),
        ("4,3,20,1\n", "2: gpus: 3 (expected one or more on each VM"),
        ("1,1,0,1\n", "2: invalid value for local_batch: '0' (expected samples on each"),
        ("1,1,20,inf\n", "2: invalid value for step_time_s: 'inf' (expected seconds of a"),
        (
            '1,1,20,"1\n',
            "2: not CSV: unexpected end of data (expected CSV with the columns nodes,gpus",
        ),
        ("# nothing\n", " invalid value for rows: a list of 0 (expected measured steps"),
    ],
)
def test_rows_that_cannot_be(text: str, expected: str, tmp_path: Path) -> None:
    line = refused(written(tmp_path, HEADER + text))[0]
    assert line.startswith(expected)


def test_every_problem_is_said_at_once(tmp_path: Path) -> None:
    lines = refused(written(tmp_path, HEADER + "1,1,20,1\n# a\n2,x,y,1\n3,3,20\n5,1,0,0\n"))
    assert [line.split(": ")[0] for line in lines] == ["5", "4", "4", "6", "6"]


def test_headers(tmp_path: Path) -> None:
    lines = refused(written(tmp_path, "# a\nnodes,gpus,local_batch,step_time_s,nodes\n1,1,1,1\n"))
    assert lines[0].startswith("2: repeated column nodes")
    lines = refused(written(tmp_path, "nodes,gpu,step_time_s\n1,1,1\n"))
    assert lines[0].startswith("1: no column gpus in 'nodes,gpu,step_time_s'")
    assert "no column nodes" in refused(written(tmp_path, "# only a comment\n"))[0]


def test_files_that_are_none(tmp_path: Path) -> None:
    assert (
        "does not exist (expected CSV with the columns nodes,gpus"
        in refused(tmp_path / "steps.csv")[0]
    )
    (tmp_path / "steps.csv").mkdir()
    assert "is a folder" in refused(tmp_path / "steps.csv")[0]


def test_ten_thousand_rows_are_read_and_far_too_many_refused(tmp_path: Path) -> None:
    assert len(read_steps(written(tmp_path, HEADER + "1,1,20,1\n" * 10_000))) == 10_000
    limit = properties("points.Steps")["rows"]["maxItems"]
    text = HEADER + "1,1,20,1\n" * (limit + 1)
    assert f"a list of {limit + 1}" in refused(written(tmp_path, text))[0]


def test_what_is_asked_keeps_its_order(tmp_path: Path) -> None:
    path = written(tmp_path, "gpus,nodes,local_batch,who\n8,2,20,me\n1,1,0.5,me\n", "asked.CSV")
    assert read_asked(path) == (StepQuestion(2, 8, 20.0), StepQuestion(1, 1, 0.5))
    found = asked_of(["nodes=8,gpus=32,batch=200", str(path), " GPUS = 4 , batch=1e1, nodes=4"])
    assert found == (
        StepQuestion(8, 32, 200.0),
        StepQuestion(2, 8, 20.0),
        StepQuestion(1, 1, 0.5),
        StepQuestion(4, 4, 10.0),
    )
    assert asked_of([str(one) for one in found]) == found
    assert asked_of([]) == ()


def test_a_file_may_have_an_equals_sign_in_its_name(tmp_path: Path) -> None:
    path = written(tmp_path, "nodes,gpus,local_batch\n2,8,20\n", "batch=20.csv")
    assert asked_of([str(path)]) == (StepQuestion(2, 8, 20.0),)


def test_what_cannot_be_asked() -> None:
    for text, said in [
        ("nodes=8,gpus=32", "nodes=N,gpus=K,batch=B"),
        ("nodes=8,gpus=32,batch=2,nodes=8", "nodes=N,gpus=K,batch=B"),
        ("nodes=8,gpu=32,batch=2", "nodes=N,gpus=K,batch=B"),
        ("nodes=8,gpus=32,batch", "invalid value for local_batch: '' (expected samples on each"),
        ("nodes=8,gpus=4,batch=2", "gpus: 4 (expected one or more on each VM"),
        ("nodes=x,gpus=4.5,batch=1", "for nodes: 'x' (expected VMs: a whole number from 1 to"),
        ("nodes=1,gpus=1,batch=-2", "for local_batch: '-2' (expected samples on each GPU"),
        ("", "nodes=N,gpus=K,batch=B"),
        ("=,", "nodes=N,gpus=K,batch=B"),
    ]:
        with pytest.raises(RequestError) as error:
            asked_of([text])
        assert error.value.option == "predict"
        assert said in error.value.allowed


def test_files_of_what_is_asked_are_checked_as_others_are(tmp_path: Path) -> None:
    path = written(tmp_path, "nodes,gpus,local_batch\n2,1,20\n")
    with pytest.raises(CatalogFormatError, match="2: gpus: 1 "):
        asked_of([str(path)])
    with pytest.raises(CatalogFormatError, match="does not exist"):
        asked_of(["missing"])


sizes = st.tuples(
    st.integers(1, 4096), st.integers(1, 16), st.floats(1e-8, 1e8), st.floats(1e-8, 1e5)
)


@given(rows=st.lists(sizes, min_size=1, max_size=20))
def test_what_is_written_is_read(
    rows: list[tuple[int, int, float, float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("steps") / "steps.csv"
    expected = [(n, n * per_vm, batch, step) for n, per_vm, batch, step in rows]
    path.write_text(
        HEADER + "".join(f"{n},{gpus},{batch!r},{step!r}\n" for n, gpus, batch, step in expected)
    )
    assert rows_of(read_steps(path)) == expected


@given(text=st.text(max_size=60))
def test_any_text_is_steps_or_is_refused_with_its_place(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("steps") / "steps.csv"
    path.write_bytes((HEADER + text).encode("utf-8", "surrogatepass"))
    try:
        assert len(read_steps(path))
    except CatalogFormatError as error:
        assert error.problems


@given(text=st.text(max_size=40))
def test_any_request_is_understood_or_refused(text: str) -> None:
    try:
        assert asked_of([f"nodes={text}"])
    except (RequestError, CatalogFormatError) as error:
        assert str(error)
