"""Memory nodes that may be lost, and a tier that keeps each version on several of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from deepvm.checkpoint.network.endpoint import Address
from deepvm.checkpoint.node.server import Node, NodeSettings
from deepvm.checkpoint.tiers.base import Tier
from deepvm.checkpoint.tiers.replicated import ReplicatedTier
from deepvm.checkpoint.tiers.tcp import TcpTier
from support.checkpoint.images import plain_shard
from support.checkpoint.memory_nodes import MIB, TOKEN, Acks


class Machine:
    """A VM with a node, which may lose its memory, and its disk with it; its address stays."""

    def __init__(self, persist: Path | str | None = None, memory: int = 64 * MIB) -> None:
        self.persist, self.memory, self.port, self.cut, self.slow_s = persist, memory, 0, False, 0.0
        self.node: Node | None = None
        self.start()
        self.url = f"tcp://127.0.0.1:{self.port}"

    def start(self) -> None:
        place = self.persist.as_uri() if isinstance(self.persist, Path) else self.persist or ""
        self.node = Node(
            NodeSettings(Address("127.0.0.1", self.port), TOKEN, self.memory, place, lease_s=0.5)
        )
        self.port = self.node.start().port  # type: ignore[union-attr]

    def restart(self) -> None:
        """With what is on its disk."""
        if self.node is not None:
            self.node.stop(lambda: True)
        self.start()

    def lose(self) -> None:
        """All of it."""
        if self.node is not None:
            self.node.stop(lambda: True)
            self.node = None
        if isinstance(self.persist, Path):
            shutil.rmtree(self.persist, ignore_errors=True)


@contextmanager
def machines(count: int, persist: Path | None = None) -> Iterator[list[Machine]]:
    with ExitStack() as stack:
        made = []
        for number in range(count):
            made.append(Machine(persist and persist / str(number)))
            stack.callback(made[-1].lose)
        yield made


@contextmanager
def mirrored(
    places: list[Machine], replicas: int = 2, session: str = "s1", **options: Any
) -> Iterator[ReplicatedTier]:
    nodes = [TcpTier(place.url, session, TOKEN, limit_s=5.0, **options) for place in places]
    tier = ReplicatedTier(nodes, replicas, retry_s=0.02)
    yield tier
    tier.close()


def put(tier: Tier, version: int, data: bytearray) -> Acks:
    acks = Acks()
    tier.put(plain_shard(data, version), acks)
    return acks


def holders(places: list[Machine], version: int) -> list[int]:
    return [
        n for n, p in enumerate(places) if p.node and version in p.node.registry.complete("job")
    ]


def read(places: list[Machine], folder: Path, replicas: int = 2) -> tuple[int, bytes]:
    """What a run that starts now restores."""
    with mirrored(places, replicas, "reader") as tier:
        record = tier.versions("job")[0]
        return record.version, tier.fetch(record, folder).read_bytes()
