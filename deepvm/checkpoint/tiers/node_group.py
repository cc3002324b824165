"""Memory nodes that keep each checkpoint together: shared in parts, or in copies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from deepvm.checkpoint.tiers.base import Tier, fulfil
from deepvm.checkpoint.tiers.tcp import TcpTier
from deepvm.errors import RequestError

_T = TypeVar("_T")


class NodeGroup(Tier):
    """Nodes, in the same order in every run."""

    streams = True

    def __init__(self, nodes: Sequence[TcpTier], limit: int) -> None:
        """Raises RequestError: too few or many nodes, or one named twice."""
        urls = [node.url for node in nodes]
        if not 2 <= len(nodes) <= limit or len(set(urls)) < len(urls):
            raise RequestError("tiers", ",".join(urls), f"2 to {limit} memory nodes, each once")
        self._nodes = tuple(nodes)
        self.url = ",".join([urls[0], *(url.partition("://")[2] for url in urls[1:])])
        self.shared = any(node.shared for node in nodes)

    def close(self) -> None:
        for node in self._nodes:
            node.close()


def at_once(work: Callable[..., _T], *arguments: Iterable[Any]) -> list[Future[_T]]:
    """Call ``work`` as :func:`map` does, each in a thread of its own, and wait for all.

    Every call to a node has its time limit.
    """
    calls = [(Future[_T](), *each) for each in zip(*arguments, strict=True)]
    # Not an executor: those refuse work at the end of a program, when the last version is still to
    # be sent.
    threads = [
        threading.Thread(
            target=fulfil, args=(future, work, *each), name="deepvm-nodes", daemon=True
        )
        for future, *each in calls
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [future for future, *_ in calls]
