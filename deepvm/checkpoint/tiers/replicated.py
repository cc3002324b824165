"""``tcp://a:7070,b:7070?replicas=2``: memory nodes of which so many keep each checkpoint, whole.

Every rank sends to the first nodes of the list that answer, and to the next one instead of one
that fails. Where ranks chose differently the checkpoint stays unacknowledged, and until one is
acknowledged again all nodes get them. What a node missed is not copied to it. A reader needs all
but ``replicas - 1`` nodes to answer.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from deepvm.checkpoint.files.file_names import check_job
from deepvm.checkpoint.format.manifest import Acknowledge, CommitRecord, Damage, Level, Shard
from deepvm.checkpoint.network.client import UnreachableError
from deepvm.checkpoint.tiers.base import Tier, all_settled, fulfil, log
from deepvm.checkpoint.tiers.tcp import TcpTier, refuse_parts
from deepvm.errors import (
    CheckpointError,
    DamagedError,
    RequestError,
    TierBusyError,
    VersionGoneError,
)
from deepvm.io.threads import start_thread
from deepvm.records import dataclass, replace

MOST_NODES = 16
_RETRY_S = 1.0  # between questions whether a node is there again
_OVERDUE_S = 5.0  # a checkpoint that all should have by now
_STALE_S = 1.0  # a node that had its copy so long ago may have lost it since
_T = TypeVar("_T")


class NodeGroup(Tier):
    """Nodes, in the same order in every run."""

    streams = True

    def __init__(self, nodes: Sequence[TcpTier], limit: int) -> None:
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
    """Call ``work`` as :func:`map` does, each in a thread of its own, and wait for all."""
    calls = [(Future[_T](), *each) for each in zip(*arguments, strict=True)]
    # Not an executor: those refuse work at the end of a program, when the last checkpoint is still
    # to be sent.
    threads = [
        start_thread(fulfil, future, work, *each, name="deepvm-nodes") for future, *each in calls
    ]
    for thread in threads:
        thread.join()
    return [future for future, *_ in calls]


@dataclass(frozen=True)
class ReplicatedRecord(CommitRecord):
    """A checkpoint and its copies."""

    copies: tuple[tuple[int, CommitRecord], ...] = ()  # number of a node, and its record


class ReplicatedTier(NodeGroup):
    """Memory nodes of which ``replicas`` keep each checkpoint."""

    form = "tcp://host:port,host:port?replicas=2"

    def __init__(
        self, nodes: Sequence[TcpTier], replicas: int, *, retry_s: float = _RETRY_S
    ) -> None:
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
        self._warned = set[str]()
        self._refused: dict[int, str] = {}  # why silent nodes stay out, though they answer
        self._open: list[_Copies] = []
        self._puts = self._remote_put = self._failed_put = 0
        # Of the last checkpoint, for which a node had no space; it may come again
        self._short: _Copies | None = None
        self._watching: threading.Thread | None = None
        self._closed = threading.Event()

    @property
    def reads_memory(self) -> bool:
        return any(node.reads_memory for node in self._nodes)

    def put(self, shard: Shard, acknowledged: Acknowledge) -> None:
        """Returns when ``replicas`` nodes have it; a busy one may be sent the same shard again."""
        check_job(shard.job)
        shard.check()
        with self._changed:
            if self._closed.is_set():
                raise CheckpointError(f"{self.url}: the tier is closed")
            self._puts += 1
            copies = self._short
            self._short = None
            if copies is None or copies.shard is not shard:
                copies = _Copies(shard, acknowledged, self._replicas, self._puts, self._identity)
            there = copies.there
            now = time.monotonic()
            short = self._failed_put > self._remote_put or any(c.overdue(now) for c in self._open)
            waiting = deque(n for n in range(len(self._nodes)) if n not in self._silent | there)
            count = len(waiting)
            if not short:
                count = min(self._replicas - len(there), count)
            self._open.append(copies)
        errors: list[Exception] = []

        def send(_: int) -> None:
            while True:
                with self._changed:
                    if not waiting:
                        return
                    number = waiting.popleft()
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

    def _send(self, number: int, shard: Shard, copies: "_Copies") -> None:
        node = self._nodes[number]
        identity = node.identity or node.greet()
        self._claim(number, identity)
        copies.sending(number)
        lost = partial(copies.ended, number)
        node.put(replace(shard, lost=lost), partial(copies.reached, number, identity))
        copies.taken(number)

    def _identity(self, number: int) -> str:
        try:
            return self._nodes[number].greet()
        except CheckpointError:
            return ""

    def _claim(self, number: int, identity: str) -> None:
        with self._changed:  # puts to both may be under way
            owner = number
            if identity:
                owner = self._owners.setdefault(identity, number)
            if owner != number and self._nodes[owner].identity == identity:
                raise CheckpointError(
                    f"{self._nodes[number].url} is the same memory node as {self._nodes[owner].url}"
                )
            self._owners[identity] = number

    def _lost(self, number: int, error: CheckpointError) -> None:
        with self._changed:
            if number in self._silent or self._closed.is_set():
                return
            self._silent.add(number)
            self._nodes[number].identity = ""
            left = len(self._nodes) - len(self._silent)
        text = f"{error}; {left} of {len(self._nodes)} nodes are left"
        if left < self._replicas:
            text += f"; no checkpoint is remote until {self._replicas} answer"
        log.warning("%s", text)

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
            if self._watching is None and self._watched and not self._closed.is_set():
                self._watching = start_thread(self._ask_again, name="deepvm-silent-nodes")

    @property
    def _watched(self) -> bool:
        return bool(self._silent or self._open)

    def _ask_again(self) -> None:
        """Poll silent nodes and those with overdue checkpoints until there are none."""
        while not self._closed.wait(self._retry_s):
            now = time.monotonic()
            with self._changed:
                silent = set(self._silent)
                late = [c for c in self._open if c.overdue(now)]
            doubtful = {n for c in late for n in c.awaited} - silent
            for number in sorted(silent | doubtful):
                node = self._nodes[number]
                try:
                    node.greet()
                    for job, epoch in list(self._begun.items()):  # it may have missed that
                        node.begin(job, epoch)
                except UnreachableError as error:
                    if number in doubtful:
                        self._lost(number, error)
                        silent.add(number)
                # Of any kind: without this thread a silent node stays out for good
                except Exception as error:
                    if self._refused.get(number) != str(error):
                        self._refused[number] = str(error)
                        log.warning("%s answers, and gets no checkpoints: %s", node.url, error)
                else:
                    if number in silent:
                        silent.remove(number)
                        with self._changed:
                            self._silent.discard(number)
                        log.warning("%s answers: it gets checkpoints from now on", node.url)
            for copies in late:
                for number in copies.awaited & silent:
                    url = self._nodes[number].url
                    copies.ended(number, CheckpointError(f"{url} does not answer any more"))
            self._watch()
            with self._changed:
                if not self._watched:
                    self._watching = None
                    return

    def begin(self, job: str, epoch: int) -> None:
        self._begun[job] = epoch
        there = {number for number, _ in self._ask(lambda node: node.begin(job, epoch))}
        for number in {*range(len(self._nodes))} - there:
            url = self._nodes[number].url
            self._lost(number, UnreachableError(f"{url} has no record of generation {epoch}"))
        self._watch()

    def versions(self, job: str) -> tuple[CommitRecord, ...]:
        """Also those with few copies. Raises CheckpointError: the newest may be on silent nodes."""
        found: dict[Hashable, list[tuple[int, CommitRecord]]] = {}
        parts = set[tuple[int, int]]()
        for number, (rows, own, _) in self._ask(lambda node: node.look(job)):
            parts |= own
            for row in rows:
                same = (row.version, row.size, row.crcs, row.layout)
                found.setdefault(same, []).append((number, row))
        if not found:
            shared = {of for _, of in parts} == {len(self._nodes)}
            advice = ""
            if shared:
                advice = f"continue with {self.url.partition('?')[0]}"
            refuse_parts(job, self.url, parts, advice)
        records = []
        for copies in found.values():
            row = max((row for _, row in copies), key=lambda row: row.created)
            epoch = max(row.epoch for _, row in copies)
            facts = {**vars(row), "epoch": epoch, "copies": tuple(copies)}
            records.append(ReplicatedRecord(**facts))
        # A newer generation started with what was acknowledged before: what an older one continued
        # with never counts. A run without a number is no generation.
        newest = max((r.epoch for r in records), default=0)
        first = min((r.version for r in records if r.epoch == newest), default=0)
        for record in list(records):
            if 0 < record.epoch < newest and record.version >= first:
                records.remove(record)
                why = f"generation {newest} began"
                log.warning("version %d of %s is left out: %s", record.version, job, why)
        # Of one number there may be two: of a run that went back, and of the one before it.
        return tuple(sorted(records, key=lambda r: (r.version, r.created), reverse=True))

    def damaged(self, job: str) -> tuple[Damage, ...]:
        """Those of which no node has a good copy."""
        whole = {record.version for record in self.versions(job)}
        found = {}
        for number, rows in self._ask(lambda node: node.damaged(job)):
            for damage in rows:
                problem = f"{self._nodes[number].url}: {damage.problem}"
                found[damage.version] = replace(damage, problem=problem)
        return tuple(found[version] for version in sorted(found.keys() - whole, reverse=True))

    def set_aside(self, job: str, versions: Collection[int]) -> None:
        self._ask(lambda node: node.set_aside(job, versions))

    def fetch(self, manifest: CommitRecord, folder: Path) -> Path:
        problems: list[Exception] = []
        name = f"version {manifest.version} of {manifest.job}"
        for number, copy in manifest.copies if isinstance(manifest, ReplicatedRecord) else ():
            try:
                return self._nodes[number].fetch(copy, folder)
            except CheckpointError as error:
                problems.append(error)
                log.warning("a copy of %s is skipped: %s", name, error)
        if not problems:
            raise CheckpointError(f"{self.url}: {name} is not here")
        raise next((p for p in problems if not isinstance(p, DamagedError)), problems[0])

    def settle(self, limit_s: float) -> bool:
        with self._changed:
            waiting = list(self._open)
        return all_settled([copies.wait for copies in waiting], limit_s)

    def close(self) -> None:
        self._closed.set()
        super().close()

    def _ask(self, question: Callable[[TcpTier], _T]) -> list[tuple[int, _T]]:
        """The answers with the nodes' numbers. A node that refuses is not silent: it raises."""
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
                f" those out of the URL that are gone for good, or still to come: {errors[0]}"
            )
        for text in {str(error) for error in errors} - self._warned:
            self._warned.add(text)
            log.warning(
                "a memory node does not answer; another one has what was acknowledged: %s", text
            )
        return answers


@dataclass(eq=False)
class _Copies:
    """What became of one checkpoint on the nodes, and what the trainer knows of it."""

    shard: Shard
    acknowledged: Acknowledge
    needed: int
    put: int  # counts them
    identity: Callable[[int], str]  # asks a node which process it is now

    def __post_init__(self) -> None:
        self._change = threading.Condition(threading.RLock())
        self._taken: set[int] = set()
        self._remote: set[int] = set()
        self._since: dict[int, tuple[float, str]] = {}  # when a node had it, and as which process
        self._durable: set[int] = set()
        self._ended: dict[int, Exception] = {}
        self._sent_s: float | None = None
        self.remote = False  # acknowledged
        self.over = False  # no more reports follow

    @property
    def there(self) -> set[int]:
        """Nodes that have their part, as far as is known."""
        with self._change:
            gone = {n for n, why in self._ended.items() if isinstance(why, VersionGoneError)}
            return (self._taken | self._remote) - gone

    @property
    def awaited(self) -> set[int]:
        """Nodes that took their part and have not confirmed the checkpoint."""
        with self._change:
            return self._taken - self._remote - self._ended.keys()

    def overdue(self, now: float) -> bool:
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
        with self._change:
            self._taken.add(number)

    def reached(self, number: int, identity: str, level: Level) -> None:
        """A node has the whole checkpoint."""
        with self._change:
            self._since.setdefault(number, (time.monotonic(), identity))
            others = self._remote - self._durable - {number}
            ask = not self.remote and len(self._remote | {number}) >= self.needed
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
        with self._telling():
            if isinstance(reason, VersionGoneError):
                self._remote.discard(number)
            self._ended.setdefault(number, reason)

    def _lost(self, number: int) -> bool:
        """Whether a node that had the checkpoint has restarted since, as its identity shows."""
        since, identity = self._since[number]
        stale = bool(identity) and time.monotonic() - since > _STALE_S
        return stale and self.identity(number) not in ("", identity)

    def sent(self, errors: Sequence[Exception]) -> None:
        """No node is being sent to any more. Raises CheckpointError: too few took this part."""
        with self._telling():
            # Of an answer that was lost the node may have reported in another way
            there = self.there
            if len(there) < self.needed:
                reasons = [e for e in errors if not isinstance(e, TierBusyError)]
                if errors and not reasons:
                    raise errors[0]
                self._finish()
                reasons += self._ended.values()
                why = reasons[0] if reasons else "the others do not answer"
                raise CheckpointError(
                    f"version {self.shard.version} is on {len(there)} of {self.needed} memory"
                    f" nodes: {why}"
                )
            self._taken = there
            self._sent_s = time.monotonic()

    def wait(self, limit_s: float) -> bool:
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
            if not self.remote and len(self._remote) >= self.needed:
                self.remote = True
                self.acknowledged(Level.REMOTE)
            if self.remote and self._durable:
                self._finish()
                self.acknowledged(Level.DURABLE)
            elif self._sent_s is not None:
                left = self._taken - self._ended.keys()
                if self.remote:
                    hopeless = not left - self._durable
                else:
                    hopeless = len(self._remote | left) < self.needed
                if hopeless:
                    self._finish()
                    self.shard.lost(self._reason())

    def _reason(self) -> CheckpointError:
        none = f"version {self.shard.version} is not on enough nodes"
        reason = self._ended[min(self._ended)] if self._ended else none
        if isinstance(reason, CheckpointError):
            return reason
        return CheckpointError(str(reason))
