"""``tcp://a:7070,b:7070?replicas=2``: memory nodes of which so many keep each version, whole.

A version is remote when that many nodes have it, so the loss of all but one of them loses nothing
acknowledged: each still has it, or a newer one. It is durable when, besides, a disk of one of them
has it.

Every rank sends to the first nodes of the list that answer, and to the next one instead of one
that fails. Ranks do not talk about it: where they chose differently the version stays
unacknowledged, and until one is acknowledged again all nodes get them. A node leaves by going
silent and joins by answering again, or for the first time: the list may name nodes that are still
to come, fewer than ``replicas`` when a run starts. What a node missed is not copied to it; the next
version is.

A reader needs all but ``replicas - 1`` nodes to answer: each acknowledged version is then on one of
them, unless that has come back empty, which cannot be known.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

from deepvm.checkpoint.files.file_names import check_job
from deepvm.checkpoint.format.manifest import CommitRecord, Damage
from deepvm.checkpoint.format.shard import Level, Shard
from deepvm.checkpoint.network.client import UnreachableError
from deepvm.checkpoint.tiers.base import all_settled
from deepvm.checkpoint.tiers.node_group import NodeGroup, at_once
from deepvm.checkpoint.tiers.tcp import TcpTier, refuse_parts
from deepvm.errors import (
    CheckpointError,
    DamagedError,
    RequestError,
    TierBusyError,
    VersionGoneError,
)

log = logging.getLogger("deepvm.checkpoint")
MOST_NODES = 16
_RETRY_S = 1.0  # between questions whether a node is there again
_OVERDUE_S = 5.0  # a version that all should have by now
_STALE_S = 1.0  # a node that had its copy so long ago may have lost it since
_T = TypeVar("_T")


@dataclass(frozen=True)
class ReplicatedRecord(CommitRecord):
    """A checkpoint and its copies: each node's number in the list, and the node's record."""

    copies: tuple[tuple[int, CommitRecord], ...] = ()


class ReplicatedTier(NodeGroup):
    """Memory nodes of which ``replicas`` keep each version."""

    form = "tcp://host:port,host:port?replicas=2"

    def __init__(
        self, nodes: Sequence[TcpTier], replicas: int, *, retry_s: float = _RETRY_S
    ) -> None:
        """Take the nodes, those first that are to have the versions. Raises RequestError.

        ``retry_s``: how often a silent node is asked whether it is there again.
        """
        super().__init__(nodes, MOST_NODES)
        if not 2 <= replicas <= len(nodes):
            allowed = f"2 to {len(nodes)}" if len(nodes) > 2 else "2"
            raise RequestError("replicas", replicas, f"{allowed}, as {len(nodes)} nodes are named")
        self._replicas = replicas
        self._retry_s = retry_s
        self.url = f"{self.url}?replicas={replicas}"
        self._changed = threading.Condition()
        self._silent: set[int] = set()
        self._owners: dict[str, int] = {}  # by the identity of a node's process
        self._begun: dict[str, int] = {}  # the generation of each job
        self._told = set[str]()
        self._refused: dict[int, str] = {}  # why silent nodes stay out, though they answer
        self._open: list[_Copies] = []
        self._puts = self._remote_put = self._failed_put = 0
        # Of the last version, for which a node had no room; it may come again
        self._short: _Copies | None = None
        self._watching: threading.Thread | None = None
        self._closed = threading.Event()

    @property
    def reads_memory(self) -> bool:
        return any(node.reads_memory for node in self._nodes)

    def put(self, shard: Shard, acknowledged: Callable[[Level], None]) -> None:
        """See :meth:`Tier.put`; returns when ``replicas`` nodes have verified this part.

        Where a node had no room, the same shard may be put again: the others keep what they have.
        """
        check_job(shard.job)
        shard.check()
        with self._changed:
            self._check_open()
            self._puts += 1
            copies = self._short
            self._short = None
            if copies is None or copies.shard is not shard:
                copies = _Copies(shard, acknowledged, self._replicas, self._puts, self._identity)
            there = copies.there
            now = time.monotonic()
            short = self._failed_put > self._remote_put or any(c.overdue(now) for c in self._open)
            waiting = deque(n for n in range(len(self._nodes)) if n not in self._silent | there)
            if short:
                count = len(waiting)
            else:
                count = min(self._replicas - len(there), len(waiting))
            self._open.append(copies)
        errors: list[Exception] = []

        def send(_: int) -> None:
            """Send to the next node until one has it."""
            while True:
                try:
                    number = waiting.popleft()
                except IndexError:
                    return
                try:
                    self._send(number, shard, copies)
                    return
                except TierBusyError as error:  # it may have room when the shard is put again
                    errors.append(error)
                except Exception as error:  # of any kind: a bug here must not count as a copy
                    errors.append(error)
                    copies.ended(number, error)
                    if isinstance(error, UnreachableError):
                        self._lost(number, error)

        at_once(send, range(count))
        try:
            copies.sent(errors)
        except TierBusyError:
            with self._changed:
                self._open.remove(copies)
                self._short = copies
            raise
        finally:
            self._watch()

    def _send(self, number: int, shard: Shard, copies: _Copies) -> None:
        node = self._nodes[number]
        if not node.identity:
            node.greet()
        self._claim(number, node.identity)
        copies.sending(number)

        identity = node.identity

        def reached(level: Level) -> None:
            copies.reached(number, level, identity)

        def lost(reason: CheckpointError) -> None:
            copies.ended(number, reason)

        node.put(replace(shard, lost=lost), reached)
        copies.taken(number)

    def _identity(self, number: int) -> str:
        """The process that a node is now; empty if it does not answer."""
        try:
            self._nodes[number].greet()
        except CheckpointError:
            return ""
        return self._nodes[number].identity

    def _claim(self, number: int, identity: str) -> None:
        """Count a node by one of its names, or addresses.

        Raises CheckpointError: it counts by another one.
        """
        with self._changed:  # puts to both may be under way
            if identity:
                owner = self._owners.setdefault(identity, number)
            else:
                owner = number
            if owner != number and self._nodes[owner].identity == identity:
                raise CheckpointError(
                    f"{self._nodes[number].url} is the same memory node as {self._nodes[owner].url}"
                )
            self._owners[identity] = number

    def _lost(self, number: int, error: CheckpointError) -> None:
        """A node does not answer: send to others until it does."""
        with self._changed:
            if number in self._silent or self._closed.is_set():
                return
            self._silent.add(number)
            self._nodes[number].identity = ""
            left = len(self._nodes) - len(self._silent)
        rest = f"{left} of {len(self._nodes)} nodes are left"
        if left >= self._replicas:
            enough = ""
        else:
            enough = f"; no version is remote until {self._replicas} answer"
        log.warning("%s; %s%s", error, rest, enough)

    def _watch(self) -> None:
        """Forget checkpoints that have ended; watch the others, and silent nodes."""
        with self._changed:
            for copies in list(self._open):
                if copies.remote:
                    self._remote_put = max(self._remote_put, copies.put)
                elif copies.over:
                    self._failed_put = max(self._failed_put, copies.put)
                if copies.over:
                    self._open.remove(copies)
            if (
                self._closed.is_set()
                or not (self._silent or self._open)
                or self._watching is not None
            ):
                return
            self._watching = threading.Thread(
                target=self._ask_again, name="deepvm-silent-nodes", daemon=True
            )
            self._watching.start()

    def _ask_again(self) -> None:
        """Poll silent nodes and those with overdue checkpoints until there are none."""
        while not self._closed.wait(self._retry_s):
            now = time.monotonic()
            with self._changed:
                silent = set(self._silent)
                late = [c for c in self._open if c.overdue(now)]
            doubtful = {n for c in late for n in c.awaited} - silent
            for number in sorted(silent | doubtful):
                try:
                    self._nodes[number].greet()
                    for job, epoch in [*self._begun.items()]:  # it may have missed that
                        self._nodes[number].begin(job, epoch)
                except Exception as error:
                    # Of any kind: without this thread a silent node stays out for good
                    if number in doubtful and isinstance(error, UnreachableError):
                        self._lost(number, error)
                        silent.add(number)
                    elif not isinstance(error, UnreachableError) and self._refused.get(
                        number
                    ) != str(error):
                        self._refused[number] = str(error)
                        log.warning(
                            "%s answers, and gets no versions: %s", self._nodes[number].url, error
                        )
                    continue
                if number in silent:
                    silent.remove(number)
                    with self._changed:
                        self._silent.discard(number)
                    log.warning("%s answers: it gets versions from now on", self._nodes[number].url)
            for copies in late:
                for number in copies.awaited & silent:
                    copies.ended(
                        number,
                        CheckpointError(f"{self._nodes[number].url} does not answer any more"),
                    )
            self._watch()
            with self._changed:
                if not self._silent and not self._open:
                    self._watching = None
                    return

    def begin(self, job: str, epoch: int) -> None:
        """See :meth:`Tier.begin`.

        Those that miss it leave an older generation fewer nodes than it needs.

        They learn of it when they answer again; :meth:`versions` leaves out what the older one
        completed there.
        """
        self._begun[job] = epoch
        there = {number for number, _ in self._ask(lambda node: node.begin(job, epoch))}
        for number in {*range(len(self._nodes))} - there:
            self._lost(
                number,
                UnreachableError(f"{self._nodes[number].url} has not heard of generation {epoch}"),
            )
        self._watch()

    def versions(self, job: str) -> tuple[CommitRecord, ...]:
        """See :meth:`Tier.versions`: includes checkpoints with fewer copies than requested.

        Raises CheckpointError: so many nodes are silent that the newest acknowledged version may be
        on those alone.
        """
        found: dict[tuple[int, int, tuple[int, ...], str], list[tuple[int, CommitRecord]]] = {}
        parts = set[tuple[int, int]]()
        for number, (rows, own) in self._ask(lambda node: node.look(job)):
            parts |= own
            for row in rows:
                found.setdefault((row.version, row.size, row.crcs, row.layout), []).append(
                    (number, row)
                )
        if not found:
            same = {of for _, of in parts} == {len(self._nodes)}
            refuse_parts(
                job, self.url, parts, f"go on with {self.url.partition('?')[0]}" if same else ""
            )
        records = []
        for copies in found.values():
            row = max((row for _, row in copies), key=lambda row: row.created)
            facts = {f.name: getattr(row, f.name) for f in fields(CommitRecord)}
            facts["epoch"] = max(row.epoch for _, row in copies)
            records.append(ReplicatedRecord(**facts, copies=tuple(copies)))
        # A newer generation began with what was acknowledged before: what an older one went on with
        # never counts. A run without a number is no generation.
        newest = max((r.epoch for r in records), default=0)
        first = min((r.version for r in records if r.epoch == newest), default=0)
        late = [r for r in records if 0 < r.epoch < newest and r.version >= first]
        for record in late:
            records.remove(record)
            number = record.version
            log.warning("version %d of %s is left out: generation %d began", number, job, newest)
        # Of one number there may be two: of a run that went back, and of the one before it.
        return tuple(sorted(records, key=lambda r: (r.version, r.created), reverse=True))

    def damaged(self, job: str) -> tuple[Damage, ...]:
        """See :meth:`Tier.damaged`: those of which no node has a good copy."""
        whole = {record.version for record in self.versions(job)}
        rows = self._ask(lambda node: node.damaged(job))
        found = {
            d.version: replace(d, problem=f"{self._nodes[n].url}: {d.problem}")
            for n, bad in rows
            for d in bad
        }
        return tuple(found[number] for number in sorted(found.keys() - whole, reverse=True))

    def set_aside(self, job: str, versions: Collection[int]) -> None:
        self._ask(lambda node: node.set_aside(job, versions))

    def fetch(self, manifest: CommitRecord, folder: Path) -> Path:
        """See :meth:`Tier.fetch`: the first copy that is undamaged."""
        problems: list[Exception] = []
        for number, copy in manifest.copies if isinstance(manifest, ReplicatedRecord) else ():
            try:
                return self._nodes[number].fetch(copy, folder)
            except CheckpointError as error:
                problems.append(error)
                log.warning(
                    "a copy of version %d of %s is skipped: %s",
                    manifest.version,
                    manifest.job,
                    error,
                )
        if not problems:
            raise CheckpointError(
                f"{self.url}: version {manifest.version} of {manifest.job} is not here"
            )
        raise next((p for p in problems if not isinstance(p, DamagedError)), problems[0])

    def settle(self, limit_s: float) -> bool:
        with self._changed:
            waiting = list(self._open)
        return all_settled([copies.wait for copies in waiting], limit_s)

    def close(self) -> None:
        self._closed.set()
        super().close()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise CheckpointError(f"{self.url}: the tier is closed")

    def _ask(self, question: Callable[[TcpTier], _T]) -> list[tuple[int, _T]]:
        """The answers by the node's number.

        Raises CheckpointError: too few nodes answer, see :meth:`versions`; or one refuses, which is
        no silence.
        """
        errors: list[UnreachableError] = []
        answers: list[tuple[int, _T]] = []
        for number, future in enumerate(at_once(question, self._nodes)):
            try:
                answers.append((number, future.result()))
            except UnreachableError as error:
                errors.append(error)
        if len(errors) >= self._replicas:
            raise CheckpointError(
                f"{len(errors)} of {len(self._nodes)} nodes do not answer, and with"
                f" {self._replicas} replicas what was acknowledged may be on those alone; leave"
                " those out of the URL"
                f" that are gone for good, or still to come: {errors[0]}"
            )
        for text in map(str, errors):
            if text not in self._told:
                self._told.add(text)
                log.warning(
                    "a memory node does not answer; another one has what was acknowledged: %s", text
                )
        return answers


class _Copies:
    """What became of one version on the nodes, and what the trainer knows of it.

    Attributes:
        put: counts them. remote: it is acknowledged. over: no more reports follow.
    """

    def __init__(
        self,
        shard: Shard,
        acknowledged: Callable[[Level], None],
        needed: int,
        put: int,
        identity: Callable[[int], str],
    ) -> None:
        """``identity``: asks a node which process it is now."""
        self.shard = shard
        self._acknowledged = acknowledged
        self._needed = needed
        self.put = put
        self._ask_identity = identity
        self._change = threading.Condition(threading.RLock())
        self._taken: set[int] = set()
        self._remote: set[int] = set()
        self._since: dict[int, tuple[float, str]] = {}  # when a node had it, and as which process
        self._durable: set[int] = set()
        self._ended: dict[int, Exception] = {}
        self._sent_s: float | None = None
        self.remote = self.over = False

    @property
    def there(self) -> set[int]:
        """Nodes that have their part, as far as is known."""
        with self._change:
            gone = {
                number for number, why in self._ended.items() if isinstance(why, VersionGoneError)
            }
            return (self._taken | self._remote) - gone

    @property
    def awaited(self) -> set[int]:
        """Nodes that took their part and have not confirmed the version."""
        with self._change:
            return self._taken - self._remote - self._ended.keys()

    def overdue(self, now: float) -> bool:
        """Whether it was sent long ago and is still not acknowledged."""
        return (
            self._sent_s is not None
            and not (self.remote or self.over)
            and now - self._sent_s > _OVERDUE_S
        )

    def sending(self, number: int) -> None:
        """A node gets this rank's part, maybe again: an earlier loss no longer counts."""
        with self._change:
            if self._ended.pop(number, None) is not None:
                self._taken.discard(number)
                self._since.pop(number, None)

    def taken(self, number: int) -> None:
        """A node has verified this rank's part."""
        with self._change:
            self._taken.add(number)

    def reached(self, number: int, level: Level, identity: str) -> None:
        """A node has the whole version, in the memory of the process ``identity``."""
        with self._change:
            self._since.setdefault(number, (time.monotonic(), identity))
            others = self._remote - self._durable - {number}
            ask = not self.remote and len(self._remote | {number}) >= self._needed
        # Not under the lock: it takes a while
        gone = [other for other in others if ask and self._lost(other)]
        with self._telling():
            for other in gone:
                self._remote.discard(other)
                self._ended[other] = VersionGoneError(
                    f"version {self.shard.version}: a memory node has lost it"
                )
            self._remote.add(number)
            if level is Level.DURABLE:
                self._durable.add(number)

    def ended(self, number: int, reason: Exception) -> None:
        """A node will say nothing more."""
        with self._telling():
            if isinstance(reason, VersionGoneError):
                self._remote.discard(number)
            self._ended.setdefault(number, reason)

    def _lost(self, number: int) -> bool:
        """Whether a node that had the checkpoint has restarted since, as its identity shows."""
        since, identity = self._since[number]
        stale = bool(identity) and time.monotonic() - since > _STALE_S
        return stale and self._ask_identity(number) not in ("", identity)

    def sent(self, errors: Sequence[Exception]) -> None:
        """No node is being sent to any more. Raises CheckpointError: too few took this part."""
        with self._telling():
            there = (
                self.there
            )  # of an answer that was lost the node may have reported in another way
            if len(there) < self._needed:
                if errors and all(isinstance(e, TierBusyError) for e in errors):
                    raise errors[0]
                self._finish()
                known = [*errors, *self._ended.values()]
                why = next(
                    (e for e in known if not isinstance(e, TierBusyError)),
                    "the others do not answer",
                )
                raise CheckpointError(
                    f"version {self.shard.version} is on {len(there)} of {self._needed} memory"
                    f" nodes: {why}"
                )
            self._taken = there
            self._sent_s = time.monotonic()

    def wait(self, limit_s: float) -> bool:
        """Wait until no more reports follow; False on timeout."""
        with self._change:
            return self._change.wait_for(lambda: self.over, limit_s)

    def _finish(self) -> None:
        self.over = True
        self._change.notify_all()

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Make a change, then notify the trainer, under the lock, so that levels stay in order."""
        with self._change:
            yield
            if self.over:
                return
            if not self.remote and len(self._remote) >= self._needed:
                self.remote = True
                self._acknowledged(Level.REMOTE)
            if self.remote and self._durable:
                self._finish()
                self._acknowledged(Level.DURABLE)
            elif self._sent_s is not None:
                left = self._taken - self._ended.keys()
                if self.remote:
                    hopeless = not left - self._durable
                else:
                    hopeless = len(self._remote | left) < self._needed
                if hopeless:
                    self._finish()
                    self.shard.lost(self._reason())

    def _reason(self) -> CheckpointError:
        for _, reason in sorted(self._ended.items()):
            if isinstance(reason, CheckpointError):
                return reason
            return CheckpointError(str(reason))
        return CheckpointError(f"version {self.shard.version} is not on enough nodes")
