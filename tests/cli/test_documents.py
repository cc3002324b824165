"""Every command that prints JSON: it is what ``deepvm schema`` says, YAML says the same, and CSV
has one header.
"""

from __future__ import annotations

import csv
import io
import json
from functools import partial
from typing import Any

import pytest
import yaml
from support.document_cases import CASES, LONG, Case, forms
from support.effort import sampled
from support.schemas import check

from deepvm.cli.output import print_as
from deepvm.services.rows import header_of
from deepvm.services.schemas import DOCUMENTS, OutputSpec


def test_every_command_that_prints_json_is_here() -> None:
    assert set(CASES) == set(forms())


def test_a_command_with_one_form_has_all() -> None:
    for command in CASES:
        assert forms()[command] >= {"table", "json", "yaml", "csv"}


def test_each_document_is_printed_by_a_case() -> None:
    files = {"quotas", "job", "model", "trace", "checkpoint", "profile", "matrix"}
    files |= {"lab-suite", "lab-run", "lab-supervisor", "lab-audit"}
    assert {case.name for cases in CASES.values() for case in cases} == set(DOCUMENTS) - files


@pytest.mark.parametrize(
    ("command", "case"),
    sampled(
        pytest.param(
            c, case, id=f"{c} {case.words}"[:60], marks=pytest.mark.slow if c in LONG else ()
        )
        for c, cases in CASES.items()
        for case in cases
    ),
)
def test_forms_say_the_same(
    command: str, case: Case, call: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(call(command, case, "json"))
    check(document, case.name)
    if case.measures:
        call = partial(printed_again, document=document, capsys=capsys)
    assert without_clock(yaml.safe_load(call(command, case, "yaml"))) == without_clock(document)
    if case.measures and case.name == "tables":
        return  # its rows are those of `tables show`
    lines = [line for line in io.StringIO(call(command, case, "csv")) if not line.startswith("#")]
    header, *rows = csv.reader(lines)
    assert len(set(header)) == len(header) and all(header)
    assert all(len(row) == len(header) for row in rows)
    found = DOCUMENTS[case.name]
    if isinstance(found, OutputSpec) and found.row is not None:
        assert header == header_of(found)
        listed = document[found.rows] if found.rows else document
        assert len(rows) == (len(listed) if found.rows or isinstance(listed, list) else 1)


def printed_again(
    command: str, case: Case, form: str, *, document: Any, capsys: pytest.CaptureFixture[str]
) -> str:
    """What the command would print of this document in another form."""
    print_as(form, lambda: None, lambda: document)
    return capsys.readouterr().out


def without_clock(document: Any) -> Any:
    """The document without the moment it was written at, and ages."""
    if isinstance(document, dict):
        return {
            key: without_clock(value)
            for key, value in document.items()
            if key not in ("now", "age_s")
        }
    return [without_clock(value) for value in document] if isinstance(document, list) else document
