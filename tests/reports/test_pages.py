"""Pages escape what they show, and run nothing but their own script."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.reports import pages


def drawn(source: str, /, **data: object) -> str:
    return pages._environment().from_string(source).render(**data)


def test_text_is_escaped_and_control_characters_are_visible() -> None:
    shown = drawn('<p title="{{ text }}">{{ text }}</p>', text='a"<b>\x1b\u202e')
    assert shown == '<p title="a&#34;&lt;b&gt;\u241b\ufffd">a&#34;&lt;b&gt;\u241b\ufffd</p>'


def test_a_table_heads_its_rows() -> None:
    shown = drawn('{{ ui.table("what", ["a", "b"], [["<x>", 1]]) }}')
    assert '<th scope="row">&lt;x&gt;</th><td>1</td>' in shown
    assert "<caption>what</caption>" in shown


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(value=json_values)
def test_data_is_what_it_was_and_ends_no_script(value: object) -> None:
    text = drawn("{{ value|tojson }}", value=value)
    assert json.loads(text) == value
    assert text.isascii() and not set("<>&") & set(text)


def test_data_has_no_numbers_that_json_lacks() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        drawn("{{ value|tojson }}", value=float("nan"))


def test_any_encoding_will_do() -> None:
    assert pages._ascii("caf\u00e9 \udcff") == "caf&#233; &#56575;"
