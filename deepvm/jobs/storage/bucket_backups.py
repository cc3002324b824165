"""Backups in a bucket, below ``JOB/backups/``.

Every upload has a name of its own, and counts once the job's ledger of backups lists it: see
:mod:`deepvm.checkpoint.tiers.ledger`, which keeps older generations out. Uploads that were cut off leave parts, which a
lifecycle rule of the bucket should abort after a day.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from deepvm.checkpoint.files.file_names import epoch_of, new_label
from deepvm.checkpoint.tiers.bucket import Bucket
from deepvm.checkpoint.tiers.ledger import LedgerFile, StaleError
from deepvm.errors import CheckpointError
from deepvm.jobs.storage.backup_store import Kept, Part, Record, copy, damaged, emptied, files_of

_THREADS, _ATTEMPTS = 4, 5
_RECORD = "record.json"
_PLACE = re.compile(rf"(?P<name>\d{{12}}/rank-\d+)\.(?P<label>g\d{{9,19}}-[0-9a-f]{{8}})/{re.escape(_RECORD)}")

log = logging.getLogger("deepvm.agent")


class BucketBackups:
    """Objects ``STEP/rank-N.LABEL/FILE``; entries ``STEP/rank-N`` of the ledger: the label, with ``+`` if automatic."""

    def __init__(self, bucket: str, prefix: str, job: str, *, endpoint: str = "", attempts: int = _ATTEMPTS) -> None:
        """Send nothing yet. ``endpoint``: empty for the environment's or AWS's. ``attempts``: tries of each request."""
        self._bucket = Bucket(
            bucket, f"{prefix.strip('/')}/{job}/backups", threads=_THREADS, attempts=attempts, endpoint=endpoint
        )
        self.url = self._bucket.url
        self._ledger = LedgerFile(self._bucket, f"{self._bucket.prefix}.ledger", self._all_there)
        self._begun: int | None = None
        self._cleared = False

    def begin(self, epoch: int) -> None:
        """See :class:`BackupStore`."""
        if epoch != self._begun:
            self._ledger.begin(epoch)
            self._begun = epoch

    def save(self, path: Path, part: Part) -> None:
        """See :class:`BackupStore`; S3 compares each piece with its checksum, and readers the whole."""
        self.begin(part.epoch)
        self._ledger.check(part.epoch)
        self._clear(part.epoch)
        label, name = new_label(part.epoch), f"{part.step:012d}/rank-{part.rank}"
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
                record = Record(path.name, sums, part.automatic).to_json()
                self._bucket.s3.put_object(Bucket=self._bucket.name, Key=place + _RECORD, Body=record)
            before = self._ledger.add(name, f"{label}{'+' if part.automatic else ''}", part.epoch)
        except (StaleError, OSError):
            self._discard(place)
            raise
        earlier = before.entries.get(name, "").rstrip("+")
        if earlier not in ("", label):
            self._discard(self._place(name, earlier))

    def _place(self, name: str, label: str) -> str:
        return f"{self._bucket.prefix}{name}.{label.rstrip('+')}/"

    def _uploads(self) -> list[tuple[str, str]]:
        """Name and label of each upload whose record is there."""
        with self._bucket.errors("list its objects"):
            keys = list(self._bucket.sizes(self._bucket.prefix))
        found = [_PLACE.fullmatch(key[len(self._bucket.prefix) :]) for key in keys]
        return [(match["name"], match["label"]) for match in found if match is not None]

    def _all_there(self) -> dict[str, str]:
        """The entries of a ledger that was lost: the newest of each name."""
        found: dict[str, str] = {}
        for name, label in self._uploads():
            found[name] = max(found.get(name, ""), label, key=epoch_of)
        return found

    def _entries(self) -> Mapping[str, str]:
        found = self._ledger.read()
        return self._all_there() if found is None else found.entries

    def _clear(self, epoch: int) -> None:
        """Once: remove what older generations have sent and that never counted."""
        if self._cleared:
            return
        self._cleared = True
        try:
            sent, listed = self._uploads(), self._entries()  # in this order: what is listed later was not sent before
        except CheckpointError as error:  # what stays costs a little
            log.debug("%s", error)
            return
        for name, label in sent:
            if epoch_of(label) < epoch and listed.get(name, "").rstrip("+") != label:
                self._discard(self._place(name, label))

    def whole(self) -> list[Kept]:
        """See :class:`BackupStore`."""
        entries = self._entries()
        rows = [(name.partition("/")[0], label) for name, label in entries.items() if name.endswith("/rank-0")]
        return [Kept(int(step), step, label.endswith("+")) for step, label in sorted(rows, reverse=True)]

    def remove(self, kept: Kept, epoch: int) -> None:
        """See :class:`BackupStore`; it is not listed any more before an object goes."""
        known = self._entries()
        names = {name for name in known if name.startswith(f"{kept.name}/")}
        before = self._ledger.drop(names, epoch)
        for name in names:
            self._discard(self._place(name, before.entries.get(name, known[name])))

    def fetch(self, kept: Kept, rank: int, folder: Path) -> Path:
        """See :class:`BackupStore`."""
        entries, name = self._entries(), f"{kept.name}/rank-{rank}"
        name = name if name in entries else f"{kept.name}/rank-0"
        place = self._place(name, entries.get(name, ""))
        with self._bucket.errors(f"read {place}"):
            record = Record.from_json(self._bucket.whole(place + _RECORD))
            emptied(folder)
            for name, checksum in record.sha256.items():
                body = self._bucket.s3.get_object(Bucket=self._bucket.name, Key=place + name)["Body"]
                with contextlib.closing(body):
                    if copy(cast(BinaryIO, body), folder / name) != checksum:
                        raise damaged(f"{self.url}: {place}{name}")
        return folder / record.name

    def _discard(self, place: str) -> None:
        """Remove what does not count, as far as that can be done."""
        with contextlib.suppress(CheckpointError), self._bucket.errors(f"remove {place}"):
            self._bucket.remove(*self._bucket.sizes(place))


class _Summed(io.RawIOBase):
    """A file that is read once from its begin to its end, and what it was."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.digest = stream, hashlib.sha256()

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is not: the uploader keeps a piece until it was taken."""
        return False

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        data = self._stream.read(size)
        self.digest.update(data)
        return data
