"""A full disk under the folder of an audit: its own fault, not that of the script."""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from deepvm.errors import DataError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_LEAST_BYTES = 1 << 16


def no_room(folder: Path) -> DataError:
    """What to say and do."""
    return DataError(
        f"{folder}: no room left for the files of the audit, so nothing can be said of the script;"
        " make room there, or name a folder on another disk: --out DIR (without it, TMPDIR says"
        " where)"
    )


def check_room(folder: Path) -> None:
    """Raise DataError if nothing can be written to a folder: the failure may be due to that."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            if file.write(bytes(_LEAST_BYTES)) != _LEAST_BYTES:
                raise no_room(folder)
    except OSError as error:
        if error.errno in _FULL:
            raise no_room(folder) from None
        raise


def log_incomplete(folder: Path) -> DataError:
    """Why the probe could not write its lines below a folder.

    Raises OSError: it finds another fault there.
    """
    try:
        check_room(folder)
    except DataError as error:
        return error
    return no_room(folder)  # by now something has been removed


@contextlib.contextmanager
def own_files(folder: Path) -> Iterator[None]:
    """What is done here writes into a folder. Raises DataError: it is full."""
    try:
        yield
    except shutil.Error:  # of a copied folder: it has no error number
        check_room(folder)
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise no_room(folder) from None
        raise
