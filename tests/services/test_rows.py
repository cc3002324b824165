"""Documents as rows."""

from __future__ import annotations

import pytest

from deepvm.errors import RequestError
from deepvm.reports.documents import to_csv
from deepvm.services.schemas import rows_as, rows_of


def test_the_header_does_not_need_rows() -> None:
    header, rows = rows_of({"schema_version": "deepvm.tables-list/1", "path": None, "entries": []})
    assert header[:2] == ["name", "kind"] and "used" in header and rows == []
    assert rows_of([], "ckpt-ls")[0][:2] == ["job", "version"]
    with pytest.raises(RequestError, match="NAME"):
        rows_of([])


def test_values() -> None:
    rows = [
        {"key": "region", "value": ["a", "b"], "kind": "file", "source": None},
        {"key": "x", "value": True},
    ]
    assert rows_as("prices.Setting", rows) == (
        ["key", "value", "kind", "source"],
        [["region", ["a", "b"], "file", None], ["x", True, None, None]],
    )


def test_fields_of_csv() -> None:
    assert (
        to_csv(["a", "b", "c", "d"], [[["x", "y"], True, None, 0.1]])
        == 'a,b,c,d\n"[""x"", ""y""]",true,,0.1\n'
    )


def test_rows_by_name_begin_with_it() -> None:
    header, rows = rows_of(
        {"schema_version": "deepvm.ckpt-bench/1", "methods": {"dcp": {"stall_s": 0.5}}}
    )
    assert header[:2] == ["method", "stall_s"] and rows[0][:2] == ["dcp", 0.5]


def test_objects_in_objects_have_dotted_names() -> None:
    step = {"low": 1.0, "value": 2.0, "high": 3.0}
    found = {"schema_version": "deepvm.steptime/1", "predictions": [{"nodes": 2, "step_s": step}]}
    header, rows = rows_of(found)
    assert dict(zip(header, rows[0], strict=True))["step_s.low"] == 1.0


def test_a_list_of_documents_has_a_row_for_each() -> None:
    one = {"schema_version": "deepvm.eflops/1", "eflops": 1e12, "workload": {"model": "resnet18"}}
    header, rows = rows_of([one, one])
    assert (
        len(rows) == 2 and dict(zip(header, rows[0], strict=True))["workload.model"] == "resnet18"
    )
    assert rows_of(one)[1] == rows[:1]
