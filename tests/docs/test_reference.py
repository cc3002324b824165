"""The pages of commands and of the Python API are those that the code would write now."""

from __future__ import annotations

import os
import runpy

import pytest
from support.pages import PAGES, ROOT, text_of

import deepvm

REFERENCE = "docs/reference/"
PAGES_BY_NAME = runpy.run_path(str(ROOT / "scripts" / "reference_pages.py"))["PAGES_BY_NAME"]


@pytest.mark.parametrize("page", PAGES_BY_NAME)
def test_it_is_up_to_date(page: str) -> None:
    """``python scripts/reference_pages.py``, or ``WRITE_GOLDEN=1``, writes it."""
    if page.startswith("api/deepvm.checkpoint"):
        pytest.importorskip("torch")
    now = PAGES_BY_NAME[page]()
    if os.environ.get("WRITE_GOLDEN"):
        (ROOT / REFERENCE / page).write_text(now)
    assert now == text_of(REFERENCE + page)


def test_there_is_no_other_page() -> None:
    generated = {REFERENCE + page for page in PAGES_BY_NAME}
    assert {page for page in PAGES if page.startswith(REFERENCE)} == generated


def test_every_public_name_is_there() -> None:
    text = text_of("docs/reference/api/deepvm.md")
    assert not {name for name in deepvm.__all__ if f"## deepvm.{name}\n" not in text}


def test_properties_are_no_calls_and_classes_have_their_arguments() -> None:
    text = "".join(text_of(page) for page in PAGES if page.startswith(REFERENCE + "api/"))
    for shown in (
        "Checkpointer.version: int\n",
        "    remote_done: Future[int]\n",
        '    SPOT = "spot"\n',
        "    direct: bool = True,\n",
    ):
        assert shown in text
