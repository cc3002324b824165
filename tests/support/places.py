"""Paths of the checkout's root, ``tests/``, ``tests/golden/``, and the folder ``shared/`` beside
it.
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
GOLDEN_FOLDER = TESTS / "golden"
SHARED = ROOT.parent / "shared"
"""Beside the checkout; tests that need it skip where it is absent."""
