"""The cache of signals: one JSON file per region and kind, ``<folder>/us-east-1/spot.json``."""
# What differs between accounts is in ``account-<tag>/``; "sha256" is of every byte from line 2 on.
# Problems of the cache (damaged files, a full disk) cost a note and a new request, and never end
# the run.

import hashlib
import json
import os
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Literal

from deepvm.catalog.price_sources import ADDRESS_VARIABLES
from deepvm.catalog.signals.signal import FAILURES, KINDS, Signal, base, ttl_s
from deepvm.errors import DataError, RequestError
from deepvm.io.atomic_write import write_bytes
from deepvm.io.user_dirs import user_folder
from deepvm.records import dataclass, replace

SCHEMA_VERSION = "deepvm.signal/1"

# The clocks of machines that share a home differ a little: a file may be from the future
CLOCK_SKEW = timedelta(minutes=5)

_ADDRESSES = ("DEEPVM_ADVISOR_URL", *ADDRESS_VARIABLES)
_REGION = re.compile(r"[a-z0-9][a-z0-9-]{0,62}", re.ASCII)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")

State = Literal["fresh", "expired", "damaged", "other version", "absent", "snapshot"]


def default_folder(cloud: str = "aws") -> Path | None:
    """Where the cache is: ``DEEPVM_CACHE_DIR``, else deepvm's folder in the user's cache."""
    named = os.environ.get("DEEPVM_CACHE_DIR", "")
    folder = user_folder("cache", os.environ)
    if named:
        folder = Path(os.path.expanduser(named)).absolute()
    if folder is not None and cloud != "aws":
        folder /= f"cloud_{cloud}"
    elsewhere = sorted(
        f"{name}={value}"
        for name, value in os.environ.items()
        if value not in ("", "none") and (name.startswith("AWS_ENDPOINT_URL") or name in _ADDRESSES)
    )
    if folder is None or not elsewhere:
        return folder
    # Only the hash: an address may carry a password. The underscore: no region has such a name.
    return folder / f"endpoint_{hashlib.sha256(chr(10).join(elsewhere).encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Entry:
    """A file of the cache, or a placeholder for an absent one or a snapshot."""

    region: str
    kind: str
    path: Path | None = None
    state: State = "damaged"
    signal: Signal | None = None
    problem: str = ""


class Cache:
    """Signals on disk, safe for several processes and threads; files are replaced atomically."""

    def __init__(self, folder: Path | None, account: str, ttl_s: int | None = None) -> None:
        self.folder = folder
        self.ttl_s = ttl_s
        self.account = _UNSAFE.sub("_", account)[:100] or "default"
        self._notes: dict[str, None] = {}
        self._write_failed = False

    @property
    def keeps(self) -> bool:
        return self.folder is not None and not self._write_failed

    def take_notes(self) -> tuple[str, ...]:
        notes = tuple(self._notes)
        self._notes = {}
        return notes

    def read(self, region: str, kind: str, now: datetime) -> Signal | None:
        path = self._path(region, kind)
        entry = None
        if path is not None:
            entry = self._entry(path, now)
        if entry is None:
            return None
        if entry.state == "damaged":
            note = f"the cached file {path} is damaged ({entry.problem}) and is not used"
            self._notes[note] = None
        return entry.signal

    def write(self, signal: Signal, fetched_at: datetime) -> bool:
        path = self._path(signal.region, signal.kind)
        if path is None:
            self._cannot_write("there is no home folder to keep it in")
            return False
        try:
            assert self.folder is not None
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            # Only the user may read the cache; the folders above it get the usual permissions.
            for folder in (self.folder, path.parent.parent, path.parent):
                folder.mkdir(mode=0o700, exist_ok=True)
            write_bytes(path, encode(signal, fetched_at))
            path.chmod(0o600)
        except (OSError, DataError) as error:
            self._cannot_write(str(error).partition("; it is as it was")[0])
            return False
        return True

    def entries(self, now: datetime) -> tuple[Entry, ...]:
        if self.folder is None:
            return ()
        files = [*self.folder.glob("*/*.json")]
        files += self.folder.glob(f"*/account-{self.account}/*.json")
        entries = [self._entry(f, now) for f in files if not f.stem.startswith(FAILURES)]
        return tuple(sorted(filter(None, entries), key=lambda e: (e.region, e.kind)))

    def _entry(self, path: Path, now: datetime) -> Entry | None:
        assert self.folder is not None
        name = next((k for k in KINDS if f"{path.stem}-".startswith(f"{k}-")), None)
        if name is None:
            return None
        kind = name + path.stem.removeprefix(name).replace("-", ":", 1)  # as _path() writes it
        entry = Entry(path.relative_to(self.folder).parts[0], kind, path)
        try:
            signal = _load(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            return replace(entry, problem=str(error) or type(error).__name__)
        if signal is None:
            return replace(
                entry, state="other version", problem="another version of deepvm wrote it"
            )
        assert signal.fetched_at is not None
        seconds = ttl_s(signal.kind)
        if self.ttl_s is not None and base(signal.kind) != FAILURES:
            seconds = self.ttl_s
        state: State = "expired"
        if -CLOCK_SKEW <= now - signal.fetched_at < timedelta(seconds=seconds):
            state = "fresh"
        signal = replace(signal, origin="cache" if state == "fresh" else state)
        return replace(entry, kind=signal.kind, state=state, signal=signal)

    def _path(self, region: str, kind: str) -> Path | None:
        if not _REGION.fullmatch(region):
            raise RequestError("region", region, "the name of a region, such as us-east-1")
        if self.folder is None:
            return None
        folder = self.folder / region
        if KINDS[base(kind)].of_account:
            folder /= f"account-{self.account}"
        return folder / f"{kind.replace(':', '-')}.json"

    def _cannot_write(self, reason: str) -> None:
        note = f"the cache is not written ({reason}); DEEPVM_CACHE_DIR names another folder"
        if not self._write_failed:
            self._notes[note] = None
        self._write_failed = True


def encode(signal: Signal, fetched_at: datetime) -> bytes:
    """The bytes of a signal's file."""
    body = {**vars(signal), "fetched_at": fetched_at}
    del body["origin"]
    for name in ("fetched_at", "observed_at"):
        body[name] = body[name].astimezone(timezone.utc).isoformat()
    sealed = json.dumps(body, allow_nan=False, separators=(",", ":"))[1:] + "\n"
    digest = hashlib.sha256(sealed.encode()).hexdigest()
    return f'{{"schema_version":"{SCHEMA_VERSION}","sha256":"{digest}",\n{sealed}'.encode()


def _load(path: Path) -> Signal | None:
    """The signal in a file; None if another version of deepvm wrote it."""
    first, _, sealed = path.read_text(encoding="utf-8").partition(",\n")
    head = json.loads(f"{first}}}")
    if head["schema_version"] != SCHEMA_VERSION:
        return None
    # The digest covers the times, too: a flipped digit in fetched_at would make an old price new.
    if head["sha256"] != hashlib.sha256(sealed.encode()).hexdigest():
        raise ValueError("its bytes do not match its sha256")
    body = json.loads(f"{{{sealed}")
    for name in ("fetched_at", "observed_at"):
        body[name] = datetime.fromisoformat(body[name])
    return Signal(**body)
