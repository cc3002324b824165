"""Tables on terminals of any width: what is read or copied as one thing stays in one piece."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.reports.terminal import Column, print_table

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


def filled(columns: list[Column], rows: list[list[str]]) -> list[Column]:
    return [replace(column, cells=[row[i] for row in rows]) for i, column in enumerate(columns)]


def shown(width: int, columns: list[Column], rows: list[list[str]]) -> list[str]:
    """Without colors, in a terminal of this width."""
    stream = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        patch.setenv("TERM", "xterm")
        patch.setenv("NO_COLOR", "1")
        patch.setattr("sys.stdout", stream)
        print_table(filled(columns, rows))
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 52])
def test_a_table_is_wrapped_between_words(width: int) -> None:
    lines = shown(width, COLUMNS, ROWS)
    assert max(map(len, lines)) <= width and len(lines) < 8
    text = "\n".join(lines)
    for whole in (
        "1.906e+13",
        "9.7e+12",
        "12.5",
        "g4dn.xlarge",
        "c4.4xlarge",
        "throughput",
        "(eFLOPS)",
        "($/h)",
    ):
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
            st.lists(st.text("abc.-", min_size=1, max_size=15), min_size=1, max_size=6).map(
                " ".join
            ),
            st.floats(0, 1e20).map(lambda x: f"${x:,.6g}"),
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
    words = [
        w for row in [["a name of it:", "a number:"], *rows] for cell in row for w in cell.split()
    ]
    assert all(len(line) <= max(width, max(map(len, words)) + 12) for line in lines)


DROPPING = [
    Column("name"),
    Column("price", "right"),
    Column("zone", drop=1, wrap=False),
    Column("note", drop=3),
    Column("speed", "right", drop=2),
    Column("gain", "right", drop=2),
]
CELLS = [
    ["first", "1.25", "use1 az4", "cheap and slow", "100.5", "7 %"],
    ["second", "12", "-", "-", "9", "-"],
]


def test_columns_leave_in_their_order_and_are_named() -> None:
    for width, left_out in [
        (80, []),
        (43, []),  # "note" is wrapped
        (42, ["note"]),
        (36, ["note"]),
        (35, ["note", "gain"]),
        (29, ["note", "speed", "gain"]),
        (22, ["zone", "note", "speed", "gain"]),
    ]:
        lines = shown(width, DROPPING, CELLS)
        assert lines[0].split() == [c.header for c in DROPPING if c.header not in left_out]
        text = " ".join(" ".join(lines).split())
        said = f"Left out at {width} columns: {', '.join(left_out)}. All of them: '| less -S'."
        assert (said in text) == bool(left_out) and ("Left out" in text) == bool(left_out)


def test_the_line_names_a_form_that_has_all_columns() -> None:
    stream = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "26")
        patch.setenv("TERM", "xterm")
        patch.setattr("sys.stdout", stream)
        print_table(filled(DROPPING, CELLS), also="-o csv")
    assert "All of them: '| less -S' or '-o csv'." in " ".join(stream.getvalue().split())


def test_where_the_essential_columns_do_not_fit_nothing_is_left_out() -> None:
    lines = shown(11, DROPPING, CELLS)
    assert (
        lines[:2] == ["name: first", "price: 1.25"]
        and "  100.5" in lines
        and "Left" not in " ".join(lines)
    )


def test_a_pipe_has_all_columns_whatever_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stream = io.StringIO()
    monkeypatch.setattr("sys.stdout", stream)
    print_table(filled(DROPPING, CELLS))
    assert stream.getvalue().splitlines() == [
        "name    price  zone      note            speed  gain",
        "first    1.25  use1 az4  cheap and slow  100.5   7 %",
        "second     12  -         -                   9     -",
    ]


words = st.text("abcdef.-", min_size=1, max_size=9)
tables = st.lists(
    st.tuples(words, st.sampled_from(["left", "right"]), st.integers(0, 4), st.booleans()),
    min_size=1,
    max_size=7,
).flatmap(
    lambda heads: st.tuples(
        st.just([Column(f"{h}{i}", a, d, w) for i, (h, a, d, w) in enumerate(heads)]),  # type: ignore[arg-type]
        st.lists(
            st.lists(
                st.lists(words, min_size=1, max_size=3).map(" ".join),
                min_size=len(heads),
                max_size=len(heads),
            ),
            min_size=1,
            max_size=4,
        ),
    )
)


@given(tables, st.integers(15, 90))
def test_no_line_is_too_wide_and_no_cell_is_cut(
    table: tuple[list[Column], list[list[str]]], width: int
) -> None:
    columns, rows = table
    lines = shown(width, columns, rows)
    text = "\n".join(lines)
    kept = [i for i, c in enumerate(columns) if c.header in lines[0].split()]
    if not kept:  # a line for each cell
        assert all(c.header + ":" in text for c in columns)
        assert all(
            len(line) <= width or len(line.split()) == 1 or line[:2] == "  " for line in lines
        )
        return
    assert all(len(line) <= width for line in lines)
    # Whatever is shown leaves after whatever is not, and what must be there is there.
    gone = [i for i in range(len(columns)) if i not in kept]
    assert all((columns[g].drop, g) > (columns[k].drop, k) for g in gone for k in kept)
    assert all(columns[g].drop for g in gone) and ("Left out" in text) == bool(gone)
    for place in kept:
        whole = columns[place].align == "right" or not columns[place].wrap
        for row in rows:
            assert all(piece in text for piece in ([row[place]] if whole else row[place].split()))
