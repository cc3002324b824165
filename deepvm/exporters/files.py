"""Write the files of an export, all or none."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

from deepvm.errors import DataError, RequestError
from deepvm.exporters.base import Export, ExportFile
from deepvm.io.atomic_write import write_bytes
from deepvm.io.safe_read import os_reason


def write_export(export: Export, folder: Path, *, force: bool = False) -> tuple[Path, ...]:
    """Write all files, or none, into a folder, which is made when it is missing.

    Raises:
        RequestError: a file exists and ``force`` is not set. DataError: something cannot be
            written; nothing was.
    """
    paths = tuple(folder / file.name for file in export.files)
    existing = [str(path) for path in paths if os.path.lexists(path)]
    if existing and not force:
        allowed = f"a folder without {', '.join(existing)}, or --force to replace"
        raise RequestError("output_dir", str(folder), allowed)
    try:
        # All is written before the folder exists, and on its file system: a full disk leaves
        # nothing behind, and os.replace does not work across file systems.
        nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
        with TemporaryDirectory(prefix=".deepvm-", dir=nearest) as staging:
            staged = [Path(staging) / file.name for file in export.files]
            for file, source, path in zip(export.files, staged, paths, strict=True):
                _stage(file, source, path)
            folder.mkdir(parents=True, exist_ok=True)
            for source, path in zip(staged, paths, strict=True):
                os.replace(source, path)
    except (OSError, ValueError) as error:
        reason = f"{os_reason(error)}; nothing was changed, name another folder"
        raise DataError(f"{folder}: cannot be written: {reason}") from None
    return paths


def _stage(file: ExportFile, staged: Path, path: Path) -> None:
    """Write a file with the permissions that it will have at its destination."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: a folder or device has this name")
    write_bytes(staged, file.data or file.text.encode())
    if path.exists():
        shutil.copymode(path, staged)
    if file.executable:
        mode = stat.S_IMODE(staged.stat().st_mode)
        staged.chmod(mode | (mode & 0o444) >> 2)  # executable for all who may read it
