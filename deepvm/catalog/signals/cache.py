"""The cache of signals: one file per region and kind, so that most commands ask nobody.

::

    <folder>/us-east-1/spot.json                      what everybody sees
    <folder>/us-east-1/account-<tag>/quotas.json      what depends on who asks
    <folder>/us-east-1/.lock                          held while a process fetches for this region

Whatever is wrong with the cache (damaged files, a full disk, a read-only folder) costs a note and a new request to the
source, never the run.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from deepvm.catalog.signals.signal import ACCOUNT_BOUND, FAILURES, TTL_S, Signal, ttl_s
from deepvm.catalog.signals.signal_file import Stored, decode, encode
from deepvm.errors import CatalogFormatError, DataError, RequestError
from deepvm.io.atomic_write import write_bytes
from deepvm.io.safe_read import MAX_BYTES, read_text
from deepvm.io.user_dirs import user_folder

CLOCK_SKEW = timedelta(minutes=5)
"""How far in the future a file may seem to be fetched and still count: machines that share a home differ a little."""

LOCK_WAIT_S = 60.0
"""How long to wait for another process that fetches the same region."""

_POLL_S = 0.05
_LEFT_OVER_S = 3600
_REGION = re.compile(r"[a-z0-9][a-z0-9-]{0,62}", re.ASCII)
_KIND = re.compile(r"[a-z-]+(:[A-Za-z0-9._-]{1,100})?", re.ASCII)
_ACCOUNT = "account-"


def default_folder(environ: Mapping[str, str], cloud: str = "aws") -> Path | None:
    """Where the cache is: ``DEEPVM_CACHE_DIR``, else deepvm's folder in the user's cache; None if there is no home.

    Answers of other end points than AWS's own (a test server, a mirror) get a sub-folder, for they must never pass as
    AWS's prices later; so do those of other clouds.
    """
    named = environ.get("DEEPVM_CACHE_DIR", "")
    folder = Path(os.path.expanduser(named)).absolute() if named else user_folder("cache", environ)
    if folder is not None and cloud != "aws":
        folder /= f"cloud_{cloud}"
    elsewhere = sorted(
        f"{name}={value}"
        for name, value in environ.items()
        if value and (name.startswith("AWS_ENDPOINT_URL") or name == "DEEPVM_ADVISOR_URL")
    )
    if folder is None or not elsewhere:
        return folder
    # Only the hash: an address may carry a password. The underscore: no region has such a name.
    return folder / f"endpoint_{hashlib.sha256(chr(10).join(elsewhere).encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Entry:
    """A file of the cache.

    Attributes:
        region: the folder it lies in. kind: what it says it holds, or what its name says if it cannot be read.
        path: the file.
        account: the tag of the account it belongs to; empty for what everybody sees.
        state: ``fresh``, ``expired``, ``damaged`` (not what was written, or set aside as such) or ``other version``.
        stored: the signal and when it was fetched, where it can be read.
        problem: why it cannot, in words; empty if it can.
    """

    region: str
    kind: str
    path: Path
    account: str
    state: Literal["fresh", "expired", "damaged", "other version"]
    stored: Stored | None = None
    problem: str = ""


class RegionLock:
    """The right to fetch for one region; the kernel releases it when the process ends, however it ends.

    Attributes:
        held: whether it was obtained. waited: whether somebody else held it first.
    """

    def __init__(self, descriptor: int | None, *, held: bool, waited: bool) -> None:
        """Made by :meth:`Cache.lock`."""
        self._descriptor, self.held, self.waited = descriptor, held, waited

    def release(self) -> None:
        """Let others in; may be called twice."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> RegionLock:
        """Nothing to do: it is held already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let others in."""
        self.release()


class Cache:
    """Signals on disk, safe for several processes and threads; files are replaced atomically."""

    def __init__(self, folder: Path | None, account: str) -> None:
        """Touches nothing yet.

        Args:
            folder: see :func:`default_folder`; None for no cache at all, which is noted at the first write.
            account: the tag of who asks, safe as a file name.
        """
        self.folder = folder
        self.account = re.sub(r"[^A-Za-z0-9._-]", "_", account)[:100] or "default"
        self._notes: dict[str, None] = {}
        self._write_failed = False

    @property
    def keeps(self) -> bool:
        """Whether there is a folder and no write has failed."""
        return self.folder is not None and not self._write_failed

    def take_notes(self) -> tuple[str, ...]:
        """What went wrong since the last call, each thing once."""
        notes, self._notes = tuple(self._notes), {}
        return notes

    def read(self, region: str, kind: str, now: datetime) -> Signal | None:
        """The signal, with origin ``cache`` while it is fresh and ``expired`` later; None if there is none to trust.

        A damaged file is set aside (at most one of a kind) and noted. Never blocks.

        Raises:
            RequestError: the region's name is none.
        """
        path = self._path(region, kind)
        if path is None:
            return None
        try:
            stored = _load(path, region, kind)
        except DataError as error:
            self._set_aside(path, str(error))
            return None
        if stored is None:
            return None
        ahead = stored.fetched_at - now
        if ahead > CLOCK_SKEW:
            self._note(
                f"{path} says that it was fetched at {stored.fetched_at:%Y-%m-%d %H:%M} UTC, which is in the future: "
                "it counts as expired; check the clock of this machine"
            )
        return stored.signal if _is_fresh(stored, now) else replace(stored.signal, origin="expired")

    def write(self, signal: Signal, fetched_at: datetime) -> bool:
        """Keep a signal; whether that worked. A failure is noted once and is no error.

        Raises:
            RequestError: the region's name is none.
        """
        path = self._path(signal.region, signal.kind)
        if path is None:
            self._cannot_write("there is no home folder to keep it in")
            return False
        try:
            data = encode(signal, fetched_at)
            if len(data) > MAX_BYTES:
                raise ValueError(f"{len(data) / 2**20:.0f} MiB are more than {MAX_BYTES // 2**20} MiB")
        except (TypeError, ValueError, RecursionError) as error:
            self._note(f"{signal.kind} of {signal.region} is not kept in the cache: {error}")
            return False
        try:
            self._make_folders(path.parent)
            if path.is_symlink():  # a link would be followed, to wherever it leads
                path.unlink()
            write_bytes(path, data)
            path.chmod(0o600)
            _sweep(path)
        except OSError as error:
            self._cannot_write(f"{error.filename or path}: {error.strerror or type(error).__name__}")
            return False
        except DataError as error:
            self._cannot_write(str(error).partition("; nothing was changed")[0])
            return False
        return True

    def lock(self, region: str, wait_s: float = LOCK_WAIT_S, on_wait: Callable[[], None] | None = None) -> RegionLock:
        """Wait for the right to fetch for a region, so that two processes do the work once.

        Args:
            region: such as ``us-east-1``.
            wait_s: at most this long; then the lock is returned not held, with a note, and whoever asked goes on.
            on_wait: called once if somebody else holds it.
        """
        path = self._region_folder(region)
        if path is None:
            return RegionLock(None, held=False, waited=False)
        try:
            self._make_folders(path)
            descriptor = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return RegionLock(None, held=False, waited=False)  # the write that follows fails as well, and says so
        end, waited = time.monotonic() + wait_s, False
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return RegionLock(descriptor, held=True, waited=waited)
                except BlockingIOError:
                    left = end - time.monotonic()
                    if left <= 0:
                        self._note(f"another deepvm is still fetching {region}: going on without waiting for it")
                        break
                    if not waited and on_wait is not None:
                        on_wait()
                    waited = True
                    time.sleep(min(_POLL_S, left))
                except OSError as error:  # file systems without locks
                    self._note(f"{path}: cannot be locked: {error.strerror}; going on without a lock")
                    break
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return RegionLock(None, held=False, waited=waited)

    def stamp(self, region: str, kind: str) -> object:
        """Something that changes whenever the file is written anew; None if there is no file."""
        path = self._path(region, kind)
        try:
            status = None if path is None else os.stat(path)
        except (OSError, ValueError):
            return None
        return None if status is None else (status.st_ino, status.st_mtime_ns, status.st_size)

    def regions(self) -> tuple[str, ...]:
        """The regions that have a folder, sorted."""
        return () if self.folder is None else tuple(f.name for f in _folders(self.folder) if _REGION.fullmatch(f.name))

    def entries(self, now: datetime) -> tuple[Entry, ...]:
        """All files of all regions and accounts, by region and kind; changes nothing."""
        if self.folder is None:
            return ()
        kinds = list(TTL_S)
        found = [e for region in self.regions() for e in _entries(self.folder / region, now)]
        return tuple(sorted(found, key=lambda e: (e.region, kinds.index(e.kind.partition(":")[0]), e.kind, e.account)))

    def _path(self, region: str, kind: str) -> Path | None:
        folder = self._region_folder(region)
        if not _KIND.fullmatch(kind):
            raise RequestError("kind", kind, f"one of {', '.join(TTL_S)}")
        if folder is None:
            return None
        if kind.partition(":")[0] in ACCOUNT_BOUND:
            folder /= f"{_ACCOUNT}{self.account}"
        return folder / _file_name(kind)

    def _region_folder(self, region: str) -> Path | None:
        # A name such as ../../x must not lead out of the cache.
        if not _REGION.fullmatch(region):
            raise RequestError("region", region, "the name of a region, such as us-east-1")
        return None if self.folder is None else self.folder / region

    def _make_folders(self, folder: Path) -> None:
        assert self.folder is not None
        # The folders above the cache's own get the usual permissions; those of the cache are the user's alone.
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        for part in (self.folder, *(f for f in reversed(folder.parents) if self.folder in f.parents), folder):
            part.mkdir(mode=0o700, exist_ok=True)

    def _note(self, text: str) -> None:
        self._notes[text] = None

    def _cannot_write(self, why: str) -> None:
        if not self._write_failed:
            self._note(f"the cache is not written ({why}); DEEPVM_CACHE_DIR names another place for it")
        self._write_failed = True

    def _set_aside(self, path: Path, why: str) -> None:
        aside = path.with_name(f"{path.name}.damaged")
        try:
            os.replace(path, aside)
            self._note(f"the cached file {path} is damaged ({why}); it was set aside as {aside.name}")
        except OSError as error:
            self._note(f"the cached file {path} is ignored ({why}) and could not be set aside: {error.strerror}")


def _file_name(kind: str) -> str:
    return f"{kind.replace(':', '-')}.json"


def _kind_of(name: str) -> str | None:
    stem = name.partition(".json")[0]
    base = next((k for k in TTL_S if stem == k or stem.startswith(f"{k}-")), None)
    return None if base is None else base + stem[len(base) :].replace("-", ":", 1)


def _load(path: Path, region: str, kind: str) -> Stored | None:
    try:
        text = read_text(path)
    except FileNotFoundError:
        return None
    except CatalogFormatError as error:
        raise DataError(f"it {error.problems[0].found}") from None
    stored = decode(text)
    if stored is not None and (stored.signal.region, stored.signal.kind) != (region, kind):
        raise DataError(f"it holds {stored.signal.kind} of {stored.signal.region}")
    return stored


def _is_fresh(stored: Stored, now: datetime) -> bool:
    return -CLOCK_SKEW <= now - stored.fetched_at < timedelta(seconds=ttl_s(stored.signal.kind))


def _entries(region: Path, now: datetime) -> Iterator[Entry]:
    accounts = [f for f in _folders(region) if f.name.startswith(_ACCOUNT)]
    for folder in (region, *accounts):
        account = "" if folder is region else folder.name.removeprefix(_ACCOUNT)
        with contextlib.suppress(OSError):
            for path in folder.iterdir():
                kind = _kind_of(path.name)
                if kind == FAILURES:
                    continue
                if kind is not None and path.name == _file_name(kind):
                    yield _entry(region.name, kind, path, account, now)
                elif kind is not None and path.name == f"{_file_name(kind)}.damaged":
                    yield Entry(region.name, kind, path, account, "damaged", problem="it was set aside")


def _entry(region: str, kind: str, path: Path, account: str, now: datetime) -> Entry:
    try:
        stored = _load(path, region, kind)
    except DataError as error:
        return Entry(region, kind, path, account, "damaged", problem=str(error))
    if stored is None:
        return Entry(region, kind, path, account, "other version", problem="another version of deepvm wrote it")
    return Entry(region, kind, path, account, "fresh" if _is_fresh(stored, now) else "expired", stored)


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if p.is_dir())
    except OSError:
        return []


def _sweep(path: Path) -> None:
    """Remove what processes left that were killed while they wrote this file; an hour is more than a write takes."""
    written = path.stat().st_mtime
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        with contextlib.suppress(OSError):
            if written - left.stat().st_mtime > _LEFT_OVER_S:
                left.unlink()
