"""Where a user's files of deepvm are, and the data files that come with it."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

MEASURED = "measured.json"  # The file of measured tables
_DIRS = {"cache": "~/.cache", "config": "~/.config", "data": "~/.local/share"}


def user_folder(
    kind: Literal["cache", "config", "data"], environ: Mapping[str, str]
) -> Path | None:
    """Deepvm's folder among the user's, as platformdirs has it; it need not exist.

    None without a home: the path would start in the current folder, which is not the user's own.
    """
    if sys.platform == "linux":  # without the 10 ms that importing platformdirs takes
        named = environ.get(f"XDG_{kind.upper()}_HOME", "").strip()
        folder = Path(named or os.path.expanduser(_DIRS[kind])) / "deepvm"
    else:
        import platformdirs

        folder = getattr(platformdirs, f"user_{kind}_path")("deepvm")
    if folder.is_absolute():
        return folder
    return None


def own_data_folder(environ: Mapping[str, str]) -> Path | None:
    """Where measured tables and jobs are: ``DEEPVM_DATA_DIR``, else :func:`user_folder`."""
    named = environ.get("DEEPVM_DATA_DIR", "")
    if named:
        return Path(os.path.expanduser(named)).absolute()
    return user_folder("data", environ)


def is_missing(path: Path) -> bool:
    """Whether there certainly is no such file; without permission to look, there may be."""
    try:
        os.lstat(path)
    except OSError as error:
        # After others, reading it says why
        return isinstance(error, (FileNotFoundError, NotADirectoryError))
    return False


def data_folder() -> Path:
    """``deepvm/_data`` in an installed wheel, ``data/`` of the repository if editable."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "_data"
    if inside.is_dir():
        return inside
    return package.parent / "data"


def read_data(name: str) -> Any:
    """A JSON file of the data folder, such as ``performance/gpus.json``."""
    return json.loads((data_folder() / name).read_text(encoding="utf-8"))
