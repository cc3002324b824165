"""Lines of a file that grows: each whole one once."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from deepvm.lab.running.launcher import LineTail


@given(st.lists(st.binary(max_size=9)))
def test_lines_come_once_however_they_were_written(
    tmp_path_factory: object, pieces: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("tail") / "log"  # type: ignore[attr-defined]
    tail, found = LineTail(path), list[bytes]()
    assert tail.new() == []
    for piece in pieces:
        with path.open("ab") as file:
            file.write(piece)
        found += tail.new()
    assert found == b"".join(pieces).split(b"\n")[:-1]


def test_lines_that_were_there_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"1\n2\n")
    tail = LineTail(path, at_end=True)
    with path.open("ab") as file:
        file.write(b"3\n")
    assert tail.new() == [b"3"]
