"""Tables on terminals of any width: what is read or copied as one thing stays in one piece."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.reports.tables import Column, print_table

COLUMNS = [
    Column("rank", "right"),
    Column("trainers"),
    Column("memory node"),
    Column("throughput (eFLOPS)", "right"),
    Column("price ($/h)", "right"),
]
ROWS = [
    ["1", "4 x g4dn.xlarge", "1 x c4.4xlarge", "1.906e+13", "1.2345"],
    ["2", "12 x g3s.xlarge", "1 x m5.large", "9.7e+12", "12.5"],
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(width: int, columns: list[Column], rows: list[list[str]]) -> list[str]:
    """Without colours, in a terminal of this width."""
    stream = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        patch.setenv("TERM", "xterm")
        patch.setenv("NO_COLOR", "1")
        print_table(columns, rows, stream)
    # NO_COLOR leaves the header bold.
    return stream.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()


@pytest.mark.parametrize("width", [60, 52])
def test_a_table_is_wrapped_between_words(width: int) -> None:
    lines = shown(width, COLUMNS, ROWS)
    assert max(map(len, lines)) <= width and len(lines) < 8
    text = "\n".join(lines)
    for whole in ("1.906e+13", "9.7e+12", "12.5", "g4dn.xlarge", "c4.4xlarge", "throughput", "(eFLOPS)", "($/h)"):
        assert whole in text.split(), text


def test_a_terminal_in_which_no_table_fits_gets_a_line_for_each_cell() -> None:
    assert shown(30, COLUMNS, ROWS) == [
        "rank: 1",
        "trainers: 4 x g4dn.xlarge",
        "memory node: 1 x c4.4xlarge",
        "throughput (eFLOPS): 1.906e+13",
        "price ($/h): 1.2345",
        "",
        "rank: 2",
        "trainers: 12 x g3s.xlarge",
        "memory node: 1 x m5.large",
        "throughput (eFLOPS): 9.7e+12",
        "price ($/h): 12.5",
    ]


@given(
    width=st.integers(10, 60),
    rows=st.lists(
        st.tuples(
            st.lists(st.text("abc.-", min_size=1, max_size=15), min_size=1, max_size=6).map(" ".join),
            st.floats(0, 1e20).map(lambda x: f"{x:,.6g} $"),
        ).map(list),
        min_size=1,
        max_size=5,
    ),
)
def test_nothing_is_torn_whatever_the_width(width: int, rows: list[list[str]]) -> None:
    columns = [Column("a name of it"), Column("a number", "right")]
    lines = shown(width, columns, rows)
    text = "\n".join(lines)
    for name, number in rows:
        assert number in text
        assert set(name.split()) <= set(text.split())
    words = [w for row in [["a name of it:", "a number:"], *rows] for cell in row for w in cell.split()]
    assert all(len(line) <= max(width, max(map(len, words)) + 12) for line in lines)
