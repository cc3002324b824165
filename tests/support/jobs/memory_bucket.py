"""A bucket in memory, and a cloud that only rents heads: what can go wrong with them, without a
server.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from support.jobs import worlds

from deepvm.jobs.cloud import (
    ChangedError,
    HostsController,
    Listing,
    Object,
    UnknownError,
    head_name,
)
from deepvm.jobs.decisions.states import Job
from deepvm.jobs.decisions.world import JobLimits, JobState
from deepvm.jobs.head.mirror import HeadState, LogPieces
from deepvm.jobs.head.mirror_keeper import PULSE, StateReplicator
from deepvm.jobs.history.history import PLACE, History, JobRow
from deepvm.jobs.wire import new_secret

NAME = "resnet-7"


class MemoryBucket:
    """See :class:`deepvm.jobs.cloud.Objects`.

    Attributes:
        lose: so many replies to :meth:`replace` are lost after it was done. down: nothing answers.
            early: called once before the next :meth:`replace`.
    """

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str, float]] = {}
        self.lose, self.down = 0, False
        self.early: Callable[[], None] | None = None
        self._tags, self._lock = itertools.count(1), threading.Lock()

    def _answers(self) -> None:
        if self.down:
            raise UnknownError("no answer")

    def get(self, key: str, unlike: str = "") -> Object | None:
        self._answers()
        found = self.objects.get(key)
        if found is None:
            return None
        return Object(b"" if found[1] == unlike else found[0], found[1], time.time() - found[2])

    def put(self, key: str, data: bytes) -> None:
        self._answers()
        self.objects[key] = data, f"tag{next(self._tags)}", time.time()

    def replace(self, key: str, data: bytes, tag: str | None) -> str:
        self._answers()
        if self.early is not None:
            early, self.early = self.early, None
            early()
        with self._lock:
            found = self.objects.get(key)
            if (None if found is None else found[1]) != tag:
                raise ChangedError(key)
            self.put(key, data)
            if self.lose:
                self.lose -= 1
                raise UnknownError("the reply is lost")
            return self.objects[key][1]

    def keys(self, prefix: str, after: str = "") -> list[str]:
        self._answers()
        return sorted(k for k in self.objects if k.startswith(prefix) and k > after)

    def remove(self, keys: Iterable[str]) -> None:
        self._answers()
        for key in keys:
            self.objects.pop(key, None)

    def age(self, key: str, seconds: float) -> None:
        """Have an object be older."""
        data, tag, at_s = self.objects[key]
        self.objects[key] = data, tag, at_s - seconds


class HeadCloud:
    """See :class:`deepvm.jobs.cloud.HostsController`; ``asked``: numbers of requested heads."""

    def __init__(self) -> None:
        self.bucket, self.asked = MemoryBucket(), list[int]()
        self.alive: dict[str, float] = {}
        self.ended: dict[str, tuple[float, float]] = {}

    def controls_here(self) -> bool:
        return False

    def check_head(self) -> None:
        pass

    def objects(self, job: str) -> MemoryBucket:
        return self.bucket

    def start_head(self, job: str, number: int) -> None:
        self.asked.append(number)
        self.alive.setdefault(head_name(number), time.time())

    def heads(self, job: str) -> Listing:
        return Listing(dict(self.alive), dict(self.ended))

    def end_head(self, job: str, name: str) -> None:
        if name in self.alive:
            self.ended[name] = self.alive.pop(name), time.time()

    def head_type(self) -> str:
        return "t3.small"

    def head_usd_per_hour(self) -> float:
        return 3600.0


assert isinstance(HeadCloud(), HostsController), "it lacks what a cloud with heads has"


def place_of(folder: Path) -> Mapping[str, str]:
    """The environment of a computer that has its history there."""
    return {PLACE: str(folder / "history.db")}


def submitted(folder: Path) -> tuple[History, JobRow]:
    """A job as the user's computer has it before anything has happened."""
    history = History.open(place_of(folder))
    (folder / NAME).mkdir()
    (folder / NAME / "secret").write_text(new_secret())
    now_s = time.time()
    assert history.add_job(
        NAME,
        now_s,
        folder / NAME,
        worlds.spec(),
        JobState(JobLimits(1, 1), now_s, pools=(worlds.POOL,)),
    )
    row = history.job(NAME)
    assert row is not None and row.state == Job.PENDING.value
    return history, row


def head_in(
    folder: Path, cloud: HeadCloud, number: int, copy: Mapping[str, object]
) -> tuple[History, StateReplicator]:
    """The computer of a head that has fetched its job."""
    (folder / NAME / "logs").mkdir(parents=True)
    HeadState(number, time.time(), here=True).save(folder / NAME)
    history = History.open(place_of(folder))
    assert history.put_copy(copy, folder / NAME)
    logs = LogPieces(folder / NAME, cloud.bucket, number)
    return history, StateReplicator(NAME, number, cloud.bucket, logs, folder / NAME / PULSE)
