"""The code of a job as an archive: packed where the job is submitted, unpacked on each machine."""

from __future__ import annotations

import os
import secrets
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from deepvm.core.units import format_bytes
from deepvm.errors import DataError, RequestError

MOST_BYTES = 500_000_000
"""Of code; more is data."""
MOST_FILES = 200_000


def pack(folder: Path, target: Path) -> None:
    """An archive of a folder's code: what git would commit, or all of it where there is no git.

    Sockets, pipes and devices are left out. Raises RequestError: it is too large, or has links that
    lead out of it, which no machine may follow; OSError.
    """
    names = _of_git(folder)
    if names is None:
        names = list(_all(folder))
    size = 0
    rows = list[str]()
    for name in names:
        path = folder / name
        if not os.path.lexists(path):
            continue
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            size += status.st_size
        elif stat.S_ISLNK(status.st_mode) and _leads_out(name, os.readlink(path)):
            raise RequestError(
                "code",
                name,
                "links within the folder: name it in .gitignore, or put what it leads to under"
                " data: in the job file",
            )
        elif not (stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode)):
            continue
        rows.append(name)
        if size > MOST_BYTES or len(rows) > MOST_FILES:
            allowed = (
                f"at most {format_bytes(MOST_BYTES)} and {MOST_FILES} files of code: name what is"
                " no code in .gitignore, and put data under data: in the job file"
            )
            raise RequestError("code", str(folder), allowed)
    hidden = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with tarfile.open(hidden, "w:gz", compresslevel=1) as archive:
            for name in rows:
                archive.add(folder / name, name, recursive=False)
        hidden.replace(target)
    finally:
        hidden.unlink(missing_ok=True)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack what :func:`pack` has made and the controller has signed. Raises DataError."""
    # Python before 3.10.12 and 3.11.4 has no filters
    if hasattr(tarfile, "data_filter"):
        options: Any = {"filter": "data"}
    else:
        options = {}
    try:
        folder.mkdir(exist_ok=True)
        with tarfile.open(archive, "r:gz") as found:
            found.extractall(folder, **options)  # noqa: S202  see above
    except (OSError, tarfile.TarError, EOFError, ValueError) as error:
        raise DataError(
            f"the archive cannot be unpacked: {error}; give machines room, or submit the job again"
        ) from error


def _leads_out(name: str, link: str) -> bool:
    place = os.path.normpath(os.path.join(os.path.dirname(name), link))
    return os.path.isabs(link) or place == ".." or place.startswith("../")


def _all(folder: Path) -> Iterator[str]:
    """Every name in a folder, those of folders before what is in them; links are not followed."""
    for top, folders, files in os.walk(folder, onerror=_raise):
        for name in sorted([*folders, *files]):
            yield os.path.relpath(os.path.join(top, name), folder)


def _raise(error: OSError) -> None:
    raise error


def _of_git(folder: Path) -> list[str] | None:
    with suppress(OSError, subprocess.TimeoutExpired):
        words = [
            "git",
            "-C",
            str(folder),
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]
        done = subprocess.run(words, capture_output=True, timeout=60)
        if not done.returncode:
            return [n for n in done.stdout.decode("utf-8", "surrogateescape").split("\0") if n]
    return None
