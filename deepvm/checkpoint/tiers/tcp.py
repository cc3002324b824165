"""``tcp://host:port``: a memory node, and the disk behind it.

A rank's part goes over up to two connections at once, because one may not fill the network; when the node has verified
it, :meth:`TcpTier.put` returns. The rest, that others' parts came and all is on disk, is learnt in the background.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from deepvm.checkpoint.files.failpoints import point
from deepvm.checkpoint.files.file_names import check_job
from deepvm.checkpoint.format.layout import CHUNK_BYTES, Ranges, runs
from deepvm.checkpoint.format.manifest import Damage, Manifest
from deepvm.checkpoint.format.shard import Level, Shard
from deepvm.checkpoint.network.ack_poller import AckPoller, Pending
from deepvm.checkpoint.network.client import Address, Link, damage_in, manifest_in, pairs_in, unreachable
from deepvm.checkpoint.network.endpoint import Endpoint
from deepvm.checkpoint.network.protocol import FRAME_S, MOST_DOCUMENT, BrokenError, Kind
from deepvm.checkpoint.network.token import Token
from deepvm.checkpoint.tiers.base import Tier
from deepvm.checkpoint.tiers.commit_barrier import CommitBarrier
from deepvm.checkpoint.tiers.download import download
from deepvm.errors import CheckpointError, RequestError, TierBusyError
from deepvm.io.host_info import cores

WIRE_BYTES = 2**20
"""Bytes of one message: small enough to be hashed while they are in the processor's cache."""
_ANSWERS = {Level.REMOTE: "complete", Level.DURABLE: "durable"}
_WORTH_TWO, _TRIES, _ROUNDS, _PAUSE_S = 16 * 2**20, 5, 3, 0.1


class TcpTier(Tier):
    """A memory node."""

    streams = True

    def __init__(
        self,
        address: str | Endpoint,
        session: str,
        token: Token | bytes | str,
        *,
        flows: int | None = None,
        wire_bytes: int = WIRE_BYTES,
        limit_s: float = 30.0,
        await_s: float = 300.0,
    ) -> None:
        """Remember where; the first call connects.

        Args:
            address: ``tcp://host:port``, or ``tcps://`` for TLS; ``DEEPVM_TLS_CA`` may name the authority's file.
            session: a random id, the same on all ranks of one training run, another for the next run.
            token: what the node knows as well, see :func:`deepvm.checkpoint.network.token.token_from_environment`.
            flows: connections for one part; two unless given, one to a node with which this process shares two cores.
            wire_bytes: bytes of one message.
            limit_s: the longest that ``put`` blocks beside the time for the bytes (see ``Shard.moving_s``), and that
                the node may take for one message.
            await_s: how long a level is awaited in the background, beside that time as well.

        Raises:
            RequestError: naming the argument.
        """
        self._address: Endpoint = Address.parse(address) if isinstance(address, str) else address
        if not 0 < len(session) <= 64:
            raise RequestError("session", session, "1 to 64 characters")
        if not token:
            raise RequestError("token", "", "the memory node's token")
        if flows is not None and flows < 1 or not 4096 <= wire_bytes <= CHUNK_BYTES:
            raise RequestError("wire_bytes", wire_bytes, f"4096 to {CHUNK_BYTES}, over at least one flow")
        self.shared = self._address.shared
        self._token, self._session = token.encode() if isinstance(token, str) else token, session
        self._flows, self._wire_bytes = flows, wire_bytes
        self._limit_s, self._await_s = limit_s, await_s
        self._lock = threading.Lock()
        self._idle: list[Link] = []
        self._pollers: dict[tuple[str, int], AckPoller] = {}
        self._closed = False

    @property
    def url(self) -> str:
        """See :class:`Tier`."""
        return self._address.url

    def put(self, shard: Shard, acknowledged: Callable[[Level], None], barrier: CommitBarrier | None = None) -> None:
        """See :meth:`Tier.put`; returns when the node has verified this part, and may acknowledge later from a thread.

        Connections that break are made again, and only what is missing is sent again. ``barrier`` joins it to the
        puts to other nodes.
        """
        deadline = time.monotonic() + self._limit_s + shard.moving_s
        check_job(shard.job)
        shard.check()
        if not 0 <= shard.rank < shard.layout.world:
            raise RequestError("rank", shard.rank, f"0 to {shard.layout.world - 1}")
        pending = Pending(shard.version, acknowledged, shard.lost, moving_s=shard.moving_s)
        attempt_id = secrets.token_hex(8)  # the bytes of this call: those of another one must not be mixed in
        poller: AckPoller | None = None
        try:
            for attempt in range(_TRIES):
                try:
                    links = self._links(shard, deadline)
                    pending.expect(links[0].lacks)
                    poller = self._poller(shard)
                    answer = self._transfer(links, shard, attempt_id, deadline, barrier, partial(poller.add, pending))
                    break
                except OSError as error:
                    if attempt == _TRIES - 1 or time.monotonic() + _PAUSE_S > deadline:
                        raise unreachable(self._address, error) from error
                    time.sleep(_PAUSE_S * (attempt + 1))
            pending.sent = True
        except BaseException:
            if poller is not None:
                poller.discard(pending)
            raise
        levels = [level for level, name in _ANSWERS.items() if answer.get(name)]
        if levels and poller is not None and pending.reached(levels[-1]):
            poller.discard(pending)

    def settle(self, limit_s: float) -> bool:
        """Wait until every level that can be reached was acknowledged; False on timeout."""
        with self._lock:
            pollers, deadline = [*self._pollers.values()], time.monotonic() + limit_s
        return all([w.settle(max(deadline - time.monotonic(), 0.0)) for w in pollers])

    def versions(self, job: str) -> tuple[Manifest, ...]:
        """See :meth:`Tier.versions`."""
        with self._reader() as link:
            count = link.expect(Kind.VERSIONS, link.call(Kind.LIST, {"job": check_job(job)})).body.get("count")
            if type(count) is not int or count < 0:
                raise BrokenError("a count that is none")
            found = [manifest_in(link.expect(Kind.MANIFEST, link.answer(most=MOST_DOCUMENT))) for _ in range(count)]
            if any(manifest.job != job for manifest in found):
                raise BrokenError("versions of another job")
            return tuple(found)

    def damaged(self, job: str) -> tuple[Damage, ...]:
        """See :meth:`Tier.damaged`: those in the node's folder or bucket."""
        with self._reader() as link:
            return damage_in(link.expect(Kind.VERSIONS, link.call(Kind.LIST, {"job": check_job(job)})))

    def set_aside(self, job: str, versions: Collection[int]) -> None:
        """See :meth:`Tier.set_aside`: in the node's folder or bucket."""
        with self._reader() as link:
            question = {"job": check_job(job), "versions": sorted(versions)}
            link.expect(Kind.PONG, link.call(Kind.ASIDE, question, limit_s=self._limit_s))

    def fetch(self, manifest: Manifest, folder: Path) -> Path:
        """See :meth:`Tier.fetch`; the file is a new one in ``folder``, without a commit record."""
        name = f"{self.url}: version {manifest.version} of {manifest.job}"
        return download(self.stream(manifest), manifest, folder, name)

    def close(self) -> None:
        """See :meth:`Tier.close`; levels that are still awaited will not be acknowledged, see :meth:`settle`."""
        with self._lock:
            self._closed, pollers, links = True, list(self._pollers.values()), list(self._idle)
            self._pollers.clear()
            self._idle.clear()
        for link in links:
            link.close()
        for poller in pollers:
            poller.close()

    def stream(self, manifest: Manifest) -> Generator[memoryview, None, None]:
        """A version's bytes in order, unverified, in pieces of at most a chunk.

        Whoever has seen enough closes the iterator. A piece is valid until the next one is asked for.

        Raises:
            CheckpointError: it is gone, or another one by now.
        """
        with self._reader() as link:
            frame = link.call(Kind.GET, {"job": manifest.job, "version": manifest.version}, most=MOST_DOCUMENT)
            if manifest_in(link.expect(Kind.MANIFEST, frame)) != manifest:
                raise CheckpointError(f"{self.url}: version {manifest.version} of {manifest.job} is another one by now")
            buffer, start = memoryview(bytearray(min(CHUNK_BYTES, manifest.size))), 0
            while start < manifest.size:
                kind, length = link.channel.header(idle_s=FRAME_S)
                if kind is not Kind.DATA:
                    link.fail(link.channel.rest(kind, length))
                piece = link.channel.piece(length)
                if piece.offset != start or piece.length > min(manifest.size - start, len(buffer)):
                    raise BrokenError("the node sends other bytes than were asked for")
                link.channel.read_into(buffer[: piece.length], limit_s=FRAME_S)
                yield buffer[: piece.length]
                start += piece.length
            link.expect(Kind.END, link.answer())

    @contextlib.contextmanager
    def _reader(self) -> Any:
        try:
            link = self._connect()
            try:
                link.hello({"role": "reader"})
                yield link
            finally:
                link.close()
        except OSError as error:
            raise unreachable(self._address, error) from error

    def _soon(self, deadline: float) -> float:
        """What one message may take; only a commit, for which the node may have to read all, has the time for all."""
        return min(_left(deadline), self._limit_s)

    def _connect(self, limit_s: float = 5.0) -> Link:
        if self._closed:
            raise CheckpointError(f"{self.url}: the tier is closed")
        return Link(self._address, self._token, limit_s=min(limit_s, 5.0))

    def _greeting(self, shard: Shard) -> dict[str, Any]:
        return {
            "role": "sender",
            "job": shard.job,
            "session": self._session,
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
                self._pollers[key] = AckPoller(self._connect, self._greeting(shard), self._await_s)
            return self._pollers[key]

    def _links(self, shard: Shard, deadline: float) -> list[Link]:
        """Connections that know who is sending, one or more."""
        size = sum(s.length for s in shard.layout.shards[shard.rank])
        links: list[Link] = []
        try:
            while len(links) < (self._flows or 2 if size >= _WORTH_TWO else 1):
                if links and not self._flows and cores() <= 2 and links[0].channel.within_machine:
                    break
                with self._lock:
                    link = self._idle.pop() if self._idle else None
                if link is not None and not link.channel.idle():
                    link.close()
                    link = None
                links.append(link or self._connect(_left(deadline)))
                welcome = links[-1].hello(self._greeting(shard), limit_s=self._soon(deadline))
                if not welcome.get("layout"):
                    document, limit_s = shard.layout.to_json(), self._soon(deadline)
                    links[-1].expect(Kind.PONG, links[-1].call(Kind.LAYOUT, document, limit_s=limit_s))
                    links[-1].welcome = {**welcome, "layout": True}
        except BaseException:
            for link in links:
                link.close()
            raise
        return links

    def _transfer(
        self,
        links: list[Link],
        shard: Shard,
        put: str,
        deadline: float,
        barrier: CommitBarrier | None,
        begun: Callable[[], None],
    ) -> Mapping[str, Any]:
        """Send what the node lacks; ``begun`` is called when it has room, before the version can be complete there.

        The connections go back to the pool or are closed.
        """
        try:
            received = self._reserve_all(links, shard, put, deadline, barrier)
            begun()
            answer = self._send(links, shard, received, deadline, barrier)
        except TierBusyError:
            self._keep(links)
            raise
        except BaseException:
            for link in links:
                link.close()
            raise
        self._keep(links)
        return answer

    def _keep(self, links: list[Link]) -> None:
        with self._lock:
            if not self._closed:
                self._idle += links
                return
        for link in links:
            link.close()

    def _reserve_all(
        self, links: list[Link], shard: Shard, put: str, deadline: float, barrier: CommitBarrier | None
    ) -> Ranges:
        """Reserve room on all connections; returns what is there already."""
        point("sender.before-reserve")
        question: dict[str, Any] = {"version": shard.version, "put": put, "best": shard.best, "attempt": shard.attempt}
        if barrier is not None and barrier.hold is not None:
            question["hold"] = barrier.hold
        return Ranges(pairs_in([self._reserve(link, question, deadline) for link in links][0]))

    def _send(
        self, links: list[Link], shard: Shard, received: Ranges, deadline: float, barrier: CommitBarrier | None
    ) -> Mapping[str, Any]:
        if barrier is not None:
            barrier.wait("room")
        cells = [
            (start, min(start + self._wire_bytes, offset + length))
            for offset, length in runs(shard.layout.shards[shard.rank])
            for start in range(offset, offset + length, self._wire_bytes)
        ]
        missing = deque(c for c in cells if not received.covers(*c))
        if barrier is not None:  # what a part has in front is known when the bytes behind it are
            missing.rotate(-1)
        for _ in range(_ROUNDS):
            self._flow(links, shard, missing, deadline)
            if barrier is not None:
                # Arrived, not only sent: what one node completes and another one never does helps nobody.
                links[0].expect(Kind.PONG, links[0].call(Kind.PING, limit_s=self._soon(deadline)))
                barrier.wait("sent")
            point("sender.before-commit")
            frame = links[0].call(Kind.COMMIT, {"version": shard.version}, limit_s=_left(deadline))
            answer = links[0].expect(Kind.ACK, frame)
            gaps = Ranges(pairs_in(answer.body.get("missing")))
            if not len(gaps):
                return answer.body
            missing = deque(c for c in cells if gaps.touches(*c))
        raise CheckpointError(f"{self.url}: bytes of version {shard.version} arrive damaged again and again")

    def _reserve(self, link: Link, question: Mapping[str, Any], deadline: float) -> Any:
        answer = link.call(Kind.RESERVE, question, limit_s=self._soon(deadline))
        if answer.kind is Kind.RETRY_AFTER:
            why = answer.body.get("reason", "")
            raise TierBusyError(f"{self.url}: no room for version {question['version']}: {why}")
        return link.expect(Kind.CREDIT, answer).body.get("received")

    def _flow(self, links: list[Link], shard: Shard, missing: deque[tuple[int, int]], deadline: float) -> None:
        """Send ranges over all connections in parallel; each takes the next one when it is free."""
        errors: list[BaseException] = []

        def send(link: Link) -> None:
            try:
                while not errors:
                    try:
                        start, end = missing.popleft()
                    except IndexError:
                        break
                    shard.ready(end)
                    limit_s = self._soon(deadline)
                    link.channel.send_data(start, shard.image[start:end], label="sender.mid-chunk", limit_s=limit_s)
                if link is not links[0]:  # all of this connection is verified before the other one commits
                    link.expect(Kind.PONG, link.call(Kind.PING, limit_s=self._soon(deadline)))
            except BaseException as error:
                errors.append(link.explain(error))

        helpers = [threading.Thread(target=send, args=(k,), name="deepvm-tcp-flow", daemon=True) for k in links[1:]]
        for thread in helpers:
            thread.start()
        send(links[0])
        for thread in helpers:
            thread.join(max(deadline - time.monotonic(), 0.0) + 1.0)
            if thread.is_alive():
                raise BrokenError("a connection hangs")
        if errors:
            # What the node said is worth more than a connection that broke beside it.
            raise next((e for e in errors if not isinstance(e, OSError)), errors[0])


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise BrokenError("it took too long")
    return left
