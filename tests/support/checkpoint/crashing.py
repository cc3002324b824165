"""A disk that forgets: what a machine without power may find in a folder, whatever it was doing
(ALICE, OSDI 2014).

A killed process shows nothing of it: the kernel keeps what was written. Here the calls of a real
run are recorded, and for each moment every state is made that POSIX allows a disk to have then:

- of the names that were made, changed or removed since the last fsync of the folder, any may be
  there and any not;
- of the bytes that were written to a file since its last fsync, some may be there: none, some
  writes, half of one;
- what was synced is there.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from deepvm.checkpoint.files.commit_record import UPCOMING, verify
from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format.manifest import SUFFIX
from deepvm.errors import DamagedError


class Broken(AssertionError):
    """A crash would lose what was promised, or show what is not whole."""


@dataclass
class File:
    """What a disk knows of a file: what is certain, and the writes since (offset, bytes.

    None: a new length).
    """

    synced: bytes = b""
    writes: list[tuple[int, bytes | None]] = field(default_factory=list)

    def contents(self) -> Iterator[bytes]:
        """What may be found."""
        yield self.synced
        if not self.writes:
            return
        yield self._with(self.writes)
        for number in range(1, len(self.writes)):
            yield self._with(self.writes[:number])
            yield self._with(self.writes[number:])
        offset, data = self.writes[-1]
        if data:
            yield self._with([*self.writes[:-1], (offset, data[: len(data) // 2])])

    def _with(self, writes: list[tuple[int, bytes | None]]) -> bytes:
        found = bytearray(self.synced)
        for offset, data in writes:
            if data is None:
                found = found[:offset] + bytes(max(offset - len(found), 0))
            else:
                found += bytes(max(offset + len(data) - len(found), 0))
                found[offset : offset + len(data)] = data
        return bytes(found)

    def copy(self) -> File:
        return File(self.synced, list(self.writes))


@dataclass
class Disk:
    """What a disk knows of a folder: certain names, and the changes since.

    Numbers stand for files.
    """

    names: dict[str, int] = field(default_factory=dict)
    changes: list[tuple[str, str, int]] = field(default_factory=list)
    files: list[File] = field(default_factory=list)

    def states(self) -> Iterator[dict[str, bytes]]:
        """The visible files after a crash now, each state once."""
        seen = set()
        for chosen in itertools.product([True, False], repeat=len(self.changes)):
            names = dict(self.names)
            for (old, new, number), is_there in zip(self.changes, chosen, strict=True):
                if is_there:
                    names.pop(old, None)
                    if new:
                        names[new] = number
            # Hidden ones are nobody's: whoever cleans up removes them, and what they hold is not
            # looked at. But for the record of a version that is taking the place of another.
            shown = [
                (n, number)
                for n, number in sorted(names.items())
                if not n.startswith(".") or UPCOMING in n
            ]
            for contents in itertools.product(
                *[set(self.files[number].contents()) for _, number in shown]
            ):
                state = tuple(zip([name for name, _ in shown], contents, strict=True))
                if state not in seen:
                    seen.add(state)
                    yield dict(state)

    def copy(self) -> Disk:
        return Disk(dict(self.names), list(self.changes), [f.copy() for f in self.files])


Filter = Callable[[str, str], bool]


class Recorder:
    """Records what is done to one folder; ``moments`` are the disks to crash, with what was
    promised by then.
    """

    def __init__(
        self, folder: Path, patch: pytest.MonkeyPatch, lost: Filter = lambda call, name: False
    ) -> None:
        """Begin. ``lost``: calls of fsync that are not made, as if the code had none.

        By call and kind of file.
        """
        self.folder, self._lost = folder, lost
        self.disk = Disk()
        self.live: dict[str, int] = {}
        self.promised: dict[int, bytes] = {}
        self.under_way: dict[int, set[bytes]] = {}
        self.moments: list[tuple[Disk, dict[int, bytes], dict[int, set[bytes]]]] = []
        self.calls: list[str] = []
        self._lock = threading.RLock()
        for name in sorted(os.listdir(folder)) if folder.is_dir() else []:
            self.live[name] = self.disk.names[name] = len(self.disk.files)
            self.disk.files.append(File((folder / name).read_bytes()))
        for call in ("open", "pwrite", "ftruncate", "fsync", "replace", "rename", "unlink"):
            patch.setattr(os, call, self._wrapped(call, getattr(os, call)))
        # Python 3.10 has its own way to the system's call.
        patch.setattr(Path, "unlink", _unlink_path)

    def _wrapped(self, call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **more: Any) -> Any:
            with self._lock:
                name = self._name(arguments[0])
                if name is None:
                    return real(*arguments, **more)
                found = real(*arguments, **more)
                getattr(self, f"_{call}")(name, found, *arguments)
                return found

        return wrapped

    def _name(self, what: Any) -> str | None:
        """The name in the folder, empty for the folder itself, None elsewhere."""
        path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fspath(what)
        if path == str(self.folder):
            return ""
        return os.path.basename(path) if os.path.dirname(path) == str(self.folder) else None

    def _moment(self, call: str) -> None:
        self.calls.append(call)
        promised, under_way = dict(self.promised), {v: set(c) for v, c in self.under_way.items()}
        self.moments.append((self.disk.copy(), promised, under_way))

    def _number(self, name: str) -> int:
        if name not in self.live:
            self.live[name] = len(self.disk.files)
            self.disk.files.append(File())
            self.disk.changes.append(("", name, self.live[name]))
        return self.live[name]

    def _open(self, name: str, found: int, path: Any, flags: int, *_: Any) -> None:
        if name and flags & os.O_CREAT:
            self._number(name)
            self._moment(f"open {name}")

    def _pwrite(self, name: str, count: int, _: int, data: memoryview, offset: int) -> None:
        self.disk.files[self._number(name)].writes.append((offset, bytes(data[:count])))
        self._moment(f"write {name}")

    def _ftruncate(self, name: str, _: None, __: int, length: int) -> None:
        self.disk.files[self._number(name)].writes.append((length, None))
        self._moment(f"truncate {name}")

    def _fsync(self, name: str, *_: Any) -> None:
        kind = "folder" if not name else "record" if SUFFIX in name else "data"
        if self._lost("fsync", kind):
            return
        if not name:
            self.disk.names, self.disk.changes = dict(self.live), []
        else:  # also what came by another way, such as a mapping
            self.disk.files[self._number(name)] = File((self.folder / name).read_bytes())
        self._moment(f"sync {kind}")

    def _replace(self, name: str, _: None, __: Any, target: Any) -> None:
        new = os.path.basename(os.fspath(target))
        number = self._number(name)
        del self.live[name]
        self.live[new] = number
        self.disk.changes.append((name, new, number))
        self._moment(f"rename {name} {new}")

    _rename = _replace

    def _unlink(self, name: str, *_: Any) -> None:
        number = self.live.pop(name)
        self.disk.changes.append((name, "", number))
        self._moment(f"unlink {name}")

    def promise(self, version: int, content: bytes) -> None:
        """A version was acknowledged with these bytes."""
        with self._lock:
            self.promised[version] = content
            self.under_way[version] = set()
            self._moment(f"ack {version}")

    def begin(self, version: int, content: bytes) -> None:
        """A version with these bytes may be there from now on, in place of one of that number."""
        self.under_way.setdefault(version, set()).add(content)


def _unlink_path(path: Path, missing_ok: bool = False) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        if not missing_ok:
            raise


def crash_everywhere(recorder: Recorder, place: Path, keep: int = 1000) -> int:
    """Crash at each moment in each way; returns how many different states were looked at.

    Raises:
        Broken: a state in which a promise is broken.
    """
    place.mkdir()
    known: dict[Any, dict[int, bytes]] = {}
    count = 0
    for number, (disk, promised, under_way) in enumerate(recorder.moments):
        for state in disk.states():
            count += 1
            key = tuple(sorted(state.items()))
            if key not in known:
                known[key] = _restorable(state, place)
            found = known[key]
            if not found and not promised:
                _begins_at_0(place, state)
            where = f"after {recorder.calls[max(number - 3, 0) : number + 1]}, with {sorted(state)}"
            for version, content in found.items():
                if content not in under_way.get(version, set()) | {promised.get(version)}:
                    raise Broken(f"version {version} has bytes that nobody gave; {where}")
            for version in sorted(promised)[-keep:]:
                if version not in found:
                    raise Broken(f"version {version} is lost; {where}")
    return count


def _begins_at_0(place: Path, state: dict[str, bytes]) -> None:
    """A run that was never promised anything starts as if it were the first: nothing there claims
    to be a version.
    """
    for path in place.iterdir():
        path.unlink()
    for name, content in state.items():
        (place / name).write_bytes(content)
    damaged = VersionFolder(place).damaged("job")
    if damaged:
        raise Broken(f"after the crash of a first save: {damaged}, with {sorted(state)}")


def _restorable(state: dict[str, bytes], place: Path) -> dict[int, bytes]:
    """What a new process lists and reads."""
    for path in place.iterdir():
        path.unlink()
    for name, content in state.items():
        (place / name).write_bytes(content)
    found = _listed(place)
    VersionFolder(place).sweep()
    if _listed(place) != found:
        raise Broken(f"who cleans up changes what can be restored, with {sorted(state)}")
    return found


def _listed(place: Path) -> dict[int, bytes]:
    folder = VersionFolder(place)
    found = {}
    for manifest in folder.versions("job"):
        path = folder.file("job", manifest.version)
        try:
            verify(path, manifest)
        except DamagedError as error:
            raise Broken(f"listed as complete: {error}") from None
        found[manifest.version] = path.read_bytes()
    return found
