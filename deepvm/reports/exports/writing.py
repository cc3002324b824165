"""Writing the files of an export: all of them, or none."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from itertools import takewhile
from pathlib import Path

from deepvm.errors import DataError, RequestError
from deepvm.io.atomic_write import write_bytes
from deepvm.reports.exports.base import Export, ExportFile


def write_export(export: Export, folder: Path, *, force: bool = False) -> tuple[Path, ...]:
    """Write all files of an export into a folder, which is made when it is missing.

    If one cannot be written, those before it are put back as they were.

    Args:
        export: what to write.
        folder: where.
        force: replace files that exist.

    Returns:
        The paths, in the order of the files.

    Raises:
        RequestError: a file exists and ``force`` is not set. DataError: something cannot be written; nothing was.
    """
    paths = [folder / file.name for file in export.files]
    existing = [str(p) for p in paths if os.path.lexists(p)]
    if existing and not force:
        raise RequestError("output_dir", str(folder), f"a folder without {', '.join(existing)}, or --force to replace")
    with ExitStack() as undo:
        try:
            missing = list(takewhile(lambda parent: not parent.exists(), (folder, *folder.parents)))
            for parent in reversed(missing):
                parent.mkdir(exist_ok=True)
                undo.callback(_quietly, parent.rmdir)
            for path, file in zip(paths, export.files, strict=True):
                _write(path, file, undo)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            place = getattr(error, "filename", None) or folder
            raise DataError(f"{place}: cannot be written: {why}; nothing was changed, name another place") from None
        undo.pop_all()
    return tuple(paths)


def _write(path: Path, file: ExportFile, undo: ExitStack) -> None:
    if path.exists():
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{path}: cannot be written: a folder or device has this name; nothing was changed")
        undo.callback(_quietly, partial(path.chmod, stat.S_IMODE(status.st_mode)))
        undo.callback(_quietly, partial(write_bytes, path, path.read_bytes()))
    else:
        undo.callback(_quietly, partial(path.unlink, missing_ok=True))
    write_bytes(path, file.text.encode())
    if file.executable:
        mode = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode | (mode & 0o444) >> 2)  # executable for everybody who may read it


def _quietly(undo: Callable[[], object]) -> None:
    # The first error is the one to report; what cannot be put back is beyond help.
    with suppress(OSError, DataError):
        undo()
