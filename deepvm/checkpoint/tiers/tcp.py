"""``tcp://host:port``: a memory node and its disk; a part goes over up to two connections."""

import contextlib
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Collection, Generator, Iterator
from pathlib import Path

from deepvm.checkpoint.files.file_names import check_job
from deepvm.checkpoint.format.layout import CHUNK_BYTES, Ranges, runs
from deepvm.checkpoint.format.manifest import Acknowledge, CommitRecord, Damage, Level, Shard
from deepvm.checkpoint.network.client import AckPoller, Link, PendingVersion, Token, unreachable
from deepvm.checkpoint.network.endpoint import Address, Endpoint
from deepvm.checkpoint.network.memory_file import location_of
from deepvm.checkpoint.network.protocol import (
    FRAME_S,
    MOST_DOCUMENT,
    BrokenError,
    Frame,
    Kind,
    unexpected,
)
from deepvm.checkpoint.tiers.base import Tier, all_settled, download
from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.errors import CheckpointError, RequestError, TierBusyError
from deepvm.io.failpoints import point
from deepvm.io.host_info import cores
from deepvm.io.threads import start_thread
from deepvm.records import KW_ONLY, dataclass

_WORTH_TWO = 16 * 2**20
_TRIES = 5
_ROUNDS = 3
_PAUSE_S = 0.1


@dataclass(eq=False)
class CommitBarrier:
    """Keeps puts to several memory nodes in step: none completes before all have their part."""

    count: int
    hold: int | None  # the oldest version that must stay in the nodes' folders; None: they decide
    limit_s: float  # how long, in all, each sender waits for the others

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.limit_s
        self._reached: dict[str, set[int]] = {}
        self._change = threading.Condition()
        self.error: BaseException | None = None

    def wait(self, stage: str) -> None:
        with self._change:
            here = self._reached.setdefault(stage, set())
            here.add(threading.get_ident())
            self._change.notify_all()
            left_s = self._deadline - time.monotonic()
            if not self._change.wait_for(
                lambda: len(here) >= self.count or self.error is not None, left_s
            ):
                raise CheckpointError("another memory node was too slow")
            if isinstance(self.error, TierBusyError):
                raise TierBusyError("another memory node has no space")
            if self.error is not None:
                raise CheckpointError("another memory node failed")

    def fail(self, error: BaseException) -> None:
        with self._change:
            self.error = self.error or error
            self._change.notify_all()


@dataclass(eq=False, repr=False)  # not the token
class TcpTier(Tier):
    """A memory node; the first call connects. Raises RequestError, naming the address."""

    streams = True
    reads_memory = False  # known when it was last asked for something
    address: str | Endpoint
    session: str  # 1 to 64 characters
    token: Token | bytes
    _: KW_ONLY
    flows: int | None = None  # connections for one part; None: two, or one if cores are few
    wire_bytes: int = 2**22  # of one message, 4096 to CHUNK_BYTES
    limit_s: float = 30.0  # of put besides Shard.moving_s, and of the node's for one message
    await_s: float = 300.0  # for a level, in the background, besides Shard.moving_s

    def __post_init__(self) -> None:
        self._endpoint: Endpoint
        if isinstance(self.address, str):
            self._endpoint = Address.parse(self.address)
        else:
            self._endpoint = self.address
        self.url = self._endpoint.url
        self.shared = self._endpoint.shared
        self._lock = threading.Lock()
        self._idle: list[Link] = []
        self._pollers: dict[tuple[str, int], AckPoller] = {}
        self._epochs = dict[str, int]()
        self._closed = False
        self.identity = ""  # of its process, as it answered last; empty if it says none

    def greet(self) -> str:
        """Its identity. Raises CheckpointError: it is not there."""
        with self._reader():
            return self.identity

    def put(
        self, shard: Shard, acknowledged: Acknowledge, barrier: CommitBarrier | None = None
    ) -> None:
        """Broken connections are reopened, and only what is missing is sent again."""
        deadline = time.monotonic() + self.limit_s + shard.moving_s
        check_job(shard.job)
        shard.check()
        # The bytes of this call: those of another one must not be mixed in
        attempt_id = secrets.token_hex(8)
        pending: PendingVersion | None = None
        try:
            for attempt in range(_TRIES):
                try:
                    with self._links(shard, deadline) as links:
                        poller = self._poller(shard)
                        if pending is None:
                            welcome = links[0].welcome
                            lacks = ""
                            if not welcome.get("persists"):
                                lacks = str(welcome.get("lacks") or "it has no disk")
                            pending = PendingVersion(
                                shard.version, acknowledged, shard.lost, lacks, shard.moving_s
                            )
                        received = self._reserve(links, shard, attempt_id, deadline, barrier)
                        poller.add(pending)  # there is space, and it cannot be complete yet
                        answer = self._send(links, shard, received, deadline, barrier)
                    break
                except OSError as error:
                    if attempt == _TRIES - 1 or time.monotonic() + _PAUSE_S > deadline:
                        raise unreachable(self._endpoint, error) from error
                    time.sleep(_PAUSE_S * (attempt + 1))
            assert pending is not None
            pending.sent = True
        except BaseException:
            if pending is not None:
                poller.discard(pending)
            raise
        level = Level.REMOTE
        if answer.get("durable"):
            level = Level.DURABLE
        if (answer.get("complete") or level is Level.DURABLE) and pending.reached(level):
            poller.discard(pending)

    def begin(self, job: str, epoch: int) -> None:
        """The node forgets it only with its folder or bucket."""
        self._epochs[job] = epoch
        with self._reader() as link:
            link.call(Kind.LIST, {"job": check_job(job), "epoch": epoch}, Kind.VERSIONS)
            # The checkpoints are asked for again by anyone who needs them.
            link.close()

    def settle(self, limit_s: float) -> bool:
        with self._lock:
            pollers = [*self._pollers.values()]
        return all_settled([poller.settle for poller in pollers], limit_s)

    def versions(self, job: str) -> tuple[CommitRecord, ...]:
        found, parts, _ = self.look(job)
        refuse_parts(job, self.url, parts)
        return found

    def damaged(self, job: str) -> tuple[Damage, ...]:
        return self.look(job)[2]

    def look(
        self, job: str
    ) -> tuple[tuple[CommitRecord, ...], set[tuple[int, int]], tuple[Damage, ...]]:
        """The checkpoints; which parts of shared ones it has, of how many; the damaged ones."""
        with self._reader() as link:
            answer = link.call(Kind.LIST, {"job": check_job(job)}, Kind.VERSIONS).body
            count = answer.get("count")
            if type(count) is not int or count < 0:
                raise BrokenError("invalid count")
            found = [
                _manifest(link.answer(Kind.MANIFEST, most=MOST_DOCUMENT)) for _ in range(count)
            ]
            if any(manifest.job != job for manifest in found):
                raise BrokenError("checkpoints of another job")
            try:  # an older node sends no parts and no damaged ones
                parts = {(int(number), int(of)) for number, of in answer.get("parts", ())}
                damaged = tuple(
                    Damage(int(number), str(problem), int(size))
                    for number, size, problem in answer.get("damaged", ())
                )
            except (TypeError, ValueError):
                raise BrokenError("malformed parts or damaged checkpoints") from None
            return tuple(found), parts, damaged

    def set_aside(self, job: str, versions: Collection[int]) -> None:
        with self._reader() as link:
            question = {"job": check_job(job), "versions": sorted(versions)}
            link.call(Kind.ASIDE, question, Kind.PONG, limit_s=self.limit_s)

    def fetch(self, manifest: CommitRecord, folder: Path) -> Path:
        name = f"{self.url}: version {manifest.version} of {manifest.job}"
        return download(self.stream(manifest), manifest, folder, name)

    def close(self) -> None:
        """Levels still awaited are not acknowledged (:meth:`settle`)."""
        with self._lock:
            links = self._idle
            pollers = self._pollers
            self._closed = True
            self._idle = []
            self._pollers = {}
        for link in links:
            link.close()
        for poller in pollers.values():
            poller.close()

    def stream(self, manifest: CommitRecord) -> Generator[memoryview, None, None]:
        """A checkpoint's bytes in order, unverified, pieces valid until the next."""
        with self._reader() as link:
            question = {"job": manifest.job, "version": manifest.version}
            frame = link.call(Kind.GET, question, Kind.MANIFEST, most=MOST_DOCUMENT)
            if _manifest(frame) != manifest:
                raise CheckpointError(
                    f"{self.url}: version {manifest.version} of {manifest.job} is another one"
                    " by now"
                )
            buffer = memoryview(bytearray(min(CHUNK_BYTES, manifest.size)))
            start = 0
            while start < manifest.size:
                kind, length = link.channel.header(idle_s=FRAME_S)
                if kind is not Kind.DATA:
                    raise unexpected(link.channel.rest(kind, length))
                header = link.channel.data_header(length)
                if header.offset != start or header.length > min(
                    manifest.size - start, len(buffer)
                ):
                    raise BrokenError("the node sends other bytes than were asked for")
                link.channel.read_into(buffer[: header.length], limit_s=FRAME_S)
                yield buffer[: header.length]
                start += header.length
            link.answer(Kind.END)

    @contextlib.contextmanager
    def _reader(self) -> Iterator[Link]:
        try:
            with contextlib.closing(self._connect()) as link:
                welcome = link.hello({"role": "reader"})
                self.identity = str(welcome.get("node", ""))
                self.reads_memory = link.channel.direct(welcome.get("peer"))
                yield link
        except OSError as error:
            raise unreachable(self._endpoint, error) from error

    def _connect(self, limit_s: float = 5.0) -> Link:
        if self._closed:
            raise CheckpointError(f"{self.url}: the tier is closed")
        return Link(self._endpoint, self.token, limit_s=min(limit_s, 5.0))

    def _greeting(self, shard: Shard) -> JsonDict:
        epoch = self._epochs.get(shard.job)
        return {
            **({} if epoch is None else {"epoch": epoch}),
            "role": "sender",
            "job": shard.job,
            "session": self.session,
            "world": shard.layout.world,
            "rank": shard.rank,
            "layout": shard.layout.digest,
        }

    def _poller(self, shard: Shard) -> AckPoller:
        with self._lock:
            if self._closed:
                raise CheckpointError(f"{self.url}: the tier is closed")
            key = shard.job, shard.rank
            if key not in self._pollers:
                self._pollers[key] = AckPoller(
                    self.url, self._connect, self._greeting(shard), self.await_s
                )
            return self._pollers[key]

    @contextlib.contextmanager
    def _links(self, shard: Shard, deadline: float) -> Iterator[list[Link]]:
        """One or more connections of a known sender: pooled afterwards, closed on failure."""
        size = sum(s.length for s in shard.layout.shards[shard.rank])
        links: list[Link] = []
        good = False
        try:
            while len(links) < (self.flows or 2 if size >= _WORTH_TWO else 1):
                if links and not self.flows and cores() <= 2 and links[0].channel.within_machine:
                    break
                with self._lock:
                    link = self._idle.pop() if self._idle else None
                if link is not None and not link.channel.idle():
                    link.close()
                    link = None
                links.append(link or self._connect(_left(deadline)))
                welcome = links[-1].hello(
                    self._greeting(shard), limit_s=_left(deadline, self.limit_s)
                )
                if not welcome.get("layout"):
                    document = shard.layout.to_json()
                    limit_s = _left(deadline, self.limit_s)
                    links[-1].call(Kind.LAYOUT, document, Kind.PONG, limit_s=limit_s)
                    links[-1].welcome = {**welcome, "layout": True}
            yield links
            good = True
        except TierBusyError:
            good = True
            raise
        finally:
            with self._lock:
                good = good and not self._closed
                self._idle += links if good else []
            for each in () if good else links:
                each.close()

    def _reserve(
        self,
        links: list[Link],
        shard: Shard,
        put: str,
        deadline: float,
        barrier: CommitBarrier | None,
    ) -> Ranges:
        point("sender.before-reserve")
        question: JsonDict = {
            "version": shard.version,
            "put": put,
            "best": shard.best,
            "attempt": shard.attempt,
        }
        if barrier is not None and barrier.hold is not None:
            question["hold"] = barrier.hold
        memory = location_of(shard.image)
        if memory is not None and all(k.channel.direct(k.welcome.get("peer")) for k in links):
            question["memory"] = memory
        received = []
        for link in links:
            answer = link.call(Kind.RESERVE, question, limit_s=_left(deadline, self.limit_s))
            if answer.kind is Kind.RETRY_AFTER:
                why = answer.body.get("reason", "")
                raise TierBusyError(f"{self.url}: no space for version {shard.version}: {why}")
            if answer.kind is not Kind.CREDIT:
                raise unexpected(answer)
            link.reads_memory = "memory" in question and answer.body.get("memory") is True
            received.append(_ranges(answer, "received"))
        return received[0]

    def _send(
        self,
        links: list[Link],
        shard: Shard,
        received: Ranges,
        deadline: float,
        barrier: CommitBarrier | None,
    ) -> JsonObject:
        if barrier is not None:
            barrier.wait("room")
        cells = [
            (start, min(start + self.wire_bytes, offset + length))
            for offset, length in runs(shard.layout.shards[shard.rank])
            for start in range(offset, offset + length, self.wire_bytes)
        ]
        missing = deque(c for c in cells if not received.covers(*c))
        # A part's header holds a digest of the bytes after it, so it is sent last
        if barrier is not None:
            missing.rotate(-1)
        for _ in range(_ROUNDS):
            self._flow(links, shard, missing, deadline)
            if barrier is not None:
                # Wait until the bytes arrived: a checkpoint complete on only some nodes is useless.
                self._arrived(links[0], deadline)
                barrier.wait("sent")
            point("sender.before-commit")
            answer = links[0].call(
                Kind.COMMIT, {"version": shard.version}, Kind.ACK, limit_s=_left(deadline)
            )
            if not len(_ranges(answer, "missing")):
                return answer.body
            # Something was damaged on its way. If it was the place of a piece, the node has its
            # bytes where others belong, which it would take for there: so all is sent again, as a
            # new attempt.
            self._reserve(links, shard, secrets.token_hex(8), deadline, barrier)
            missing = deque(cells)
        raise CheckpointError(
            f"{self.url}: bytes of version {shard.version} arrive damaged again and again"
        )

    def _arrived(self, link: Link, deadline: float) -> None:
        limit_s = _left(deadline, self.limit_s)
        if link.reads_memory:  # it was sent in no time, and the node reads it only now
            limit_s = _left(deadline)
        link.call(Kind.PING, b"", Kind.PONG, limit_s=limit_s)

    def _flow(
        self, links: list[Link], shard: Shard, missing: deque[tuple[int, int]], deadline: float
    ) -> None:
        errors: list[BaseException] = []

        def send(link: Link) -> None:
            try:
                while not errors:
                    try:
                        start, end = missing.popleft()
                    except IndexError:
                        break
                    shard.ready(end)
                    limit_s = _left(deadline, self.limit_s)
                    transmit = link.channel.send_data
                    if link.reads_memory:
                        transmit = link.channel.send_range
                    transmit(
                        start, shard.image[start:end], label="sender.mid-chunk", limit_s=limit_s
                    )
                # All of this connection is verified before the other one commits
                if link is not links[0]:
                    self._arrived(link, deadline)
            except BaseException as error:
                errors.append(link.explain(error))

        helpers = [start_thread(send, k, name="deepvm-tcp-flow") for k in links[1:]]
        send(links[0])
        for thread in helpers:
            thread.join(max(deadline - time.monotonic(), 0.0) + 1.0)
            if thread.is_alive():
                raise BrokenError("a connection hangs")
        if errors:
            # The node's answer is worth more than the error of a connection that broke with it.
            raise next((e for e in errors if not isinstance(e, OSError)), errors[0])


def refuse_parts(job: str, url: str, parts: Collection[tuple[int, int]], advice: str = "") -> None:
    """Raise CheckpointError if parts of a job's checkpoints exist: it would restart at 0."""
    if parts:
        (_, of), *_ = sorted(parts)
        advice = advice or f"continue with the URL that names all {of} of them, in the same order"
        raise CheckpointError(
            f"{url}: the checkpoints of {job} are shared by {of} nodes, each of which has a part:"
            f" {advice}, or name another job"
        )


def _left(deadline: float, most: float = math.inf) -> float:
    """Seconds for a message; a commit gets all that are left, as the node may read everything."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise BrokenError("it took too long")
    return min(left, most)


def _manifest(frame: Frame) -> CommitRecord:
    try:
        return CommitRecord.from_json(frame.raw)
    except RequestError:
        raise BrokenError("expected a manifest") from None


def _ranges(frame: Frame, name: str) -> Ranges:
    try:
        return Ranges((int(start), int(end)) for start, end in frame.body.get(name) or ())
    except (TypeError, ValueError):
        raise BrokenError("malformed ranges") from None
