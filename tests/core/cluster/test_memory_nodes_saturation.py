from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import oracle

from deepvm.core.cluster.memory_nodes import PAPER_TABLE, SaturationTable
from deepvm.errors import RequestError

TABLE_V = [(0.3, 3), (1.7, 12), (5, 16), (10, 20), (12.5, 24), (15, 24), (25, 28), (30, 32)]


def test_table_v() -> None:
    for gbps, expected in TABLE_V:
        assert int(PAPER_TABLE.lookup(gbps)) == expected


def test_between_two_rows_the_lower_counts() -> None:
    for gbps, expected in [
        (0.01, 3),
        (0.2999, 3),
        (1.6999, 3),
        (4.999, 12),
        (9.99, 16),
        (12.4, 20),
        (24.9, 24),
        (29.9, 28),
        (31, 32),
    ]:
        assert int(PAPER_TABLE.lookup(gbps)) == expected


def test_many_at_once() -> None:
    found = PAPER_TABLE.lookup(np.array([[0.1, 5.0], [12.5, 1000.0]]))
    assert found.tolist() == [[3, 16], [24, 32]]
    assert found.dtype == np.int64
    assert PAPER_TABLE.lookup(np.array([])).shape == (0,)


@st.composite
def tables(draw: st.DrawFn) -> SaturationTable:
    rows = draw(st.integers(1, 6))
    gbps = sorted(draw(st.lists(st.floats(0.01, 500), min_size=rows, max_size=rows, unique=True)))
    senders = sorted(draw(st.lists(st.integers(1, 50), min_size=rows, max_size=rows)))
    return SaturationTable(tuple(gbps), tuple(senders))


@given(table=tables(), v=st.floats(0.001, 1000), w=st.floats(0.001, 1000))
def test_the_pair_s_value_is_the_smaller_of_the_two(
    table: SaturationTable, v: float, w: float
) -> None:
    """What lets the planner look up each type alone (DeepVM eq. 7)."""
    assert int(table.lookup(min(v, w))) == min(int(table.lookup(v)), int(table.lookup(w)))
    assert int(table.lookup(v)) == oracle.n_sat(table, v)


def test_rows_in_any_order() -> None:
    assert SaturationTable.from_rows(reversed(TABLE_V)) == PAPER_TABLE  # type: ignore[arg-type]


def test_what_is_no_table() -> None:
    for gbps, senders, option in [
        ((), (), "n_sat"),
        ((1.0,), (1, 2), "n_sat"),
        ((1.0, 1.0), (1, 2), "network_gbps"),
        ((2.0, 1.0), (1, 2), "network_gbps"),
        ((0.0,), (1,), "network_gbps"),
        ((-1.0,), (1,), "network_gbps"),
        ((float("inf"),), (1,), "network_gbps"),
        ((float("nan"),), (1,), "network_gbps"),
        ((1.0,), (0,), "n_sat"),
        ((1.0,), (1.5,), "n_sat"),
        ((1.0, 2.0), (3, 2), "n_sat"),
        ((1.0,), (float("nan"),), "n_sat"),
        ((1.0,), (float("inf"),), "n_sat"),
    ]:
        with pytest.raises(RequestError) as caught:
            SaturationTable(gbps, senders)
        assert caught.value.option == option
