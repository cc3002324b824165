"""A folder of the user's in which results of jobs are brought, each file whole or not at all.

``.deepvm-fetch/brought`` there has a line for each file before that gets its name: what it does
not list is the user's, and stays.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from deepvm.core.units import format_bytes
from deepvm.errors import DamagedError, DataError
from deepvm.io.file_lock import FileLock
from deepvm.io.safe_read import os_reason
from deepvm.jobs.storage.backup_store import copy, pieces_of
from deepvm.jobs.storage.output_store import unfit
from deepvm.records import asdict, dataclass

HIDDEN = ".deepvm-fetch"
NEW, REPLACED, SAME = "new", "replaced", "same"
_SPARE_BYTES = 64 << 20  # That stay free on the disk


@dataclass(frozen=True)
class BroughtFile:
    """What a fetch has put under a name; ``source``: what it was, ``kept_s``: of when."""

    name: str
    sha256: str
    job: str
    kept_s: float
    source: str = ""


class FetchFolder:
    """The folder; for one process at a time. Methods raise DataError."""

    def __init__(self, folder: Path, job: str) -> None:
        self._folder = folder
        self._job = job
        self._hidden = folder / HIDDEN
        self._known: dict[tuple[str, str], BroughtFile] = {}  # by name and checksum

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Raises DataError: it cannot be used, or another fetch is busy there."""
        lock = FileLock(self._hidden / "lock")
        is_new = not self._folder.exists()
        try:
            self._hidden.mkdir(parents=True, exist_ok=True)
            is_free = lock.take(shared=False)
            if is_free:
                self._read()
        except OSError as error:
            raise DataError(f"{self._folder}: {os_reason(error)}; name another one") from None
        if not is_free:
            raise DataError(
                f"{self._folder}: another 'deepvm jobs fetch' writes there; wait for it"
            )
        try:
            yield
        finally:
            shutil.rmtree(self.parts, ignore_errors=True)
            lock.release(remove=True)
            # Both stay if anything is in them
            with suppress(OSError):
                self._hidden.rmdir()
                if is_new:
                    self._folder.rmdir()

    @property
    def parts(self) -> Path:
        """Where files are until they are whole; on the same disk."""
        return self._hidden / "parts"

    def _read(self) -> None:
        shutil.rmtree(self.parts, ignore_errors=True)  # of a fetch that was killed
        self.parts.mkdir()
        with suppress(FileNotFoundError), (self._hidden / "brought").open("rb") as file:
            for line in file:
                with suppress(ValueError, TypeError):  # it was not written to its end
                    known = BroughtFile(**json.loads(line))
                    self._known[known.name, known.sha256] = known

    def check_space(self, count: int) -> None:
        """Raise DataError if there is no space for so many bytes."""
        free = shutil.disk_usage(self._folder).free
        if count + _SPARE_BYTES > free:
            raise DataError(
                f"{self._folder}: {format_bytes(count)}, and {format_bytes(_SPARE_BYTES)} that"
                f" stay free, do not fit on its disk, which has {format_bytes(free)} free; make"
                " space, or name a folder of another disk"
            )

    def here(self, name: str) -> BroughtFile | None:
        """What is there under a name; None if nothing is. Raises DataError: it is the user's."""
        why = unfit(name)
        if not why and Path(name).parts[0] == HIDDEN:
            why = "the name is one of deepvm's own"
        if why:
            raise DataError(f"{name[:100]!r} is not brought: {why}")
        path = self._folder / name
        for link in (path, *path.parents[: len(Path(name).parts) - 1]):
            if link.is_symlink():
                raise DataError(f"{path} is not brought: {link} is a link; name another folder")
        if not path.exists():
            return None
        if not path.is_file():
            raise DataError(f"{path} is not brought: a folder has this name; name another one")
        sha256 = _digest_of(path)
        return self._known.get((name, sha256), BroughtFile(name, sha256, "", 0.0))

    def state(self, new: BroughtFile) -> str:
        """What bringing a file would do. Raises DataError: what is there stays."""
        here = self.here(new.name)
        if here is None:
            return NEW
        if here.sha256 == new.sha256:
            return SAME
        path = self._folder / new.name
        cure = "move it, or name another folder with --to"
        if here.job != self._job:
            what = f"is there already, and is of {here.job or 'no earlier fetch'}"
        elif here.kept_s > new.kept_s:
            what = "is newer than what would come"
        else:
            return REPLACED
        raise DataError(f"{path} is not brought: it {what}; {cure}")

    def bring(self, new: BroughtFile, size: int, pieces: Iterable[bytes]) -> str:
        """Bring a file. Raises DamagedError: other bytes have come."""
        state = self.state(new)
        if state == SAME:
            return state
        self.check_space(size)
        path = self._folder / new.name
        part = self.parts / new.sha256
        with _errors(path):
            if copy(_limited(new.name, size, pieces), part) != new.sha256:
                raise DamagedError(f"{new.name}: its bytes differ from the stored ones")
            path.parent.mkdir(parents=True, exist_ok=True)
            with (self._hidden / "brought").open("a", encoding="utf-8") as file:
                # A line that a killed fetch has left without its end ends here
                file.write(f"\n{json.dumps(asdict(new))}\n")
            self._known[new.name, new.sha256] = new
            os.replace(part, path)
        return state

    def bring_copy(self, name: str, path: Path, kept_s: float, source: str) -> str:
        """Bring what a complete file contains, under a name; the file may be a tier's own."""
        new = BroughtFile(name, _digest_of(path), self._job, kept_s, source)
        with _errors(path), path.open("rb") as file:
            return self.bring(new, path.stat().st_size, pieces_of(file))


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        cure = ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            cure = "; make space, or name a folder of another disk"
        raise DataError(f"{path} is not brought: {os_reason(error)}{cure}") from None


def _limited(name: str, size: int, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Raises DamagedError: they are more than ``size``."""
    for piece in pieces:
        size -= len(piece)
        if size < 0:
            raise DamagedError(f"{name}: more bytes come than were kept")
        yield piece


def _digest_of(path: Path) -> str:
    """The SHA-256 of a file. Raises DataError."""
    digest = hashlib.sha256()
    with _errors(path), path.open("rb") as file:
        for piece in pieces_of(file):
            digest.update(piece)
    return digest.hexdigest()
