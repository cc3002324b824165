"""Where sharded versions go, and how they are damaged there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deepvm.checkpoint.format.manifest import SUFFIX
from deepvm.checkpoint.node.server import Node
from deepvm.checkpoint.tiers.s3 import Bucket
from support.checkpoint import object_store
from support.checkpoint.disks import Disk, Folder, Objects
from support.checkpoint.memory_nodes import running, until


@dataclass
class Place:
    """Where versions go. ``url``: of now; ``disks``: behind it; ``nodes``: in this process."""

    url: str
    disks: list[Disk]
    again: Callable[[], str] = str
    nodes: list[Node] = field(default_factory=list)
    store: object_store.Store | None = None

    def restart(self) -> None:
        """Nodes begin anew and know what is on their disks."""
        self.url = self.again() or self.url


@contextmanager
def file_place(folder: Path) -> Iterator[Place]:
    yield Place((folder / "versions").as_uri(), [Folder(folder / "versions")])


@contextmanager
def s3_place(folder: Path) -> Iterator[Place]:
    with object_store.running() as store, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL_S3", store.url)
        patch.setitem(Bucket.__init__.__kwdefaults__, "attempts", 1)
        yield Place(f"s3://{object_store.BUCKET}/run", [Objects(store)], store=store)


@contextmanager
def node_place(folder: Path, count: int, options: str = "") -> Iterator[Place]:
    with ExitStack() as stack:
        folders = [folder / f"persist-{n}" for n in range(count)]
        running_now = stack.enter_context(ExitStack())
        place = Place("", [Folder(path) for path in folders])

        def start() -> str:
            running_now.close()
            place.nodes = [running_now.enter_context(running(persist=path)) for path in folders]
            first, *others = [node.url for node in place.nodes]  # type: ignore[attr-defined]
            return ",".join([first, *(url.partition("://")[2] for url in others)]) + options

        place.again = start
        place.restart()
        yield place


PLACES: dict[str, Callable[[Path], AbstractContextManager[Place]]] = {
    "file": file_place,
    "s3": s3_place,
    "tcp": lambda folder: node_place(folder, 1),
    "tcp,tcp": lambda folder: node_place(folder, 2),
    "replicas": lambda folder: node_place(folder, 2, "?replicas=2"),
}


def await_disks(place: Place, *versions: int) -> None:
    ends = tuple(f"{version:012d}.pt{SUFFIX}" for version in versions)
    for disk in place.disks:
        assert until(
            lambda disk=disk: sum(name.endswith(ends) for name in disk.names()) == len(ends)
        )


def files(place: Place, version: int) -> list[tuple[Disk, str]]:
    return [
        (disk, name)
        for disk in place.disks
        for name in disk.names()
        if f"-{version:012d}.pt" in name
    ]


Damage = Callable[[bytes, random.Random], bytes | None]


def patched(data: bytes, chance: random.Random) -> bytes:
    start, more = chance.randrange(len(data)), chance.randbytes(chance.randrange(1, 60))
    return data[:start] + more + data[start + len(more) :]


def flipped(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


DAMAGES: dict[str, Damage] = {
    "flipped": flipped,
    "patched": patched,
    "cut": lambda data, chance: data[: chance.randrange(len(data))],
    "longer": lambda data, chance: data + chance.randbytes(chance.randrange(1, 9)),
    "zeroed": lambda data, chance: bytes(len(data)),
    "removed": lambda data, chance: None,
}


def damage(place: Place, version: int, how: Damage, chance: random.Random) -> None:
    """Change one file of each disk: of the data, or of the record."""
    kind = chance.choice([".pt", ".pt" + SUFFIX])
    for disk in place.disks:
        name = next(n for d, n in files(place, version) if d is disk and n.endswith(kind))
        data = disk.read(name)
        while (changed := how(data, chance)) == data:
            pass
        disk.remove(name)
        if changed is not None:
            disk.write(name, changed)


def damaged_in_turn(place: Place, version: int, rounds: int, seed: int) -> Iterator[str]:
    """A version is damaged in any way, round after round, and whole again at the end; says how."""
    chance, whole_files = (
        random.Random(seed),
        [(disk, name, disk.read(name)) for disk, name in files(place, version)],
    )
    for number in range(rounds):
        how = [*DAMAGES][number % len(DAMAGES)]
        damage(place, version, DAMAGES[how], chance)
        place.restart()
        yield how
        for disk, name, data in whole_files:
            disk.write(name, data)
    place.restart()
