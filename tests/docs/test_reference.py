"""The pages of commands and of the Python API are those that the code would write now."""

from __future__ import annotations

import os
import runpy

import pytest
from support.pages import ROOT, text_of

import deepvm

WRITER = ROOT / "scripts" / "reference_pages.py"


@pytest.mark.parametrize("page", ["cli.md", "api.md", "documents.md"])
def test_it_is_up_to_date(page: str) -> None:
    """``python scripts/reference_pages.py``, or ``WRITE_GOLDEN=1``, writes it anew."""
    if page == "api.md":
        pytest.importorskip("torch")
    now = runpy.run_path(str(WRITER))["PAGES_BY_NAME"][page]()
    if os.environ.get("WRITE_GOLDEN"):
        (ROOT / "docs" / "reference" / page).write_text(now)
    assert now == text_of(f"docs/reference/{page}")


def test_every_public_name_is_there() -> None:
    text = text_of("docs/reference/api.md")
    assert not {name for name in deepvm.__all__ if f"## deepvm.{name}\n" not in text}


def test_properties_are_no_calls_and_classes_have_their_arguments() -> None:
    text = text_of("docs/reference/api.md")
    for shown in (
        "Checkpointer.version: int\n",
        "    remote_done: Future[int]\n",
        '    SPOT = "spot"\n',
        "    direct: bool = True,\n",
    ):
        assert shown in text
