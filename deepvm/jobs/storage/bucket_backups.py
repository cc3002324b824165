"""Backups in a bucket, below ``JOB/backups/``; the job's ledger lists those that count."""

import hashlib
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from deepvm.checkpoint.files.file_names import epoch_of, new_label
from deepvm.checkpoint.tiers.object_store import LedgerFile, StaleError
from deepvm.checkpoint.tiers.s3 import Bucket
from deepvm.errors import CheckpointError, DamagedError
from deepvm.jobs.loggers import agent_log as log
from deepvm.jobs.storage import backup_store
from deepvm.jobs.storage.backup_store import RECORD, Part, PartStatus, Record, StoredBackup, name_of

_THREADS = 4
_ATTEMPTS = 5
_PLACE = re.compile(
    r"(?P<name>\d{12}-\d{9,}/(?:rank|whole)-\d+)\.(?P<label>g\d{9,19}-[0-9a-f]{8})/(?P<file>.+)",
    re.DOTALL,
)


class BucketBackups(backup_store.BackupStore):
    """Objects ``STEP-EPOCH/rank-N.LABEL/FILE``, whose labels the ledger lists.

    The seal is ``STEP-EPOCH/whole-RANKS.LABEL/record.json`` and its entry; statuses are empty
    objects, such as ``STEP-EPOCH/rank-3.begun``.
    """

    def __init__(
        self, bucket: str, prefix: str, job: str, *, endpoint: str = "", attempts: int = _ATTEMPTS
    ) -> None:
        place = f"{prefix.strip('/')}/{job}/backups"
        self._bucket = Bucket(bucket, place, threads=_THREADS, attempts=attempts, endpoint=endpoint)
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
        self.begin(part.epoch)
        # The status first: who seals looks for it afterwards
        key = f"{self._bucket.prefix}{name_of(part)}/rank-{part.rank}.{status.value}"
        self._put(key, b"")
        return status is PartStatus.BEGUN and self._unseal(name_of(part), part.epoch)

    def _put(self, key: str, data: bytes) -> None:
        with self._bucket.errors(f"write {key}"):
            self._bucket.write(key, data)

    def _unseal(self, name: str, epoch: int) -> bool:
        seals = {entry for entry in self._entries() if entry.startswith(f"{name}/whole-")}
        if seals:
            self._ledger.drop(seals, epoch)
        return bool(seals)

    def _names(self, name: str) -> list[str]:
        place = f"{self._bucket.prefix}{name}/"
        with self._bucket.errors(f"list {place}"):
            return [key[len(place) :] for key in self._bucket.sizes(place)]

    def save(self, path: Path, part: Part) -> None:
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
                for source, below in backup_store.files_of(path):
                    with source.open("rb") as stream:
                        reader = _Summed(stream)
                        # S3 checks each piece's checksum, readers the whole
                        self._bucket.s3.upload_fileobj(
                            reader,
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
        self._put(self._place(name, label) + RECORD, Record("whole", {}, part.automatic).to_json())
        self._ledger.add(name, f"{label}{'+' if part.automatic else ''}", part.epoch)

    def _place(self, name: str, label: str) -> str:
        return f"{self._bucket.prefix}{name}.{label.rstrip('+')}/"

    def _placed(self, key: str) -> re.Match[str] | None:
        return _PLACE.fullmatch(key[len(self._bucket.prefix) :])

    def _sent(self) -> list[re.Match[str]]:
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

    def _entries(self, name: str = "") -> Mapping[str, str]:
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

    def set_aside(self, kept: StoredBackup, epoch: int) -> None:
        self._unseal(kept.name, epoch)

    def remove(self, name: str, epoch: int) -> None:
        self._ledger.drop(
            {entry for entry in self._entries() if entry.startswith(f"{name}/")}, epoch
        )
        # Only now: readers must not find an entry whose objects are partly gone.
        self._discard(f"{self._bucket.prefix}{name}/")

    def _open(self, entry: str, label: str, file: str) -> Any:
        key = self._place(entry, label) + file
        try:
            return self._bucket.s3.get_object(Bucket=self._bucket.name, Key=key)["Body"]
        except self._bucket.s3.exceptions.NoSuchKey:
            raise DamagedError(f"{self.url}: {key} is gone") from None

    def fetch(self, kept: StoredBackup, rank: int, folder: Path) -> Path:
        with self._bucket.errors(f"read {kept.name}"):
            return super().fetch(kept, rank, folder)

    def _discard(self, place: str) -> None:
        with suppress(CheckpointError), self._bucket.errors(f"remove {place}"):
            self._bucket.remove(*self._bucket.sizes(place))


class _Summed:
    """A file that the uploader reads once, as it cannot seek, and the SHA-256 of what it read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self.digest.update(data)
        return data
