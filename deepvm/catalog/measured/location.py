"""Where the user's measured tables are, and whether there are any: all that a recommendation without them must know.

Apart from :mod:`deepvm.catalog.measured.tables`, because most users never measure and every command would load that for
them.
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
    """Whether it is certain that there is no such file: what may not be looked at must not pass as nothing measured."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False  # reading it says why
    return False
