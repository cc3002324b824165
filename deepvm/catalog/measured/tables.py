"""The user's measured tables: one file, changed by one process at a time."""
# A change writes the new file, copies the old one to measured.previous.json, and renames the new
# one: a kill at any point leaves a whole file.

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from fnmatch import translate
from pathlib import Path
from typing import TYPE_CHECKING

import deepvm
from deepvm.catalog.measured.entries import (
    DOCUMENT_VERSIONS,
    TABLES_VERSION,
    TYPES,
    Entry,
    build_entry,
)
from deepvm.core.cluster.instances import Catalog
from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.documents.tree import dotted
from deepvm.errors import CatalogFormatError, DataError, Issue, RequestError
from deepvm.io.atomic_write import hidden_path, sync_folder, write_bytes
from deepvm.io.safe_read import StrPath, os_reason
from deepvm.io.user_dirs import MEASURED, is_missing, own_data_folder
from deepvm.records import dataclass

if TYPE_CHECKING:
    from deepvm.catalog.published.performance import PublishedPerformance
    from deepvm.core.cluster.instances import InstanceType

PREVIOUS = "measured.previous.json"
LOCK = ".measured.lock"
LOCK_WAIT_S = 30.0  # How long a save waits for another one; a save takes milliseconds


def replace_file(folder: Path, data: bytes) -> None:
    """Replace the tables; the old ones become the previous ones. Raises a DataError."""
    current = folder / MEASURED
    try:
        with hidden_path(current) as new_file:
            write_bytes(new_file, data)  # first, so that a full disk changes nothing
            if not is_missing(current):
                write_bytes(folder / PREVIOUS, current.read_bytes())
            os.replace(new_file, current)
        sync_folder(folder)
    except OSError as error:
        raise DataError(f"{current}: cannot be written: {os_reason(error)}") from None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder against other processes, or raise a DataError."""
    from deepvm.io.file_lock import FileLock

    lock = FileLock(folder / LOCK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = lock.take(shared=False, limit_s=LOCK_WAIT_S)
    except OSError as error:  # without a lock, two saves could lose each other's entries
        raise DataError(
            f"{error.filename or folder}: measured tables cannot be written: {os_reason(error)};"
            " DEEPVM_DATA_DIR names another folder"
        ) from None
    if not free:
        raise DataError(
            f"another process has locked {folder / LOCK} for {LOCK_WAIT_S:g} s; nothing was saved,"
            " try again"
        )
    try:
        yield
    finally:
        lock.release()


@dataclass(frozen=True)
class Tables:
    """Measured tables: one entry of each name, sorted by name."""

    entries: tuple[Entry, ...] = ()
    path: str = ""

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def called(self, name: str) -> tuple[Entry, ...]:
        meant = re.compile(f"{translate(name)}|{translate(f'{name}[:/.]*')}")
        return tuple(e for e in self.entries if any(map(meant.match, (e.name, *e.types))))

    def merged(self, entries: Iterable[Entry]) -> Tables:
        """Merge entries. Of one name the later measurement wins, of equal times the new one."""
        by_time = sorted((*self.entries, *entries), key=lambda e: e.measured_at)
        latest = {e.name: e for e in by_time}
        return Tables(tuple(latest[name] for name in sorted(latest)), self.path)

    def apply(
        self, catalog: Catalog, workload: str = "", *, among: Sequence[Catalog] = ()
    ) -> Catalog:
        from deepvm.catalog.measured.apply import apply

        return apply(self, catalog, workload, among).catalog

    def speeds(
        self, published: PublishedPerformance, types: Mapping[str, InstanceType]
    ) -> PublishedPerformance:
        """Speeds by these steps, else as published."""
        from deepvm.catalog.measured.steps import MeasuredPerformance, step_times

        own, _ = step_times(self, types)
        if not own:
            return published
        return MeasuredPerformance(published.software, published.placement_group, own)

    def as_document(self) -> JsonDict:
        entries = [e.as_document() for e in self.entries]
        return {"schema_version": TABLES_VERSION, "deepvm": deepvm.__version__, "entries": entries}


def own_folder() -> Path:
    """The user's folder of measured tables; DataError where the system names none."""
    folder = own_data_folder(os.environ)
    if folder is None:
        raise DataError(
            "there is no folder for measured tables: no home folder, or XDG_DATA_HOME is not an"
            " absolute path; DEEPVM_DATA_DIR names one"
        )
    return folder


def load_tables(folder: str | os.PathLike[str] | None = None) -> Tables:
    """Load the measured tables of a folder, the user's own unless given; empty if there are none.

    Raises:
        CatalogFormatError: the file cannot be read, or is damaged; names every problem.
    """
    chosen = folder or own_data_folder(os.environ)
    if chosen is None:
        return Tables()
    return _read_if_any(
        Path(chosen) / MEASURED,
        "These are your measured tables: 'deepvm tables restore' brings back the tables before the"
        " last change, '--tables paper' ignores them.",
    )


def _read_if_any(path: Path, note: str) -> Tables:
    if is_missing(path):  # as for most users: pydantic stays out
        return Tables()
    try:
        return read_tables(path)
    except CatalogFormatError as error:
        # What BaseException.add_note does, which Python 3.10 lacks.
        error.__notes__ = [*getattr(error, "__notes__", ()), note]
        raise


def open_tables(name: str) -> Tables | None:
    """The tables of ``--tables``: ``auto`` for the user's own, ``paper`` for None, or a file."""
    if name == "paper":
        return None
    if name == "auto":
        return load_tables()
    if not name.lower().endswith(".json"):
        raise RequestError(
            "tables", name, "auto, paper, or a .json file that 'deepvm tables export' wrote"
        )
    return read_tables(Path(name))


def read_tables(path: Path) -> Tables:
    """Read measured tables from a file."""
    from deepvm.documents.inputs.tables import TABLES

    document = TABLES.read_plain(path)
    return Tables((), str(path)).merged(map(build_entry, document["entries"]))


def refuse_missing_types(kind: str, types: Mapping[str, str]) -> None:
    """Raise a RequestError where a type of such an entry is not named."""
    for option in TYPES[kind]:
        if not types.get(option):
            raise RequestError(
                option, "", "the provider's name of the type that is measured, such as g4dn.xlarge"
            )


def entry_of(
    document: JsonObject, *, measured_at: datetime, name: str = "document", **types: str
) -> Entry:
    """Make an entry of what a profiling command prints with ``-o json``."""
    from deepvm.documents.inputs.tables import TABLES

    version = str(document.get("schema_version"))
    kinds = {known: kind for kind, known in DOCUMENT_VERSIONS.items()}
    if version not in kinds:
        versions = ", ".join((TABLES_VERSION, *kinds))
        raise CatalogFormatError(
            name,
            [Issue(f"invalid value for schema_version: {version[:60]!r} (expected {versions})")],
        )
    kind = kinds[version]
    own = {**document, "instance_type": machine_type(document)}
    known_types = {key: types.get(key) or str(own.get(key) or "") for key in TYPES[kind]}
    refuse_missing_types(kind, known_types)
    entry = Entry(kind, measured_at, document, tuple(known_types.values()))
    # Through text and back, so that the entry is equal to the one that a later run will read.
    tree = TABLES.tree(encode_tables(Tables((entry,))).decode(), name)
    tree.read_lines = dict
    # Without entries[0].document
    tree.label = lambda path: dotted(path[3:])
    TABLES.validated(tree, name)
    return build_entry(tree.value["entries"][0])


def machine_type(document: JsonObject) -> str:
    """The type that a document's machine is of; empty where it does not say."""
    machine = document.get("machine")
    if isinstance(machine, Mapping):
        return str(machine.get("instance_type") or "")
    return ""


def save_entries(
    folder: StrPath, entries: Iterable[Entry], remove: Collection[str] = ()
) -> tuple[Tables, Tables]:
    """Save measurements in a folder's tables, and remove others by name."""
    path = Path(folder)
    with locked(path):
        old = load_tables(path)
        kept = tuple(entry for entry in old if entry.name not in remove)
        new = Tables(kept, str(path / MEASURED)).merged(entries)
        if new.entries != old.entries:
            replace_file(path, encode_tables(new))
    return old, new


def restore_previous(folder: StrPath) -> Path:
    """Undo the last change and return the file; a second call redoes it."""
    path = Path(folder) / MEASURED
    before = Path(folder) / PREVIOUS
    with locked(path.parent):
        if is_missing(before) and is_missing(path):
            raise DataError(
                f"{path}: nothing was measured yet, there is no earlier version to go back to"
            )
        replace_file(path.parent, encode_tables(previous_tables(folder)))
    return path


def previous_tables(folder: StrPath) -> Tables:
    """The tables before the last change; empty before the first one."""
    path = Path(folder) / PREVIOUS
    return _read_if_any(
        path, f"These are the tables before the last change: remove {path} to do without them."
    )


def encode_tables(tables: Tables) -> bytes:
    """The text of the file of tables."""
    return (json.dumps(tables.as_document(), indent=1, allow_nan=False) + "\n").encode()
