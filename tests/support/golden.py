"""Texts that are kept in files."""

from __future__ import annotations

import os

from support.places import GOLDEN_FOLDER


def check_golden(name: str, text: str) -> None:
    """It is as it is kept in ``tests/golden/``; ``WRITE_GOLDEN=1`` writes it anew."""
    path = GOLDEN_FOLDER / name
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()
