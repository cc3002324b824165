"""The cache of signals: one JSON file per region and kind.

::

    <folder>/us-east-1/spot.json                      what everybody sees
    <folder>/us-east-1/account-<tag>/quotas.json      what depends on who asks
    <folder>/us-east-1/.lock                          held while a process fetches for this region

    {"schema_version":"deepvm.signal/1","sha256":"<of every byte from line 2 on>",
    "kind":"spot","region":"us-east-1","fetched_at":"...","observed_at":"...","source":"...",
     "refused":{},"data":{...}}

Whatever is wrong with the cache (damaged files, a full disk, a read-only folder) costs a note and a
new request to the source, never the run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Literal

from deepvm.catalog.price_sources import ADDRESS_VARIABLES
from deepvm.catalog.signals.signal import FAILURES, KINDS, Signal, base, ttl_s
from deepvm.errors import CatalogFormatError, DataError, RequestError
from deepvm.io.atomic_write import write_bytes
from deepvm.io.file_lock import FileLock
from deepvm.io.safe_read import MAX_BYTES, read_text
from deepvm.io.user_dirs import user_folder

SCHEMA_VERSION = "deepvm.signal/1"

CLOCK_SKEW = timedelta(minutes=5)
"""The clocks of machines that share a home differ a little: a file may be from the future."""

LOCK_WAIT_S = 60.0
"""How long to wait for another process that fetches the same region."""

_MAX_WRITE_S = 3600
_ADDRESSES = ("DEEPVM_ADVISOR_URL", *ADDRESS_VARIABLES)
_REGION = re.compile(r"[a-z0-9][a-z0-9-]{0,62}", re.ASCII)
_KIND = re.compile(r"[a-z-]+(:[A-Za-z0-9._-]{1,100})?", re.ASCII)
_ACCOUNT = "account-"

State = Literal["fresh", "expired", "damaged", "other version"]


def default_folder(environ: Mapping[str, str], cloud: str = "aws") -> Path | None:
    """Where the cache is: ``DEEPVM_CACHE_DIR``, else deepvm's folder in the user's cache.

    None if there is no home.

    Other clouds, and endpoints other than AWS's (a test server), have folders of their own: no
    answers are mixed up.
    """
    named = environ.get("DEEPVM_CACHE_DIR", "")
    folder = Path(os.path.expanduser(named)).absolute() if named else user_folder("cache", environ)
    if folder is not None and cloud != "aws":
        folder /= f"cloud_{cloud}"
    elsewhere = sorted(
        f"{name}={value}"
        for name, value in environ.items()
        if value not in ("", "none") and (name.startswith("AWS_ENDPOINT_URL") or name in _ADDRESSES)
    )
    if folder is None or not elsewhere:
        return folder
    # Only the hash: an address may carry a password. The underscore: no region has such a name.
    return folder / f"endpoint_{hashlib.sha256(chr(10).join(elsewhere).encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Entry:
    """A file of the cache: whose it is (``account`` is empty where everybody sees the same), and what it holds.

    ``problem`` says why there is no signal.
    """

    region: str
    kind: str
    path: Path
    account: str
    state: State
    signal: Signal | None = None
    problem: str = ""


class Cache:
    """Signals on disk, safe for several processes and threads; files are replaced atomically.

    Names of regions and kinds that could lead out of the folder raise a RequestError.
    """

    def __init__(self, folder: Path | None, account: str, ttl_s: int | None = None) -> None:
        """Touch nothing yet; see :func:`default_folder` and ``Cloud.account_tag``.

        Without a folder nothing is kept.

        ``ttl_s``: for how long every signal counts as fresh, where that does not depend on its
        kind.
        """
        self.folder = folder
        self.ttl_s = ttl_s
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
        """The signal, with origin ``cache`` while it is fresh and ``expired`` later.

        A damaged file is renamed (at most one of a kind) and noted. Never blocks.
        """
        path = self._path(region, kind)
        if path is None or not path.exists():  # also: the folder is a file
            return None
        try:
            signal = _load(path)
        except FileNotFoundError:
            return None
        except DataError as error:
            self._quarantine(path, str(error))
            return None
        if signal is None or _is_fresh(signal, now, self.ttl_s):
            return signal
        if signal.fetched_at is not None and signal.fetched_at > now:
            self._note(f"{path} was fetched in the future: check the clock of this machine")
        return replace(signal, origin="expired")

    def write(self, signal: Signal, fetched_at: datetime) -> bool:
        """Keep a signal; whether that worked. A failure is noted once and is no error."""
        path = self._path(signal.region, signal.kind)
        if path is None:
            self._cannot_write("there is no home folder to keep it in")
            return False
        data = encode(signal, fetched_at)
        if len(data) > MAX_BYTES:
            self._note(f"{signal.kind} of {signal.region} is too large for the cache")
            return False
        try:
            self._make_folders(path.parent)
            write_bytes(path, data)
            path.chmod(0o600)
            _sweep(path)
        except (OSError, DataError) as error:
            self._cannot_write(str(error).partition("; it is as it was")[0])
            return False
        return True

    def lock(
        self, region: str, wait_s: float = LOCK_WAIT_S, on_wait: Callable[[], None] = lambda: None
    ) -> ExitStack | None:
        """Lock a region, so that two processes do the work once.

        The kernel unlocks it however this one ends.

        ``on_wait`` is called once if another process holds it. Returns what releases it; None if it
        was not free within ``wait_s``: go on without it.
        """
        folder = self._region_folder(region)
        if folder is None:
            return None
        lock = FileLock(folder / ".lock")
        with ExitStack() as held:
            held.callback(lock.release)
            try:
                self._make_folders(folder)
                free = lock.take(shared=False)
                if not free and wait_s > 0:
                    on_wait()
                    free = lock.take(shared=False, limit_s=wait_s)
            except OSError as error:
                # A file system without locks; else the write that follows fails and says so
                if error.filename is None:
                    self._note(
                        f"{folder}: cannot be locked: {error.strerror}; going on without a lock"
                    )
                return None
            if not free:
                self._note(
                    f"another deepvm is still fetching {region}: going on without waiting for it"
                )
            return held.pop_all() if free else None

    def stamp(self, region: str, kind: str) -> object:
        """Something that changes whenever the file is replaced; None if there is no file."""
        path = self._path(region, kind)
        with contextlib.suppress(OSError):
            if path is not None:
                status = path.stat()
                return status.st_ino, status.st_mtime_ns, status.st_size
        return None

    def entries(self, now: datetime) -> tuple[Entry, ...]:
        """All files of all regions and accounts, by region and kind; changes nothing."""
        if self.folder is None:
            return ()
        files = (*self.folder.glob("*/*.json*"), *self.folder.glob(f"*/{_ACCOUNT}*/*.json*"))
        found = [
            e for file in files if (e := _entry(file, self.folder, now, self.ttl_s)) is not None
        ]
        kinds = list(KINDS)
        return tuple(
            sorted(
                found,
                key=lambda e: (e.region, kinds.index(base(e.kind)), e.kind, e.account, e.path),
            )
        )

    def _path(self, region: str, kind: str) -> Path | None:
        folder = self._region_folder(region)
        if not _KIND.fullmatch(kind) or base(kind) not in KINDS:
            raise RequestError("kind", kind, f"one of {', '.join(KINDS)}")
        if folder is None:
            return None
        if KINDS[base(kind)].of_account:
            folder /= f"{_ACCOUNT}{self.account}"
        return folder / f"{kind.replace(':', '-')}.json"

    def _region_folder(self, region: str) -> Path | None:
        if not _REGION.fullmatch(region):
            raise RequestError("region", region, "the name of a region, such as us-east-1")
        return None if self.folder is None else self.folder / region

    def _make_folders(self, folder: Path) -> None:
        assert self.folder is not None
        # Only the user may read the cache's own folders; those above get the usual permissions.
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        for part in (
            self.folder,
            *(f for f in reversed(folder.parents) if self.folder in f.parents),
            folder,
        ):
            part.mkdir(mode=0o700, exist_ok=True)

    def _note(self, text: str) -> None:
        self._notes[text] = None

    def _cannot_write(self, reason: str) -> None:
        if not self._write_failed:
            self._note(f"the cache is not written ({reason}); DEEPVM_CACHE_DIR names another place")
        self._write_failed = True

    def _quarantine(self, path: Path, reason: str) -> None:
        damaged = path.with_name(f"{path.name}.damaged")
        self._note(f"the cached file {path} is damaged ({reason}); it is renamed {damaged.name}")
        with contextlib.suppress(OSError):
            os.replace(path, damaged)


def encode(signal: Signal, fetched_at: datetime) -> bytes:
    """The bytes of a signal's file."""
    head = {
        "kind": signal.kind,
        "region": signal.region,
        "fetched_at": fetched_at.astimezone(timezone.utc).isoformat(),
        "observed_at": signal.observed_at.astimezone(timezone.utc).isoformat(),
        "source": signal.source,
        "refused": dict(signal.refused),
        "dated": signal.dated,
        "data": signal.data,
    }
    sealed = json.dumps(head, allow_nan=False, separators=(",", ":"))[1:] + "\n"
    digest = hashlib.sha256(sealed.encode()).hexdigest()
    return f'{{"schema_version":"{SCHEMA_VERSION}","sha256":"{digest}",\n{sealed}'.encode()


def _load(path: Path) -> Signal | None:
    """The signal in a file; None if another version of deepvm wrote it, a DataError if damaged."""
    try:
        text = read_text(path)
    except CatalogFormatError as error:
        raise DataError(f"it {error.problems[0]}") from None
    first, _, sealed = text.partition(",\n")
    try:
        head = json.loads(f"{first}}}")
        if head["schema_version"] != SCHEMA_VERSION:
            return None
        # Also of the head: a flipped digit in fetched_at would pass an old price as new.
        if head["sha256"] != hashlib.sha256(sealed.encode()).hexdigest():
            raise DataError("its bytes do not match its sha256")
    except (ValueError, KeyError, TypeError):
        raise DataError("it is no cached signal") from None
    body = json.loads(f"{{{sealed}")
    return Signal(
        body["kind"],
        body["region"],
        datetime.fromisoformat(body["observed_at"]),
        body["source"],
        body["data"],
        body["refused"],
        "cache",
        datetime.fromisoformat(body["fetched_at"]),
        body.get("dated", True),
    )


def _is_fresh(signal: Signal, now: datetime, seconds: int | None) -> bool:
    assert signal.fetched_at is not None
    return -CLOCK_SKEW <= now - signal.fetched_at < timedelta(seconds=seconds or ttl_s(signal.kind))


def _entry(file: Path, cache: Path, now: datetime, seconds: int | None) -> Entry | None:
    """A file's entry; None if the cache wrote no such file, or it has just been removed."""
    region, *accounts, _ = file.relative_to(cache).parts
    stem, _, ending = file.name.partition(".json")
    name = next((k for k in KINDS if stem == k or stem.startswith(f"{k}-")), FAILURES)
    if name == FAILURES or ending not in ("", ".damaged") or not _REGION.fullmatch(region):
        return None
    kind = name + stem[len(name) :].replace("-", ":", 1)
    signal, problem = None, "it was damaged"
    try:
        if not ending:
            signal, problem = _load(file), ""
    except FileNotFoundError:
        return None
    except DataError as error:
        problem = str(error)
    state: State = "damaged"
    if signal is not None:
        state = "fresh" if _is_fresh(signal, now, seconds) else "expired"
    elif not problem:
        state, problem = "other version", "another version of deepvm wrote it"
    account = accounts[0].removeprefix(_ACCOUNT) if accounts else ""
    return Entry(region, kind, file, account, state, signal, problem)


def _sweep(path: Path) -> None:
    """Remove temporary files of processes killed while they wrote this file.

    A write takes less than an hour.
    """
    written = path.stat().st_mtime
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        with contextlib.suppress(OSError):
            if written - left.stat().st_mtime > _MAX_WRITE_S:
                left.unlink()
