"""Writing the files of an export: all of them, or none."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from deepvm.errors import DataError, RequestError
from deepvm.io.atomic_write import write_bytes
from deepvm.reports.exports.base import Export, ExportFile


@dataclass(frozen=True)
class _Before:
    """The previous content and mode of a file, both None where there was none."""

    path: Path
    data: bytes | None
    mode: int | None


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
    made = _make(folder)
    before: list[_Before] = []
    try:
        for path, file in zip(paths, export.files, strict=True):
            before.append(_look(path))
            _write(path, file)
    except BaseException:
        for kept in reversed(before):
            _restore(kept)
        for parent in made:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise
    return tuple(paths)


def _make(folder: Path) -> tuple[Path, ...]:
    """Make a folder and its parents; those that were made, the innermost first."""
    missing: list[Path] = []
    try:
        for parent in (folder, *folder.parents):
            if parent.exists():
                break
            missing.append(parent)
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        for parent in missing:  # a name that is too long is refused after those above it were made
            with contextlib.suppress(OSError, ValueError):
                parent.rmdir()
        raise _refused(folder, error) from None
    return tuple(missing)


def _look(path: Path) -> _Before:
    try:
        status = path.stat()
    except FileNotFoundError:
        return _Before(path, None, None)
    except OSError as error:
        raise _refused(path, error) from None
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path}: cannot be written: a folder or device has this name; nothing was changed")
    try:
        return _Before(path, path.read_bytes(), stat.S_IMODE(status.st_mode))
    except OSError as error:
        raise _refused(path, error) from None


def _write(path: Path, file: ExportFile) -> None:
    write_bytes(path, file.text.encode())
    if file.executable:
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
            path.chmod(mode | (mode & 0o444) >> 2)  # executable for everybody who may read it
        except OSError as error:
            raise _refused(path, error) from None


def _restore(kept: _Before) -> None:
    # The first error is the one to report; what cannot be put back is beyond help.
    with contextlib.suppress(OSError, DataError):
        if kept.data is None:
            kept.path.unlink(missing_ok=True)
        else:
            write_bytes(kept.path, kept.data)
            kept.path.chmod(kept.mode or 0o600)


def _refused(path: Path, error: OSError | ValueError) -> DataError:
    why = (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
    return DataError(f"{path}: cannot be written: {why}; nothing was changed, name another place")
