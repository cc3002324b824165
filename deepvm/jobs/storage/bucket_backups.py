"""Backups in a bucket, below ``JOB/backups/``.

Every upload has a name of its own, and counts once the job's ledger of backups lists it: see
:mod:`deepvm.checkpoint.tiers.ledger`, which keeps older generations out. What uploads leave that
were cut off, the next generation removes, if it may list them; a lifecycle rule of the bucket
should abort them after a day.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from deepvm.checkpoint.files.file_names import epoch_of, new_label
from deepvm.checkpoint.tiers.bucket import Bucket
from deepvm.checkpoint.tiers.ledger import LedgerFile, StaleError
from deepvm.errors import CheckpointError, DamagedError
from deepvm.jobs.storage.backup_store import (
    RECORD,
    Part,
    PartStatus,
    Record,
    StoredBackup,
    fetch_part,
    files_of,
    name_of,
    no_part,
    place_of,
)

_THREADS = 4
_ATTEMPTS = 5
_PLACE = re.compile(
    r"(?P<name>\d{12}-\d{9,}/(?:rank|whole)-\d+)\.(?P<label>g\d{9,19}-[0-9a-f]{8})/(?P<file>.+)",
    re.DOTALL,
)
_WORD = re.compile(r"rank-(\d+)\.(begun|nothing|failed)")

log = logging.getLogger("deepvm.agent")


class BucketBackups:
    """Objects ``STEP-EPOCH/rank-N.LABEL/FILE``.

    Entries ``STEP-EPOCH/rank-N`` of the ledger: the label.

    The seal is an object ``STEP-EPOCH/whole-RANKS.LABEL/record.json`` and its entry, with ``+``
    behind the label of an automatic one; what ranks say are empty objects, such as
    ``STEP-EPOCH/rank-3.begun``.
    """

    def __init__(
        self, bucket: str, prefix: str, job: str, *, endpoint: str = "", attempts: int = _ATTEMPTS
    ) -> None:
        """``endpoint``: empty for the environment's or AWS's; ``attempts``: per request."""
        self._bucket = Bucket(
            bucket,
            f"{prefix.strip('/')}/{job}/backups",
            threads=_THREADS,
            attempts=attempts,
            endpoint=endpoint,
        )
        self.url = self._bucket.url
        self._ledger = LedgerFile(self._bucket, f"{self._bucket.prefix}.ledger", self._all_there)
        self._lock = threading.Lock()
        self._generation: int | None = None
        self._cleared = False

    def begin(self, epoch: int) -> None:
        with self._lock:
            if epoch != self._generation:
                self._ledger.begin(epoch)
                self._generation = epoch

    def set_status(self, part: Part, status: PartStatus) -> bool:
        """See :class:`FolderBackups`; the status first: who seals looks for it afterwards."""
        self.begin(part.epoch)
        key = f"{self._bucket.prefix}{name_of(part)}/rank-{part.rank}.{status.value}"
        self._put(key, b"")
        return status is PartStatus.BEGUN and self._unseal(name_of(part), part.epoch)

    def _put(self, key: str, data: bytes) -> None:
        with self._bucket.errors(f"write {key}"):
            self._bucket.s3.put_object(Bucket=self._bucket.name, Key=key, Body=data)

    def _unseal(self, name: str, epoch: int) -> bool:
        seals = {entry for entry in self._entries() if entry.startswith(f"{name}/whole-")}
        if seals:
            self._ledger.drop(seals, epoch)
        return bool(seals)

    def statuses(self, part: Part) -> Mapping[int, PartStatus]:
        place = f"{self._bucket.prefix}{name_of(part)}/"
        found = dict[int, PartStatus]()
        with self._bucket.errors(f"list {place}"):
            keys = sorted(self._bucket.sizes(place))
        for match in (_WORD.fullmatch(key[len(place) :]) for key in keys):
            if match is not None:
                found[int(match[1])] = PartStatus(match[2])
        return {**found, **dict.fromkeys(_parts(self._entries(), name_of(part)), PartStatus.WHOLE)}

    def save(self, path: Path, part: Part) -> None:
        """See :class:`FolderBackups`. S3 checks each piece's checksum; readers check the whole."""
        self.begin(part.epoch)
        # Before all of it is uploaded in vain; the ledger checks again when the part is added.
        self._ledger.check(part.epoch)
        self._clear(part.epoch)
        label = new_label(part.epoch)
        name = f"{name_of(part)}/rank-{part.rank}"
        place = self._place(name, label)
        try:
            with self._bucket.errors(f"write {place}"):
                sums = {}
                for source, below in files_of(path):
                    with source.open("rb") as stream:
                        reader = _Summed(stream)
                        self._bucket.s3.upload_fileobj(
                            cast(IO[Any], reader),
                            self._bucket.name,
                            f"{place}{below}",
                            ExtraArgs={"ChecksumAlgorithm": "CRC32"},
                        )
                        sums[below] = reader.digest.hexdigest()
                self._put(place + RECORD, Record(path.name, sums, part.automatic).to_json())
            before = self._ledger.add(name, label, part.epoch)
        except (StaleError, OSError):
            self._discard(place)
            raise
        # Readers follow the ledger, which lists the new label by now: the older object is garbage.
        earlier = before.entries.get(name, "")
        if earlier not in ("", label):
            self._discard(self._place(name, earlier))

    def seal(self, part: Part, ranks: int) -> None:
        label = new_label(part.epoch)
        name = f"{name_of(part)}/whole-{ranks}"
        record = Record("whole", {}, part.automatic).to_json()
        self._put(self._place(name, label) + RECORD, record)
        self._ledger.add(name, f"{label}{'+' if part.automatic else ''}", part.epoch)

    def _place(self, name: str, label: str) -> str:
        return f"{self._bucket.prefix}{name}.{label.rstrip('+')}/"

    def _placed(self, key: str) -> re.Match[str] | None:
        """Name, label and file of an object of a backup."""
        return _PLACE.fullmatch(key[len(self._bucket.prefix) :])

    def _sent(self) -> list[re.Match[str]]:
        """All objects of backups, whether or not they count."""
        with self._bucket.errors("list its objects"):
            keys = list(self._bucket.sizes(self._bucket.prefix))
        return [match for match in map(self._placed, keys) if match is not None]

    def _all_there(self) -> dict[str, str]:
        """The entries of a ledger that was lost: the newest of each name."""
        found: dict[str, str] = {}
        for match in self._sent():
            if match["file"] == RECORD:
                # Of several uploads of one name the newest generation's has counted
                found[match["name"]] = max(
                    found.get(match["name"], ""), match["label"], key=epoch_of
                )
        return found

    def _entries(self) -> Mapping[str, str]:
        found = self._ledger.read()
        if found is None:
            return self._all_there()
        return found.entries

    def _clear(self, epoch: int) -> None:
        """Once: remove what older generations have sent and that never counted."""
        with self._lock:
            if self._cleared:
                return
            self._cleared = True
        try:
            # In this order: what is listed later was not sent before
            sent = self._sent()
            listed = self._entries()
            for name, label in {(match["name"], match["label"]) for match in sent}:
                if epoch_of(label) < epoch and listed.get(name, "").rstrip("+") != label:
                    self._discard(self._place(name, label))
            self._bucket.abort_unfinished(
                self._bucket.prefix, lambda key: self._is_older(key, epoch)
            )
        except CheckpointError as error:  # what stays costs a little
            log.debug("%s", error)

    def _is_older(self, key: str, epoch: int) -> bool:
        match = self._placed(key)
        return match is not None and epoch_of(match["label"]) < epoch

    def whole(self) -> list[StoredBackup]:
        entries = self._entries()
        found = list[StoredBackup]()
        for entry, label in entries.items():
            name, _, ranks = entry.partition("/whole-")
            if ranks and len(_parts(entries, name)) >= int(ranks):
                found.append(StoredBackup(place_of(name)[0], name, label.endswith("+"), int(ranks)))
        return sorted(found, key=lambda kept: place_of(kept.name), reverse=True)

    def set_aside(self, kept: StoredBackup, epoch: int) -> None:
        self._unseal(kept.name, epoch)

    def remove(self, kept: StoredBackup, epoch: int) -> None:
        """See :class:`FolderBackups`; it is not listed any more before an object goes."""
        self._remove(kept.name, epoch)

    def _remove(self, name: str, epoch: int) -> None:
        self._ledger.drop(
            {entry for entry in self._entries() if entry.startswith(f"{name}/")}, epoch
        )
        # Only now: readers must not find an entry whose objects are partly gone.
        self._discard(f"{self._bucket.prefix}{name}/")

    def sweep(self, step: int, epoch: int) -> None:
        entries = self._entries()
        sealed = {entry.partition("/")[0] for entry in entries if "/whole-" in entry}
        for name in {entry.partition("/")[0] for entry in entries} - sealed:
            before, by = place_of(name)
            if before < step and by <= epoch:
                self._remove(name, epoch)

    def fetch(self, kept: StoredBackup, rank: int, folder: Path) -> Path:
        entries = self._entries()
        name = f"{kept.name}/rank-{rank if kept.ranks > 1 else 0}"
        if name not in entries:
            raise no_part(kept, rank)
        place = self._place(name, entries[name])
        with self._bucket.errors(f"read {place}"):
            return fetch_part(
                lambda file: self._object(place + file), folder, f"{self.url}: {place}"
            )

    def _object(self, key: str) -> Any:
        """An object to read. Raises DamagedError: it is gone."""
        try:
            return self._bucket.s3.get_object(Bucket=self._bucket.name, Key=key)["Body"]
        except self._bucket.s3.exceptions.NoSuchKey:
            raise DamagedError(f"{self.url}: {key} is gone") from None

    def _discard(self, place: str) -> None:
        """Remove what does not count, as far as that can be done."""
        with suppress(CheckpointError), self._bucket.errors(f"remove {place}"):
            self._bucket.remove(*self._bucket.sizes(place))


def _parts(entries: Mapping[str, str], name: str) -> list[int]:
    """The ranks whose parts of a backup are listed."""
    return [int(entry.rpartition("-")[2]) for entry in entries if entry.startswith(f"{name}/rank-")]


class _Summed(io.RawIOBase):
    """A file that is read once from its begin to its end, and what it was."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        """It is not: the uploader keeps a piece until it was taken."""
        return False

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self.digest.update(data)
        return data
