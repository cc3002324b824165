"""Every command that prints JSON: it is what ``deepvm schema`` says, YAML says the same, and CSV
has one header.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
import yaml
from support.document_cases import CASES, LONG, STARTS_PROCESSES, Case, forms
from support.schemas import check, check_rows

from deepvm.cli.output import print_as
from deepvm.services.schemas import DOCUMENTS


def test_every_command_that_prints_json_is_here() -> None:
    assert set(CASES) == set(forms())


def test_a_command_with_one_form_has_all() -> None:
    known = forms()
    for command in CASES:
        assert known[command] >= {"table", "json", "yaml", "csv"}


def test_each_document_is_printed_by_a_case() -> None:
    files = {"quotas", "job", "model", "trace", "checkpoint", "profile", "matrix"}
    files |= {"lab-suite", "lab-run", "lab-supervisor", "lab-audit"}
    assert {case.name for cases in CASES.values() for case in cases} == set(DOCUMENTS) - files


def _marks(command: str) -> list[pytest.MarkDecorator]:
    if command in LONG:
        return [pytest.mark.slow]
    return [pytest.mark.system] if command in STARTS_PROCESSES else []


MEASURING = [
    pytest.param(command, case, id=command, marks=_marks(command))
    for command, cases in CASES.items()
    for case in cases
    if case.measures
]


@pytest.mark.parametrize(("command", "case"), MEASURING)
def test_forms_say_the_same(
    command: str, case: Case, call: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of documents that every run prints alike are in test_contract.py."""
    document = json.loads(call(command, case, "json"))
    check(document, case.name)
    again = partial(printed_again, document=document, capsys=capsys)
    assert without_clock(yaml.safe_load(again("yaml"))) == without_clock(document)
    if case.name != "tables":  # its rows are those of `tables show`
        check_rows(document, again("csv"), case.name)


def printed_again(form: str, *, document: Any, capsys: pytest.CaptureFixture[str]) -> str:
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
