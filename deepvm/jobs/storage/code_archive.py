"""The code of a job as an archive: packed where the job is submitted, unpacked on each machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

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
    rows = list(
        _all(folder) if names is None else (n for n in names if os.path.lexists(folder / n))
    )
    size = 0
    for name in rows:
        status = (folder / name).lstat()
        size += status.st_size if stat.S_ISREG(status.st_mode) else 0
        if stat.S_ISLNK(status.st_mode) and _leads_out(name, os.readlink(folder / name)):
            raise RequestError(
                "code",
                name,
                "links within the folder: name it in .gitignore, or put what it leads to under"
                " data: in the job file",
            )
        if size > MOST_BYTES or len(rows) > MOST_FILES:
            most = f"at most {format_bytes(MOST_BYTES)} and {MOST_FILES} files of code"
            allowed = (
                f"{most}: name what is no code in .gitignore, and put data under data: in the job"
                " file"
            )
            raise RequestError("code", str(folder), allowed)
    hidden = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with tarfile.open(hidden, "w:gz", compresslevel=1) as archive:
            for name in rows:
                mode = (folder / name).lstat().st_mode
                if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode):
                    archive.add(folder / name, name, recursive=False)
        hidden.replace(target)
    finally:
        hidden.unlink(missing_ok=True)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive into a folder, and nothing outside of it. Raises DataError."""
    try:
        folder.mkdir(exist_ok=True)
        with tarfile.open(archive, "r:gz") as found:
            if hasattr(tarfile, "data_filter"):
                limit = _Limit()

                def allowed(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
                    limit.count(member)
                    return tarfile.data_filter(member, path)

                found.extractall(folder, filter=allowed)
            else:  # a Python before 3.10.12 or 3.11.4
                found.extractall(folder, _checked(found))  # noqa: S202  checked
    except (OSError, tarfile.TarError, EOFError, ValueError) as error:
        raise DataError(
            f"the archive cannot be unpacked: {error}; give machines room, or submit the job again"
        ) from error


class _Limit:
    """A small archive may unpack to more than a disk holds."""

    def __init__(self) -> None:
        self._bytes = 0
        self._files = 0

    def count(self, member: tarfile.TarInfo) -> None:
        """Raises ValueError: it is too much."""
        self._bytes = self._bytes + member.size
        self._files = self._files + 1
        if self._bytes > MOST_BYTES:
            raise ValueError(f"it holds more than {format_bytes(MOST_BYTES)}")
        if self._files > MOST_FILES:
            raise ValueError(f"it holds more than {MOST_FILES} files")


def _checked(archive: tarfile.TarFile) -> list[tarfile.TarInfo]:
    """What is in an archive, as the filter of newer Pythons lets it through. Raises ValueError."""
    limit = _Limit()
    members = list[tarfile.TarInfo]()
    for member in archive:
        limit.count(member)
        members.append(member)
    links = {os.path.normpath(member.name) for member in members if member.issym()}
    for member in members:
        _check(member, links)
        member.mode &= 0o755
    return members


def _check(member: tarfile.TarInfo, links: set[str]) -> None:
    """``links``: all of the archive. Raises ValueError."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{member.name!r} would lie outside of the folder")
    if not (member.isreg() or member.isdir() or member.issym()):
        raise ValueError(f"{member.name!r} is no file")
    if member.issym() and _leads_out(member.name, member.linkname):
        raise ValueError(f"{member.name!r} leads out of the folder")
    # Behind a link ".." is another folder than its words say.
    target = (
        PurePosixPath(os.path.dirname(member.name), member.linkname) if member.issym() else path
    )
    if links & {os.path.normpath(parent) for parent in target.parents}:
        raise ValueError(f"{member.name!r} lies behind a link")


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
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
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
