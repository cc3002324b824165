"""The ledger: a small object with the newest generation of a bucket and the valid entries.

A request may arrive long after its sender was given up, so a look before it proves nothing. What a
generation writes therefore has a name that is never written again, and counts when the ledger
lists it; and the ledger changes by compare-and-swap alone: a write names the state that it was made
from (``If-Match`` with its ETag, ``If-None-Match: *`` for the first), and the store refuses it if
the ledger is in another. Each state has a number and a random text, so none ever comes back.
Generation e lists something only in a step from a state whose epoch is not above e: once a newer
one has started, in a step of the same chain, there is no such state any more, whenever the request
of the older one arrives.
"""

from __future__ import annotations

import json
import random
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from deepvm.checkpoint.tiers.object_store import ObjectStore
from deepvm.errors import CheckpointError

_SCHEMA = "deepvm.ledger/1"
_TRIES = 20
_PAUSE_S = 0.02
_NO_ETAG = f'"{"0" * 32}"'


@dataclass(frozen=True)
class Ledger:
    """A state: the newest generation, and for each entry the label under which it is kept.

    ``number``: changes before it. ``writer``: random for each change, by which a writer knows its
    own.
    """

    epoch: int = 0
    entries: Mapping[str, str] = field(default_factory=dict)
    number: int = 0
    writer: str = ""

    def to_json(self) -> bytes:
        facts = {
            "epoch": self.epoch,
            "number": self.number,
            "writer": self.writer,
            "entries": dict(self.entries),
        }
        return json.dumps({"schema_version": _SCHEMA, **facts}).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> Ledger:
        """Read a state. Raises TypeError or ValueError: it is none."""
        facts = json.loads(data)
        if not isinstance(facts, dict) or facts.pop("schema_version", None) != _SCHEMA:
            raise ValueError(f"no ledger of {_SCHEMA}")
        return cls(**facts)


class StaleError(CheckpointError):
    """A newer generation has started."""


class LedgerFile:
    """The ledger of one job in a bucket; any thread may use it."""

    def __init__(
        self, bucket: ObjectStore, key: str, adopted: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        """Send nothing yet. ``adopted``: the entries of a new ledger, where one was lost."""
        self._bucket = bucket
        self._key = key
        self._adopted = adopted
        self._lock = threading.Lock()

    def read(self) -> Ledger | None:
        """The state now; None if no generation has ever started. Raises CheckpointError."""
        found = self._load()
        if found is None:
            return None
        return found[0]

    def begin(self, epoch: int) -> None:
        """Refuse older generations from now on. Raises StaleError (newer), CheckpointError."""
        with self._lock:
            self._change(
                epoch, lambda old: replace(old, epoch=epoch), lambda found: found.epoch == epoch
            )

    def ensure(self) -> None:
        """Have a ledger before the first object is sent: without one, all objects count.

        Raises CheckpointError.
        """
        with self._lock:
            if self._load() is None:
                self._change(None, lambda old: old, lambda found: True)

    def check(self, epoch: int) -> None:
        """Raise StaleError if a newer generation has started; CheckpointError."""
        self._refuse(self.read() or Ledger(), epoch)

    def add(self, name: str, label: str, epoch: int | None) -> Ledger:
        """Make an entry count, instead of an earlier one of the name; returns a state before.

        When it returns the entry counts, and this generation was the newest when it began to.
        ``label``: of this call alone. ``epoch``: None for a run without a number, which no
        generation shuts out. Raises StaleError: it never will; CheckpointError: it may.
        """

        def edit(old: Ledger) -> Ledger:
            begun = old.epoch if epoch is None else epoch
            return replace(old, epoch=begun, entries={**old.entries, name: label})

        with self._lock:
            return self._change(epoch, edit, lambda found: found.entries.get(name) == label)

    def drop(self, names: Collection[str], epoch: int | None) -> Ledger:
        """Have entries count no more; returns a state before. ``epoch``: of whom, None for a user.

        Raises StaleError: a newer generation decides that now; CheckpointError.
        """

        def edit(old: Ledger) -> Ledger:
            return replace(old, entries={k: v for k, v in old.entries.items() if k not in names})

        with self._lock:
            if epoch is None and self._load() is None:
                return Ledger()  # a user's removal begins no generation
            found = self._change(epoch, edit, lambda found: not found.entries.keys() & set(names))
            self._refuse(found, epoch)
            return found

    def _load(self) -> tuple[Ledger, str] | None:
        found = self._bucket.get(self._key)
        if found is None:
            return None
        try:
            return Ledger.from_json(found[0]), found[1]
        except (TypeError, ValueError) as error:
            where = f"{self._bucket.url}: {self._key}"
            raise CheckpointError(
                f"{where} is damaged: {error}; without it, all versions there count"
            ) from None

    def _change(
        self, epoch: int | None, edit: Callable[[Ledger], Ledger], held: Callable[[Ledger], bool]
    ) -> Ledger:
        """Bring the ledger from one state to the next; ``held``: whether that is done already."""
        for _ in range(_TRIES):
            found = self._load()
            if found is None:
                self._prove()
            old, etag = found or (Ledger(entries=self._adopted()), None)
            if held(old) and found is not None:
                return old  # before, or the reply was lost
            self._refuse(old, epoch)
            new = replace(edit(old), number=old.number + 1, writer=secrets.token_hex(8))
            try:
                if self._bucket.put_if(self._key, new.to_json(), etag):
                    return old
            except CheckpointError:
                if not self._holds(held):
                    raise
                return old
            time.sleep(random.uniform(0, _PAUSE_S))  # noqa: S311  others may try as well
        raise CheckpointError(
            f"{self._bucket.url}: {self._key} was changed by others {_TRIES} times in a row"
        )

    def _holds(self, held: Callable[[Ledger], bool]) -> bool:
        try:
            found = self._load()
        except CheckpointError:
            return False
        return found is not None and held(found[0])

    def _refuse(self, ledger: Ledger, epoch: int | None) -> None:
        if epoch is not None and epoch < ledger.epoch:
            raise StaleError(
                f"{self._bucket.url}: generation {epoch} is over: {ledger.epoch} has started"
            )

    def _prove(self) -> None:
        """Raise CheckpointError if the store ignores conditions: fencing depends on them."""
        if self._bucket.put_if(f"{self._key}.proof", b"no such state\n", _NO_ETAG):
            raise CheckpointError(
                f"{self._bucket.url}: this store ignores If-Match, so a machine that was thought"
                " lost could overwrite newer versions; take a store with conditional writes, such"
                " as AWS S3, or a memory node or folder"
            )
