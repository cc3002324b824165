"""HTML is escaped unless it was made by :mod:`deepvm.reports.markup`."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.reports.markup import Html, ascii_only, data_block, joined, table, tag


def test_texts_are_escaped_and_elements_are_not() -> None:
    found = tag("p", "1 < 2 & ", tag("b", "3 > 2"), class_='"x"')
    assert found == '<p class="&quot;x&quot;">1 &lt; 2 &amp; <b>3 &gt; 2</b></p>'
    assert joined("<i>", tag("i", "x")) == "&lt;i&gt;<i>x</i>"


def test_attributes() -> None:
    assert (
        tag("input", hidden=True, disabled=False, value=None, aria_label="a b")
        == '<input hidden aria-label="a b">'
    )
    # Void in SVG alone, which an HTML file is not
    assert tag("circle", r=6) == '<circle r="6"></circle>'
    assert tag("meta", name="viewport") == '<meta name="viewport">'


def test_a_table_heads_its_rows() -> None:
    found = table("what", ["a", "b"], [["<x>", tag("b", "y")]])
    assert '<th scope="row">&lt;x&gt;</th><td><b>y</b></td>' in found
    assert '<caption>what</caption><thead><tr><th scope="col">a</th>' in found


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(value=json_values)
def test_data_is_what_it_was_and_ends_no_script(value: object) -> None:
    text = data_block(value)
    assert json.loads(text) == value
    assert text.isascii() and not set("<>&") & set(text)


def test_a_script_cannot_be_left() -> None:
    assert data_block("</script><!--") == '"\\u003c/script\\u003e\\u003c!--"'
    with pytest.raises(ValueError, match="not JSON compliant"):
        data_block(float("nan"))


def test_any_encoding_will_do() -> None:
    assert ascii_only(Html("caf\u00e9 \udcff")) == "caf&#233; &#56575;"
