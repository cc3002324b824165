"""A peer of the node: the proof that it knows the token, then its requests in order."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

from deepvm.checkpoint.files.file_names import check_job, whole_job
from deepvm.checkpoint.format.checksums import HASHED_BYTES, CrcPiece, total
from deepvm.checkpoint.format.layout import Layout
from deepvm.checkpoint.format.manifest import CommitRecord
from deepvm.checkpoint.network.memory_file import TrainerMemory
from deepvm.checkpoint.network.protocol import (
    FRAME_S,
    MOST_BODY,
    Body,
    BrokenError,
    Channel,
    Frame,
    Kind,
    RequestRefused,
    admit,
)
from deepvm.checkpoint.node.version_registry import MOST_MISSING, VersionRegistry
from deepvm.checkpoint.node.versions import Reservation, Version
from deepvm.checkpoint.tiers.base import Store
from deepvm.errors import CheckpointError, RequestError
from deepvm.io.failpoints import point
from deepvm.records import dataclass

_LOG = logging.getLogger(__name__)
_IDLE_S = 900.0
_LONGEST_POLL_MS = 60_000
_SINK_BYTES = 2**16
_READ_BYTES = 2**20
_MOST_DAMAGED = 20
_LONGEST_PROBLEM = 300
_ROLES = ("sender", "reader", "status")


class Refusals:
    """A log with one line of a kind in ``window_s``: a refusal, or a count of those since."""

    def __init__(self, window_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._since: dict[str, float] = {}
        self._unlogged: dict[str, tuple[int, str]] = {}  # how many, and the last
        self._lock = threading.Lock()

    def tell(self, kind: str, peer: str, reason: str) -> bool:
        with self._lock:
            if self._clock() < self._since.get(kind, -math.inf) + self._window_s:
                count, _ = self._unlogged.get(kind, (0, ""))
                self._unlogged[kind] = count + 1, f"{peer}: {reason}"
                return False
            self._sum_up(kind)
            self._since[kind] = self._clock()
        _LOG.warning("%s: refused: %s", peer, reason)
        return True

    def sum_up(self) -> None:
        with self._lock:
            for kind in list(self._unlogged):
                self._sum_up(kind)

    def _sum_up(self, kind: str) -> None:
        count, last = self._unlogged.pop(kind, (0, ""))
        if count:
            text = "%d more were refused in %.0f s, the last of them %s"
            _LOG.warning(text, count, self._clock() - self._since[kind], last)
            self._since[kind] = self._clock()


@dataclass(eq=False, repr=False)  # not the token
class Connection:
    """A peer in its own thread; after a sender's ``HELLO`` also a :class:`Sender`."""

    _channel: Channel
    _token: bytes
    peer: str
    _registry: VersionRegistry
    _store: Store | None
    _refusals: Refusals
    _metrics: Callable[[], Body]

    def __post_init__(self) -> None:
        self.abort = self._channel.abort
        self.gone = self._channel.gone
        self.job = self.session = self.digest = self._role = self._token_job = ""
        self.world = 1
        self.rank = 0
        self.epoch = 0
        self._proven = False
        self._reservation: Reservation | None = None
        self._memory: TrainerMemory | None = None

    def run(self, proven: Callable[[], None]) -> None:
        try:
            self._token_job = admit(self._channel, self._token)
            proven()
            self._proven = True
            while True:
                self._answer()
        except (BrokenError, RequestError) as error:
            if "closed" not in str(error):  # a peer that closes is no event
                self._refuse("request", error)
        except RequestRefused as error:
            self._refuse(error.code, error)
        except CheckpointError as error:
            self._refuse("gone", error)
        except (OSError, ValueError) as error:
            _LOG.debug("%s: %s", self.peer, error)
        except Exception:
            if self._refuse("internal", "internal error of the node, see its log"):
                _LOG.exception("%s: internal error", self.peer)
        finally:
            self._registry.leave(self)
            self._forget_memory()
            self._channel.close()

    def _forget_memory(self) -> None:
        """The trainer may free its memory only after this."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _refuse(self, code: str, reason: Exception | str) -> bool:
        """Tell the peer why, if it still listens; returns whether it was logged."""
        message = str(reason)[:_LONGEST_PROBLEM]
        logged = self._refusals.tell(code if self._proven else "unproven", self.peer, message)
        try:
            self._channel.send(Kind.ERROR, {"code": code, "message": message}, limit_s=1.0)
            self._channel.close_gracefully()
        except (OSError, ValueError) as error:
            _LOG.debug("%s: %s", self.peer, error)
        return logged

    def _answer(self) -> None:
        kind, length = self._channel.header(idle_s=_IDLE_S)
        if kind in (Kind.DATA, Kind.READ):
            self._data(length, shared=kind is Kind.READ)
            return
        role, answer = self._ANSWERS.get(kind, ("", None))
        if answer is None or role not in ("", self._role) or not (self._role or kind is Kind.HELLO):
            raise BrokenError(f"{kind.name} from a peer that is {self._role or 'unknown'}")
        most = MOST_BODY
        if kind is Kind.LAYOUT:
            most = self._registry.most_document
            if length > most:
                raise RequestRefused(
                    "layout", f"a layout of {length} bytes; with its memory the node reads {most}"
                )
        answer(self, self._channel.rest(kind, length, most=most))

    def _hello(self, frame: Frame) -> None:
        body = frame.body
        self._role = _text(body, "role", 16)
        if self._role not in _ROLES:
            raise RequestError("role", self._role, ", ".join(_ROLES))
        if self._role == "status" and self._token_job:
            raise RequestRefused(
                "token", f"the token is that of job {self._token_job!r}; this takes the node's own"
            )
        known = True
        if self._role == "sender":
            self._registry.leave(self)
            self.job = self._own(body)
            self.session = _text(body, "session", 64)
            self.digest = _text(body, "layout", 64)
            self.world = _whole(body, "world", 1, 4096)
            self.rank = _whole(body, "rank", 0, self.world - 1)
            self._reservation = None
            self.epoch = _whole(body, "epoch", default=0)
            if self.epoch:
                self._begin(self.job, self.epoch)
            known = self._registry.enter(self)
        registry = self._registry
        answer = {
            "layout": known,
            "persists": registry.persists and not registry.lacks,
            "lacks": registry.lacks,
            "lease_s": registry.lease_s,
            "node": registry.identity,
            "peer": self.peer,
        }
        self._channel.send(Kind.WELCOME, answer)

    def _begin(self, job: str, epoch: int) -> None:
        self._registry.begin(job, epoch, self._store.epoch(job) if self._store is not None else 0)
        if self._store is not None:
            self._store.begin(job, epoch)  # a node that is started again knows it from there

    def _own(self, body: Body) -> str:
        """The job of a request. Raises RequestRefused: the peer's token is that of another one."""
        job = check_job(_text(body, "job", 64))
        whole = whole_job(job)
        if self._token_job and self._token_job not in (job, whole[0] if whole is not None else job):
            raise RequestRefused(
                "token", f"the token is that of job {self._token_job!r}, and this is {job!r}"
            )
        return job

    def _layout(self, frame: Frame) -> None:
        # One at a time: the memory for reading must stay small compared with that for checkpoints.
        with self._registry.reading:
            layout = Layout.from_json(frame.raw)
        if layout.digest != self.digest or layout.world != self.world:
            raise RequestRefused("layout", "the layout is not the one that was announced")
        self._registry.learn(self, layout, len(frame.raw))
        self._channel.send(Kind.PONG)

    def _reserve(self, frame: Frame) -> None:
        body = frame.body
        number = _whole(body, "version")
        attempt_id = _text(body, "put", 64)
        hold = _whole(body, "hold") if "hold" in body else None
        attempt_number = _whole(body, "attempt", default=0)
        self._reservation = None
        self._forget_memory()
        best = body.get("best") is True
        answer = self._registry.reserve(
            self, number, attempt_id, attempt_number=attempt_number, hold=hold, best=best
        )
        if isinstance(answer, str):
            self._channel.send(
                Kind.RETRY_AFTER, {"seconds": 1.0, "reason": answer, "version": number}
            )
            return
        self._reservation = answer
        with self._registry.changed:
            received = list(islice(answer.version.received[self.rank], MOST_MISSING))
        point("node.before-credit")
        if self._channel.within_machine:
            self._memory = TrainerMemory.open(body.get("memory"))
        memory = self._memory is not None
        self._channel.send(Kind.CREDIT, {"version": number, "received": received, "memory": memory})

    def _data(self, length: int, *, shared: bool) -> None:
        header = self._channel.data_header(length, payload=not shared)
        if self._reservation is None:
            raise BrokenError("DATA before CREDIT")
        if shared and self._memory is None:
            raise BrokenError("READ of memory that was not named")
        claim = self._registry.claim(
            self, self._reservation, header.offset, header.offset + header.length
        )
        if claim is None and shared:
            return
        if claim is None:
            # Discarded through a small buffer: many connections may send what is here already.
            sink = memoryview(bytearray(min(header.length, _SINK_BYTES)))
            for start in range(0, header.length, _SINK_BYTES):
                self._channel.read_into(sink[: header.length - start], limit_s=FRAME_S)
            return
        verified: Sequence[CrcPiece] | None = None
        try:
            if shared:
                assert self._memory is not None
                reader = self._memory.reader(claim.view, header.offset, HASHED_BYTES)
            else:
                reader = self._channel.reader(claim.view, HASHED_BYTES, limit_s=FRAME_S)
            pieces = claim.version.index.cuts.pieces(claim.view, claim.start, reader)
            point("node.mid-chunk")
            verified = pieces if total(pieces) == header.crc else None
        finally:
            self._registry.settle(claim, verified)
        if verified is None:  # the sender learns of it with its commit, and sends these bytes again
            with self._registry.changed:
                self._registry.counts["damaged_pieces"] += 1
            why = f"bytes at {header.offset} of version {claim.version.number} came damaged"
            self._refusals.tell("damaged", self.peer, why)

    def _commit(self, frame: Frame) -> None:
        number = _whole(frame.body, "version")
        if self._reservation is None or self._reservation.version.number != number:
            raise RequestRefused(
                "stale", f"version {number} of {self.job!r} is not being received here"
            )
        reply = self._registry.commit(self._reservation)
        self._forget_memory()
        point("node.before-ack")
        self._channel.send(Kind.ACK, reply)
        point("node.after-ack")

    def _wait(self, frame: Frame) -> None:
        limit_s = _whole(frame.body, "limit_ms", 0, _LONGEST_POLL_MS) / 1000
        self._channel.send(
            Kind.STATE, self._registry.wait(self, _whole(frame.body, "sequence", -1), limit_s)
        )

    def _list(self, frame: Frame) -> None:
        job = self._own(frame.body)
        if "epoch" in frame.body:
            self._begin(job, _whole(frame.body, "epoch"))
        found: dict[int, CommitRecord] = {}
        damaged: list[list[Any]] = []
        jobs = self._registry.complete_jobs()
        if self._store is not None:
            found = {m.version: m for m in self._store.versions(job)}
        found |= {n: v.manifest for n, v in self._registry.complete(job).items()}
        if self._store is not None:
            gone = [d for d in self._store.damaged(job) if d.version not in found]
            damaged = [[d.version, d.size, d.problem[:_LONGEST_PROBLEM]] for d in gone]
        # Which parts of its checkpoints are here, of how many nodes that share them
        parts: list[tuple[int, int]] = []
        if not found:
            jobs |= self._store.jobs() if self._store is not None else set()
            whole = filter(None, map(whole_job, jobs))
            parts = sorted({(part, count) for name, part, count in whole if name == job})
        answer = {"count": len(found), "damaged": damaged[:_MOST_DAMAGED], "parts": parts}
        self._channel.send(Kind.VERSIONS, answer)
        for number in sorted(found, reverse=True):
            self._channel.send(Kind.MANIFEST, found[number].to_json())

    def _aside(self, frame: Frame) -> None:
        job = self._own(frame.body)
        numbers = frame.body.get("versions")
        if not isinstance(numbers, list) or not all(
            type(n) is int and 0 <= n < 2**63 for n in numbers
        ):
            raise RequestError("versions", type(numbers).__name__, "a list of whole numbers")
        if self._store is not None:
            self._store.set_aside(job, numbers)
        _LOG.warning(
            "%s: a training run of %s starts over; damaged checkpoints were quarantined",
            self.peer,
            job,
        )
        self._channel.send(Kind.PONG)

    def _get(self, frame: Frame) -> None:
        job = self._own(frame.body)
        number = _whole(frame.body, "version")
        version = self._registry.complete(job).get(number)
        if version is not None:
            manifest = version.manifest
            pieces = self._held(version)
        else:
            manifest, pieces = self._stored(job, number)
        self._channel.send(Kind.MANIFEST, manifest.to_json())
        offset = 0
        for piece in pieces:
            self._channel.send_data(offset, piece, label="node.mid-send")
            offset += len(piece)
        self._channel.send(Kind.END)

    def _held(self, version: Version) -> Iterator[memoryview]:
        """A copy of a checkpoint's bytes, so that a slow reader keeps no slot; or from disk."""
        size = version.manifest.size
        start = 0
        at = 0
        buffer = memoryview(bytearray(min(_READ_BYTES, size)))
        while start < size and self._registry.copy(version, start, piece := buffer[: size - start]):
            yield piece
            start += len(piece)
        if start == size:
            return
        stored, pieces = self._stored(version.job, version.number)
        if stored != version.manifest:
            raise RequestRefused(
                "gone", f"version {version.number} of {version.job!r} is another one by now"
            )
        for piece in pieces:
            if at + len(piece) > start:
                yield piece[max(start - at, 0) :]
            at += len(piece)

    def _stored(self, job: str, number: int) -> tuple[CommitRecord, Iterator[memoryview]]:
        try:
            if self._store is not None:
                return self._store.read(job, number)
        except FileNotFoundError:
            pass
        raise RequestRefused("gone", f"version {number} of {job!r} is not here")

    _ANSWERS: "ClassVar[Mapping[Kind, tuple[str, Callable[[Connection, Frame], None]]]]" = {
        # kind: (role that may ask; empty: any, answer)
        Kind.HELLO: ("", _hello),
        Kind.PING: ("", lambda self, frame: self._channel.send(Kind.PONG)),
        Kind.LAYOUT: ("sender", _layout),
        Kind.RESERVE: ("sender", _reserve),
        Kind.COMMIT: ("sender", _commit),
        Kind.WAIT: ("sender", _wait),
        Kind.LIST: ("reader", _list),
        Kind.GET: ("reader", _get),
        Kind.ASIDE: ("reader", _aside),
        Kind.STATUS: (
            "status",
            lambda self, frame: self._channel.send(Kind.METRICS, self._metrics()),
        ),
    }


def _text(body: Body, name: str, limit: int) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= limit:
        raise RequestError(name, type(value).__name__, f"a string of 1 to {limit} characters")
    return value


def _whole(
    body: Body, name: str, low: int = 0, high: int = 2**63 - 1, default: int | None = None
) -> int:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(name, type(value).__name__, f"a whole number from {low} to {high}")
    return value
