"""``gs://bucket/prefix``, ``az://container/prefix``: Google or Azure storage, by fsspec.

One writer at a time is assumed for a job; generations of ``deepvm run`` shut each other out. fsspec
has no conditional replacement, but creation where nothing is (``mode="create"``). So a ledger is a
row of objects, ``.JOB.ledger.NUMBER``; the highest counts, and is never removed.
"""

import contextlib
import importlib.util
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from typing import Any

from deepvm.checkpoint.format.layout import CHUNK_BYTES, cut
from deepvm.checkpoint.tiers.base import Tier
from deepvm.checkpoint.tiers.checkpoint_store import CheckpointStore
from deepvm.checkpoint.tiers.object_store import ObjectStore, Read
from deepvm.core.json_types import JsonObject
from deepvm.errors import (
    CheckpointError,
    DamagedError,
    DeepVMError,
    MissingExtraError,
    RequestError,
)

_STATE = re.compile(r"[0-9]{12}")
_KEPT_STATES = 2  # the one before the newest too: anyone who has listed it may still read it
_READS = 3
_URL = re.compile(
    r"(?P<scheme>gs|az)://(?P<bucket>[^/\0?#@]+)(?P<prefix>/[^\0?#]*)?", re.IGNORECASE
)
_LIBRARIES = {"gs": "gcsfs", "az": "adlfs"}


class CloudObjects(ObjectStore):
    """The objects below a prefix."""

    def __init__(self, make: Callable[[], Any], root: str, url: str, *, threads: int = 8) -> None:
        self._make = make
        self._root = root.rstrip("/")
        super().__init__(url, threads)

    @cached_property
    def fs(self) -> Any:
        return self._make()

    @contextlib.contextmanager
    def errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except DeepVMError:
            raise
        except Exception as error:  # each of fsspec's file systems has its own
            text = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise CheckpointError(f"{self.url}: cannot {action}: {text}") from error

    def path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def sizes(self, prefix: str) -> dict[str, int]:
        """Not those of folders below."""
        folder = prefix[: prefix.rfind("/") + 1]
        found = {
            folder + row["name"].rstrip("/").rpartition("/")[2]: row
            for row in self._rows(self.path(folder).rstrip("/"))
            if row["type"] == "file"
        }
        # Only of those: objects of others may have no size
        return {key: int(row["size"]) for key, row in found.items() if key.startswith(prefix)}

    def _rows(self, place: str) -> list[JsonObject]:
        fs = self.fs
        for left in reversed(range(_READS)):
            fs.invalidate_cache()
            try:
                return list(fs.ls(place, detail=True))
            except FileNotFoundError:
                if not fs.exists(place):
                    return []
                if not left:  # on a disk, what is removed meanwhile is missed too
                    raise
        raise AssertionError

    def prove(self) -> None:
        with self.errors("write there"):
            if self.creates_twice(f".deepvm-proof-{secrets.token_hex(4)}"):
                raise CheckpointError(
                    f"{self.url}: this store, or this release of its library, replaces an object"
                    " where it had to create one, so nothing would keep an older generation"
                    " out; update gcsfs or adlfs"
                )

    def content(self, key: str) -> bytes | None:
        try:
            return bytes(self.fs.cat_file(self.path(key)))
        except FileNotFoundError:
            return None

    def reader(self, key: str, size: int) -> Read:
        return partial(self._range, key)

    def _range(self, key: str, start: int, end: int) -> bytes:
        for left in reversed(range(_READS)):
            try:
                data = bytes(self.fs.cat_file(self.path(key), start=start, end=end))
                break
            except FileNotFoundError:
                raise
            except Exception:
                if not left:
                    raise
        if len(data) != end - start:
            raise DamagedError(f"{self.url}: {key} is shorter than its manifest says")
        return data

    def write(self, key: str, data: bytes) -> None:
        self.fs.pipe_file(self.path(key), data)

    def upload(self, key: str, size: int, read: Read, final: Iterable[int]) -> None:
        """``key`` is new, and what a failure leaves there is removed."""
        file = self.fs.open(self.path(key), "wb", block_size=CHUNK_BYTES)
        try:
            for start, end in cut(final, size, CHUNK_BYTES):
                file.write(read(start, end))
            file.close()
        except BaseException:
            with contextlib.suppress(Exception):
                file.discard()
            with contextlib.suppress(Exception):
                file.closed = True  # fsspec's own files would be completed when they are collected
            with contextlib.suppress(Exception):
                self.remove(key)
            raise
        there = self.sizes(key).get(key)
        if there != size:  # no part has a checksum of ours on its way
            self.remove(key)
            raise CheckpointError(f"{self.url}: {key} has {there} bytes of {size}")

    def remove(self, *keys: str) -> None:
        for key in keys:
            with contextlib.suppress(FileNotFoundError):
                self.fs.rm_file(self.path(key))

    def rename(self, key: str, new: str) -> None:
        self.fs.mv(self.path(key), self.path(new))

    def get(self, key: str) -> tuple[bytes, str] | None:
        """The newest state of a ledger, and its number."""
        with self.errors(f"read {key}"):
            for _ in range(_READS):
                number = max(self._states(key), default=0)
                if not number:
                    return None
                data = self.content(f"{key}.{number:012d}")
                if data is not None:
                    return data, str(number)
        # Newer ones came each time, and it went
        raise CheckpointError(f"{self.url}: {key} changes too often to be read")

    def put_if(self, key: str, data: bytes, etag: str | None) -> bool:
        """Create the state after the one numbered ``etag``."""
        if etag is not None and not etag.isdigit():
            with self.errors(f"write {key}"):
                # Ranks that start together ask at once: each needs an object of its own.
                return self.creates_twice(f"{key}-{secrets.token_hex(4)}")
        own = int(etag or 0) + 1
        with self.errors(f"write {key}"):
            try:
                self.fs.pipe_file(self.path(f"{key}.{own:012d}"), data, mode="create")
            except FileExistsError:
                return False
            states = self._states(key)
            if max(states, default=0) != own:  # it stands where a lower state was removed
                return False
        with contextlib.suppress(CheckpointError), self.errors("remove old states"):
            self.remove(*(f"{key}.{n:012d}" for n in states if n <= own - _KEPT_STATES))
        return True

    def _states(self, key: str) -> list[int]:
        names = [name.removeprefix(f"{key}.") for name in self.sizes(f"{key}.")]
        return [int(name) for name in names if _STATE.fullmatch(name)]

    def creates_twice(self, key: str) -> bool:
        found = True
        for _ in range(2):
            try:
                self.fs.pipe_file(
                    self.path(key), b"written to see whether that works\n", mode="create"
                )
            except FileExistsError:
                found = False
        self.remove(key)
        return found


class CloudTier(CheckpointStore):
    """A bucket or container, or a prefix of one."""

    form = "gs://bucket/prefix, az://container/prefix"

    @classmethod
    def open(cls, url: str, session: str, keep: int, every: int, option: str) -> Tier:
        found = _URL.fullmatch(url)
        if found is None:
            raise RequestError(option, url, f"{cls.form}, without ? and #")
        scheme = found["scheme"].lower()
        place = found["bucket"] + (found["prefix"] or "").rstrip("/")
        library = _LIBRARIES[scheme]
        if importlib.util.find_spec(library) is None:
            raise MissingExtraError(f"{option} with {scheme}://", library, scheme)
        import fsspec

        make = partial(
            fsspec.filesystem, scheme, skip_instance_cache=True, use_listings_cache=False
        )
        objects = CloudObjects(make, place, f"{scheme}://{place}")
        return cls(objects, keep=keep, every=every, session=session)
