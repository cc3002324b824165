"""JSON with lines and exact decimals."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.documents.formats.json import format_document, load
from deepvm.documents.tree import FileSyntaxError

ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text("ab", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=5), inner),
    max_leaves=20,
)


@given(ANY)
def test_every_value_has_its_line(document: object) -> None:
    tree = load(json.dumps(document, indent=1))
    assert tree.value == document
    lines = json.dumps(document, indent=1).splitlines()
    for path, line in tree.lines.items():
        value = tree.value
        for step in path:
            value = value[step]
        if not isinstance(value, (dict, list)):
            assert json.dumps(value) in lines[line - 1]


@given(ANY)
def test_formatted_documents_read_back(document: object) -> None:
    text = format_document(document)
    assert load(text).value == document and text.endswith("\n")


def test_decimals_are_exact() -> None:
    assert load("[0.1, 1e2]").value == [Decimal("0.1"), Decimal("1e2")]


def test_deep_nesting_has_no_lines_but_an_answer() -> None:
    tree = load("[" * 500 + "]" * 500)
    assert tree.line((0, 0)) in (0, 1)
    with pytest.raises(FileSyntaxError, match="nested too deeply"):
        load("[" * 100_000)


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_nothing_is_named_as_such(text: str) -> None:
    with pytest.raises(FileSyntaxError, match="^is empty$"):
        load(text)
