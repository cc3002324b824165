"""One peer of the node: the token's proof, then its requests in order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from deepvm.checkpoint.files.failpoints import point
from deepvm.checkpoint.files.file_names import check_job, whole_job
from deepvm.checkpoint.format.crc_combine import Atom, total
from deepvm.checkpoint.format.manifest import Manifest
from deepvm.checkpoint.network.protocol import (
    FRAME_S,
    MOST_BODY,
    BrokenError,
    Channel,
    Frame,
    Kind,
    Refused,
    admit,
)
from deepvm.checkpoint.node.refusals import Refusals
from deepvm.checkpoint.node.version_registry import VersionRegistry
from deepvm.checkpoint.node.versions import Busy, Reservation
from deepvm.checkpoint.tiers.store import Store
from deepvm.errors import CheckpointError, RequestError

_LOG = logging.getLogger(__name__)
_IDLE_S = 900.0
_LONGEST_POLL_S = 60.0
_SINK_BYTES = 2**16
_READ_BYTES = 2**20
_MOST_MISSING = 1000
"""Ranges in one answer. A sender that is not told of a range sends it again, and it is discarded."""
_MOST_DAMAGED, _LONGEST_PROBLEM = 20, 300
_ROLES = {
    "sender": {Kind.LAYOUT, Kind.RESERVE, Kind.COMMIT, Kind.WAIT, Kind.PING},
    "reader": {Kind.LIST, Kind.GET, Kind.ASIDE, Kind.PING},
    "status": {Kind.STATUS, Kind.PING},
}


class NodeContext(Protocol):
    """What a connection needs of the node."""

    registry: VersionRegistry
    store: Store | None
    refusals: Refusals

    def proven(self, connection: Connection) -> None:
        """Count a peer that knows the token. Raises Refused: there are too many."""

    def ended(self, connection: Connection) -> None:
        """Forget a peer."""

    def metrics(self) -> Mapping[str, Any]:
        """For STATUS."""


class Connection:
    """One peer, in a thread of its own."""

    def __init__(self, channel: Channel, node: NodeContext, token: bytes, peer: str) -> None:
        """Own the channel; ``peer`` is its address, for the log."""
        self._channel, self._node, self._registry, self._token, self.peer = channel, node, node.registry, token, peer
        self._role = self._job = self._session = self._digest = self._token_job = ""
        self._proven = False
        self._world, self._rank = 1, 0
        self._reservation: Reservation | None = None
        self._answers: dict[Kind, Callable[[Frame], None]] = {
            Kind.HELLO: self._hello,
            Kind.LAYOUT: self._layout,
            Kind.RESERVE: self._reserve,
            Kind.COMMIT: self._commit,
            Kind.WAIT: self._wait,
            Kind.PING: lambda _: self._channel.send(Kind.PONG),
            Kind.LIST: self._list,
            Kind.GET: self._get,
            Kind.ASIDE: self._set_aside,
            Kind.STATUS: lambda _: self._channel.send(Kind.METRICS, self._node.metrics()),
        }

    def abort(self) -> None:
        """End it from another thread."""
        self._channel.abort()

    def gone(self) -> bool:
        """Whether the peer has ended it."""
        return self._channel.gone()

    def run(self) -> None:
        """Serve until the peer leaves or breaks the protocol."""
        try:
            self._token_job = admit(self._channel, self._token)
            self._node.proven(self)
            self._proven = True
            while True:
                self._answer()
        except RequestError as error:
            self._refuse("request", str(error))
        except Refused as error:
            self._refuse(error.code, str(error))
        except CheckpointError as error:
            self._refuse("gone", str(error))
        except BrokenError as error:
            # A peer that closes is no event; anything else is said to it, if it still listens.
            self._refuse("request", str(error), quiet="closed" in str(error))
        except (OSError, ValueError) as error:
            _LOG.debug("%s: %s", self.peer, error)
        except Exception:
            if self._refuse("internal", "internal error of the node, see its log"):
                _LOG.exception("%s: internal error", self.peer)
        finally:
            self._registry.leave(self)
            self._node.ended(self)
            self._channel.close()

    def _refuse(self, code: str, message: str, *, quiet: bool = False) -> bool:
        """Say it to the peer, and mostly to the log; returns whether also to that."""
        if quiet:
            return False
        told = self._node.refusals.tell(code if self._proven else "unproven", self.peer, message[:_LONGEST_PROBLEM])
        try:
            self._channel.send(Kind.ERROR, {"code": code, "message": message[:300]}, limit_s=1.0)
            self._channel.part()
        except (OSError, ValueError) as error:
            _LOG.debug("%s: %s", self.peer, error)
        return told

    def _answer(self) -> None:
        kind, length = self._channel.header(idle_s=_IDLE_S)
        if kind is not Kind.HELLO and kind is not Kind.DATA and kind not in _ROLES.get(self._role, ()):
            raise BrokenError(f"{kind.name} from a peer that is {self._role or 'unknown'}")
        if kind is Kind.DATA:
            self._data(length)
        else:
            most = MOST_BODY
            if kind is Kind.LAYOUT:
                most = self._registry.most_document
                if length > most:
                    raise Refused("layout", f"a layout of {length} bytes; with its memory the node reads {most}")
            self._answers[kind](self._channel.rest(kind, length, most=most))

    def _hello(self, frame: Frame) -> None:
        body = frame.body
        self._role = _text(body, "role", 16)
        if self._role not in _ROLES:
            raise RequestError("role", self._role, ", ".join(_ROLES))
        if self._role == "status" and self._token_job:
            raise Refused("token", f"the token is that of job {self._token_job!r}; this takes the node's own")
        known = True
        if self._role == "sender":
            self._registry.leave(self)
            self._job, self._session = self._own(body), _text(body, "session", 64)
            self._digest = _text(body, "layout", 64)
            self._world = _whole(body, "world", 1, 4096)
            self._rank = _whole(body, "rank", 0, self._world - 1)
            self._reservation = None
            known = self._registry.enter(self, self._job, self._session, self._world, self._rank, self._digest)
        self._channel.send(
            Kind.WELCOME,
            {
                "layout": known,
                "persists": self._registry.persists and not self._registry.lacks,
                "lacks": self._registry.lacks,
                "lease_s": self._registry.lease_s,
            },
        )

    def _own(self, body: Mapping[str, Any]) -> str:
        """The job that a peer speaks of, if its token is good for it."""
        job = check_job(_text(body, "job", 64))
        whole = whole_job(job)
        if self._token_job and self._token_job not in (job, whole[0] if whole is not None else job):
            raise Refused("token", f"the token is that of job {self._token_job!r}, and this is {job!r}")
        return job

    def _layout(self, frame: Frame) -> None:
        layout = self._registry.read_layout(frame.raw)
        if layout.digest != self._digest or layout.world != self._world or self._rank >= self._world:
            raise Refused("layout", "the layout is not the one that was announced")
        self._registry.learn(self._job, self._session, layout, len(frame.raw))
        self._channel.send(Kind.PONG)

    def _reserve(self, frame: Frame) -> None:
        number, put = _whole(frame.body, "version", 0, 2**63 - 1), _text(frame.body, "put", 64)
        hold = _whole(frame.body, "hold", 0, 2**63 - 1) if "hold" in frame.body else None
        self._reservation = None
        best = frame.body.get("best") is True
        attempt = _whole(frame.body, "attempt", 0, 2**63 - 1) if "attempt" in frame.body else 0
        who = self._job, self._session, self._digest, self._rank
        answer = self._registry.reserve(self, *who, number, put, hold=hold, best=best, attempt=attempt)
        if isinstance(answer, Busy):
            self._channel.send(
                Kind.RETRY_AFTER, {"seconds": answer.retry_after_s, "reason": answer.reason, "version": number}
            )
            return
        self._reservation = answer
        with self._registry.changed:
            received = answer.received[:_MOST_MISSING]
        point("node.before-credit")
        self._channel.send(Kind.CREDIT, {"version": number, "received": received})

    def _data(self, length: int) -> None:
        piece = self._channel.piece(length)
        if self._reservation is None:
            raise BrokenError("DATA before CREDIT")
        claim = self._registry.claim(self, self._reservation, piece.offset, piece.offset + piece.length)
        if claim is None:
            # Little memory: each of many connections may send what is here already.
            sink = memoryview(bytearray(min(piece.length, _SINK_BYTES)))
            for start in range(0, piece.length, _SINK_BYTES):
                self._channel.read_into(sink[: piece.length - start], limit_s=FRAME_S)
            return
        verified: Sequence[Atom] | None = None
        try:
            self._channel.read_into(claim.view, limit_s=FRAME_S)
            point("node.mid-chunk")
            atoms = claim.version.plan.cuts.atoms(claim.view, claim.start)
            verified = atoms if total(atoms) == piece.crc else None
        finally:
            self._registry.settle(claim, verified)
        if verified is None:  # the sender learns of it with its commit, and sends these bytes again
            self._registry.damaged()
            why = f"bytes at {piece.offset} of version {claim.version.number} came damaged"
            self._node.refusals.tell("damaged", self.peer, why)

    def _commit(self, frame: Frame) -> None:
        number = _whole(frame.body, "version", 0, 2**63 - 1)
        if self._reservation is None or self._reservation.version.number != number:
            raise Refused("stale", f"version {number} of {self._job!r} is not being received here")
        reply = self._registry.commit(self._reservation)
        point("node.before-ack")
        self._channel.send(
            Kind.ACK,
            {
                "version": number,
                "missing": reply.missing[:_MOST_MISSING],
                "complete": reply.complete,
                "durable": reply.durable,
            },
        )
        point("node.after-ack")

    def _wait(self, frame: Frame) -> None:
        body = frame.body
        limit_s = _whole(body, "limit_ms", 0, int(_LONGEST_POLL_S * 1000)) / 1000
        states = self._registry.wait(self._job, self._session, _whole(body, "sequence", -1, 2**63 - 1), limit_s)
        self._channel.send(
            Kind.STATE,
            {
                "sequence": states.sequence,
                "receiving": states.receiving,
                "complete": states.complete,
                "durable": states.durable,
                "stuck": states.stuck,
            },
        )

    def _list(self, frame: Frame) -> None:
        job = self._own(frame.body)
        found = {m.version: m for m in (self._node.store.versions(job) if self._node.store is not None else ())}
        found |= {m.version: m for m in self._registry.manifests(job)}
        damaged = [d for d in (self._node.store.damaged(job) if self._node.store else ()) if d.version not in found]
        rows = [[d.version, d.size, d.problem[:_LONGEST_PROBLEM]] for d in damaged[:_MOST_DAMAGED]]
        self._channel.send(Kind.VERSIONS, {"count": len(found), "damaged": rows})
        for number in sorted(found, reverse=True):
            self._channel.send(Kind.MANIFEST, found[number].to_json())

    def _set_aside(self, frame: Frame) -> None:
        """Of what is on the disk; versions in memory are replaced by those that are sent."""
        job, numbers = self._own(frame.body), frame.body.get("versions")
        if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < 2**63 for n in numbers):
            raise RequestError("versions", type(numbers).__name__, "a list of whole numbers")
        if self._node.store is not None:
            self._node.store.set_aside(job, numbers)
        _LOG.warning("%s: a training of %s begins anew; damaged versions were set aside", self.peer, job)
        self._channel.send(Kind.PONG)

    def _get(self, frame: Frame) -> None:
        job, number = self._own(frame.body), _whole(frame.body, "version", 0, 2**63 - 1)
        version = self._registry.borrow(job, number)
        if version is None:
            manifest, chunks = self._stored(job, number)
            self._channel.send(Kind.MANIFEST, manifest.to_json())
            self._send_chunks(chunks, 0)
        else:
            known = version.manifest
            self._registry.unpin(version)
            assert known is not None
            self._channel.send(Kind.MANIFEST, known.to_json())
            # Pieces are copied: a reader that takes hours must not keep others from the slot. It gets the rest from
            # the disk then.
            start, buffer = 0, memoryview(bytearray(min(_READ_BYTES, known.size)))
            while start < known.size and self._registry.copy(version, start, piece := buffer[: known.size - start]):
                self._channel.send_data(start, piece, label="node.mid-send")
                start += len(piece)
            if start < known.size:
                manifest, chunks = self._stored(job, number)
                if manifest != known:
                    raise Refused("gone", f"version {number} of {job!r} is another one by now")
                self._send_chunks(chunks, start)
        self._channel.send(Kind.END)

    def _stored(self, job: str, number: int) -> tuple[Manifest, Iterator[memoryview]]:
        try:
            if self._node.store is not None:
                return self._node.store.read(job, number)
        except FileNotFoundError:
            pass
        raise Refused("gone", f"version {number} of {job!r} is not here")

    def _send_chunks(self, chunks: Iterator[memoryview], start: int) -> None:
        """Send a file's chunks from a byte on."""
        at = 0
        for data in chunks:
            if at + len(data) > start:
                skip = max(start - at, 0)
                self._channel.send_data(at + skip, data[skip:], label="node.mid-send")
            at += len(data)


def _text(body: Mapping[str, Any], name: str, most: int) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= most:
        raise RequestError(name, type(value).__name__, f"text of 1 to {most} characters")
    return value


def _whole(body: Mapping[str, Any], name: str, low: int, high: int) -> int:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(name, type(value).__name__, f"a whole number from {low} to {high}")
    return value
