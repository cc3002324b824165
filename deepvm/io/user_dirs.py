"""Where a user's files of deepvm are, without the 10 ms that importing platformdirs takes on Linux."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

_XDG = {
    "cache": ("XDG_CACHE_HOME", "~/.cache"),
    "config": ("XDG_CONFIG_HOME", "~/.config"),
    "data": ("XDG_DATA_HOME", "~/.local/share"),
}


def user_folder(kind: Literal["cache", "config", "data"], environ: Mapping[str, str]) -> Path | None:
    """Deepvm's folder among the user's, as platformdirs has it (tests compare them); it need not exist.

    None without a home: the path would start in the current folder, which is not the user's own.
    """
    if sys.platform == "linux":
        variable, usual = _XDG[kind]
        folder = Path(environ.get(variable, "").strip() or os.path.expanduser(usual)) / "deepvm"
    else:
        import platformdirs

        own = {
            "cache": platformdirs.user_cache_path,
            "config": platformdirs.user_config_path,
            "data": platformdirs.user_data_path,
        }
        folder = own[kind]("deepvm")
    return folder if folder.is_absolute() else None
