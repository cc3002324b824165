"""Answers ask the front door to show them, and sequences of rows are sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import deepvm
from deepvm.core.answer import Answer, Rows


@dataclass(frozen=True)
class Numbers(Rows[int]):
    rows: tuple[int, ...]


class FakeForms:
    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def document(self) -> Any:
        return {"of": self.answer}

    def frame(self) -> Any:
        return ("frame", self.answer)

    def html(self) -> str:
        return "<table></table>"


def test_the_front_door_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepvm, "forms_of", FakeForms)
    found = Answer()
    assert found.to_dict() == {"of": found} and found.to_frame() == ("frame", found)
    assert found._repr_html_() == "<table></table>"


def test_rows_are_a_sequence() -> None:
    found = Numbers((3, 1, 2))
    assert (
        len(found) == 3
        and found[0] == 3
        and list(found[1:]) == [1, 2]
        and sorted(found) == [1, 2, 3]
        and 2 in found
    )
    assert not Numbers(())
