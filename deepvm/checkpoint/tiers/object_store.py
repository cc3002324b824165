"""What a store of objects offers, and the ledger: a small object that says which entries count.

It changes by compare-and-swap alone; docs/internals/explain/guarantees.md, Generations, says why.
"""

import contextlib
import json
import random
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from deepvm.checkpoint.format.layout import CHUNK_BYTES
from deepvm.checkpoint.tiers.base import fulfil
from deepvm.errors import CheckpointError
from deepvm.records import dataclass, field, replace

_T = TypeVar("_T")
Read = Callable[[int, int], bytes]  # Returns a range, from start to end


class ObjectStore(ABC):
    """The objects whose names start with ``prefix``; :meth:`errors` maps what requests raise."""

    prefix = ""

    def __init__(self, url: str, threads: int) -> None:
        self.url = url
        self.threads = threads
        self._readers = 0
        self._counting = threading.Lock()

    @abstractmethod
    def errors(self, action: str) -> AbstractContextManager[None]:
        """Turn the store's errors into ``CheckpointError``: cannot ``action``."""

    @abstractmethod
    def prove(self) -> None:
        """Make sure that objects can be written. Raises CheckpointError."""

    @abstractmethod
    def sizes(self, prefix: str) -> dict[str, int]:
        """Bytes of each object whose name starts so."""

    @abstractmethod
    def content(self, key: str) -> bytes | None:
        """A small object; None if there is none."""

    @abstractmethod
    def write(self, key: str, data: bytes) -> None:
        """Make or replace a small object."""

    @abstractmethod
    def upload(self, key: str, size: int, read: Read, final: Iterable[int]) -> None:
        """Create an object atomically; ``read`` returns a range once ``final`` has passed it."""

    @abstractmethod
    def reader(self, key: str, size: int) -> Read:
        """What returns a range of an object of this size."""

    @abstractmethod
    def remove(self, *keys: str) -> None:
        """Remove objects in order; missing ones are ignored."""

    @abstractmethod
    def rename(self, key: str, new: str) -> None:
        """Give an object of any size another name: it is copied, then removed."""

    @abstractmethod
    def get(self, key: str) -> tuple[bytes, str] | None:
        """A ledger and the tag of its state, None if there is none. Raises CheckpointError."""

    @abstractmethod
    def put_if(self, key: str, data: bytes, etag: str | None) -> bool:
        """Replace a ledger of this tag, or (None) make one. CheckpointError: it may be done."""

    def abort_unfinished(  # noqa: B027  not every store lists what was never completed
        self, prefix: str, wanted: Callable[[str], bool]
    ) -> None:
        """Abort uploads whose names start so and are wanted. Raises CheckpointError."""

    def pieces(self, key: str, size: int) -> Iterator[bytes]:
        """The bytes of an object, in order; concurrent readers share the threads."""
        read = self.reader(key, size)
        ahead = deque[Future[bytes]]()
        with ThreadPoolExecutor(self.threads, thread_name_prefix="deepvm-read") as pool:
            with self._counting:
                self._readers += 1
            try:
                for start in range(0, size, CHUNK_BYTES):
                    ahead.append(submit(pool, read, start, min(start + CHUNK_BYTES, size)))
                    while len(ahead) > max(self.threads // self._readers, 1):
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            finally:
                with self._counting:
                    self._readers -= 1
                pool.shutdown(cancel_futures=True)


def submit(pool: ThreadPoolExecutor, work: Callable[..., _T], *arguments: Any) -> Future[_T]:
    """Submit work to a pool, or do it here if the pool takes no more."""
    try:
        return pool.submit(work, *arguments)
    except RuntimeError:  # no threads at the interpreter's end: a last save must work even there
        done: Future[_T] = Future()
        fulfil(done, work, *arguments)
        return done


_SCHEMA = "deepvm.ledger/1"
_TRIES = 20
_PAUSE_S = 0.02
_NO_ETAG = f'"{"0" * 32}"'


@dataclass(frozen=True)
class Ledger:
    """A state."""

    epoch: int = 0
    entries: Mapping[str, str] = field(default_factory=dict)  # name -> label of what it stands for
    number: int = 0  # of changes before it
    writer: str = ""  # random: no state ever comes back

    def to_json(self) -> bytes:
        facts = {"schema_version": _SCHEMA, "epoch": self.epoch, "number": self.number}
        facts |= {"writer": self.writer, "entries": dict(self.entries)}
        return json.dumps(facts).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> "Ledger":
        """Read a state. Raises TypeError or ValueError: it is none."""
        facts = json.loads(data)
        if not isinstance(facts, dict) or facts.pop("schema_version", None) != _SCHEMA:
            raise ValueError(f"no ledger of {_SCHEMA}")
        return cls(**facts)


class StaleError(CheckpointError):
    """A newer generation has started."""


@dataclass(eq=False)
class LedgerFile:
    """The ledger of one job in a bucket; any thread may use it."""

    bucket: ObjectStore
    key: str
    adopted: Callable[[], Mapping[str, str]] = dict  # the entries of a new one, if it was lost

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def read(self) -> Ledger | None:
        found = self._load()
        return found and found[0]

    def begin(self, epoch: int) -> None:
        """Refuse older generations from now on. Raises StaleError."""
        with self._lock:
            self._change(
                epoch, lambda old: replace(old, epoch=epoch), lambda found: found.epoch == epoch
            )

    def ensure(self) -> None:
        """Have a ledger before the first object is sent: without one, all objects count."""
        with self._lock:
            if self._load() is None:
                self._change(None, lambda old: old, lambda found: True)

    def check(self, epoch: int) -> None:
        """Raise StaleError if a newer generation has started."""
        self._refuse(self.read() or Ledger(), epoch)

    def add(self, name: str, label: str, epoch: int | None) -> Ledger:
        """Make an entry count, instead of an earlier one of the name; returns a state before.

        ``label``: of this call alone. ``epoch``: None without a number. Raises StaleError: it will
        never count; CheckpointError: it may.
        """

        def edit(old: Ledger) -> Ledger:
            generation = old.epoch if epoch is None else epoch
            return replace(old, epoch=generation, entries={**old.entries, name: label})

        with self._lock:
            return self._change(epoch, edit, lambda found: found.entries.get(name) == label)

    def drop(self, names: Collection[str], epoch: int | None) -> None:
        """Have entries count no more. Raises StaleError. ``epoch``: None for a user."""

        def edit(old: Ledger) -> Ledger:
            return replace(old, entries={k: v for k, v in old.entries.items() if k not in names})

        with self._lock:
            if epoch is None and self._load() is None:
                return  # a user's removal starts no generation
            found = self._change(epoch, edit, lambda found: not found.entries.keys() & set(names))
            self._refuse(found, epoch)

    def _load(self) -> tuple[Ledger, str] | None:
        found = self.bucket.get(self.key)
        if found is None:
            return None
        try:
            return Ledger.from_json(found[0]), found[1]
        except (TypeError, ValueError) as error:
            where = f"{self.bucket.url}: {self.key}"
            raise CheckpointError(
                f"{where} is damaged: {error}; without it, all checkpoints there count"
            ) from None

    def _change(
        self, epoch: int | None, edit: Callable[[Ledger], Ledger], held: Callable[[Ledger], bool]
    ) -> Ledger:
        """Returns a state before the change. ``held``: whether it is done already."""
        for _ in range(_TRIES):
            found = self._load()
            if found is None:
                self._prove()
            old, etag = found or (Ledger(entries=self.adopted()), None)
            if found is not None and held(old):
                return old
            self._refuse(old, epoch)
            new = replace(edit(old), number=old.number + 1, writer=secrets.token_hex(8))
            try:
                if self.bucket.put_if(self.key, new.to_json(), etag):
                    return old
            except CheckpointError:  # its reply may have been lost
                with contextlib.suppress(CheckpointError):
                    found = self._load()
                    if found is not None and held(found[0]):
                        return old
                raise
            time.sleep(random.uniform(0, _PAUSE_S))  # noqa: S311  others may try as well
        raise CheckpointError(
            f"{self.bucket.url}: {self.key} was changed by others {_TRIES} times in a row"
        )

    def _refuse(self, ledger: Ledger, epoch: int | None) -> None:
        if epoch is not None and epoch < ledger.epoch:
            raise StaleError(
                f"{self.bucket.url}: generation {epoch} is over: {ledger.epoch} has started"
            )

    def _prove(self) -> None:
        """Raise CheckpointError if the store ignores conditions: fencing depends on them."""
        if self.bucket.put_if(f"{self.key}.proof", b"no such state\n", _NO_ETAG):
            raise CheckpointError(
                f"{self.bucket.url}: this store ignores If-Match, so a machine that was thought"
                " lost could overwrite newer checkpoints; take a store with conditional"
                " writes, such"
                " as AWS S3, or a memory node or folder"
            )
