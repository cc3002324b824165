"""Where the data files are that come with deepvm."""

from __future__ import annotations

from pathlib import Path


def data_folder() -> Path:
    """``deepvm/_data`` in an installed wheel, ``data/`` at the top of the repository in an editable installation."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "_data"
    return inside if inside.is_dir() else package.parent / "data"
