"""A prefix of Google or Azure storage, by fsspec: single requests, a ledger without ETags.

fsspec knows no conditional replacement, but it does know creation where nothing is yet
(``mode="create"``: a precondition at Google and Azure). So a ledger is a row of objects here,
``.JOB.ledger.NUMBER``, each state the next number; only the highest counts. A state that was made
from number n is created as n + 1, which fails if another one was faster. The highest is never
removed: what creates a lower one late, where it was removed, changes nothing, and sees so.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

from deepvm.checkpoint.format.layout import CHUNK_BYTES
from deepvm.checkpoint.tiers.object_store import ObjectStore
from deepvm.errors import CheckpointError, DamagedError, DeepVMError

_STATE = re.compile(r"[0-9]{12}")
_KEPT_STATES = 2  # the one before the newest too: whoever has listed it may still read it
_READS = 3


class CloudObjects(ObjectStore):
    """The objects below a prefix. Requests raise fsspec's errors; :meth:`errors` maps them."""

    def __init__(self, make: Callable[[], Any], root: str, url: str, *, threads: int = 8) -> None:
        """``make``: creates the file system; ``root``: the prefix for fsspec; ``url``: ours."""
        self._make = make
        self._root = root.rstrip("/")
        super().__init__(url, threads)

    @cached_property
    def fs(self) -> Any:
        """The file system, made when it is first used."""
        return self._make()

    @contextlib.contextmanager
    def errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except DeepVMError:
            raise
        except Exception as error:  # each of fsspec's file systems has its own
            if str(error):
                text = f"{type(error).__name__}: {error}"
            else:
                text = type(error).__name__
            raise CheckpointError(f"{self.url}: cannot {action}: {text}") from error

    def path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def sizes(self, prefix: str) -> dict[str, int]:
        """See :class:`ObjectStore`; not those of folders below."""
        folder = prefix[: prefix.rfind("/") + 1]
        rows = self._rows(self.path(folder).rstrip("/"))
        named = {
            folder + row["name"].rstrip("/").rpartition("/")[2]: row
            for row in rows
            if row["type"] == "file"
        }
        return {key: int(row["size"]) for key, row in named.items() if key.startswith(prefix)}

    def _rows(self, place: str) -> list[Mapping[str, Any]]:
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
        """See :class:`ObjectStore`: makes an object, tries to make it again, and removes it."""
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

    def reader(self, key: str, size: int) -> Callable[[int, int], bytes]:
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
            raise DamagedError(f"{self.url}: {key} is shorter than its commit record says")
        return data

    def write(self, key: str, data: bytes) -> None:
        self.fs.pipe_file(self.path(key), data)

    def upload(
        self, key: str, size: int, read: Callable[[int, int], bytes], final: Iterable[int]
    ) -> None:
        """See :class:`ObjectStore`; ``key`` is new, and what a failure leaves there is removed."""
        file = self.fs.open(self.path(key), "wb", block_size=CHUNK_BYTES)
        try:
            done = 0
            for end in final:
                if end - done >= CHUNK_BYTES or end == size:
                    file.write(read(done, end))
                    done = end
            file.close()
        except BaseException:
            self._give_up(file, key)
            raise
        there = self.sizes(key).get(key)
        if there != size:  # no part has a checksum of ours on its way
            self.remove(key)
            raise CheckpointError(f"{self.url}: {key} has {there} bytes of {size}")

    def _give_up(self, file: Any, key: str) -> None:
        with contextlib.suppress(Exception):
            file.discard()
        with contextlib.suppress(Exception):
            file.closed = True  # fsspec's own files would be completed when they are collected
        with contextlib.suppress(Exception):
            self.remove(key)

    def remove(self, *keys: str) -> None:
        for key in keys:
            with contextlib.suppress(FileNotFoundError):
                self.fs.rm_file(self.path(key))

    def rename(self, key: str, new: str) -> None:
        self.fs.mv(self.path(key), self.path(new))

    def get(self, key: str) -> tuple[bytes, str] | None:
        """See :class:`ObjectStore`: the newest state of a ledger, and its number."""
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
        """See :class:`ObjectStore`: create the state after the one numbered ``etag``."""
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
        """Whether the store creates an object that is there already; leaves none."""
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
