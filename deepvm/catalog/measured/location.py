"""Where measured tables are and whether any exist.

Separate from :mod:`deepvm.catalog.measured.tables`, so that users without measurements need not load that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from deepvm.io.user_dirs import user_folder

CURRENT = "measured.json"


def default_folder(environ: Mapping[str, str]) -> Path | None:
    """Where measured tables are: ``DEEPVM_DATA_DIR``, else deepvm's folder in the user's data; None without a home."""
    named = environ.get("DEEPVM_DATA_DIR", "")
    if named:
        return Path(os.path.expanduser(named)).absolute()
    return user_folder("data", environ)


def nothing_measured() -> bool:
    """Whether it is certain that the user has no measured tables."""
    place = default_folder(os.environ)
    return place is None or absent(place / CURRENT)


def absent(path: Path) -> bool:
    """Whether a file certainly does not exist; without permission to look, it may."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False  # reading it says why
    return False
