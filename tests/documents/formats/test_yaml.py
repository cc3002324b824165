"""YAML with lines, for files that people write."""

from __future__ import annotations

import pytest

from deepvm.documents.formats.yaml import load
from deepvm.documents.tree import FileSyntaxError


def test_every_key_has_its_line() -> None:
    tree = load("a: 1\nb:\n  c: [1,\n    2]\n")
    assert tree.value == {"a": 1, "b": {"c": [1, 2]}}
    assert tree.line(("b", "c")) == 3 and tree.line(("b", "c", 1)) == 4
    assert tree.line(("b", "nothing")) == 2


def test_a_repeated_key() -> None:
    (issue,) = load("a: {b: 1,\n b: 2}").issues
    assert (issue.line, issue.key) == (2, "a.b") and "repeated key a.b" in issue.message


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: 1\nb: [", 2, "not YAML: "),
        ("\na: \x01", 2, "not YAML: unacceptable character #x0001"),
        ("a: 1\nb: !!bool maybe", 2, "not YAML: "),
        ("a: !!python/object:os.system x", 1, "not YAML: could not determine a constructor"),
        ("# nothing", 0, "is empty"),
        ("[" * 5000, 1, "not YAML: lists or objects are nested too deeply"),
        ("a: " + "[" * 50 + "]" * 50, 1, "nested too deeply"),
        ("a: &a [" + "1," * 200 + "]\nb: [" + "*a," * 200 + "]", 1, "too many values"),
        ("a" * 1_000_001, 0, "more than 1000000 characters"),
    ],
)
def test_what_cannot_be_read(text: str, line: int, message: str) -> None:
    with pytest.raises(FileSyntaxError) as caught:
        load(text)
    assert message in str(caught.value) and caught.value.issue.line == line
