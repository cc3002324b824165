"""The protocol of trainers and memory nodes: frames over a byte stream, mutual token proof.

A frame is a fixed header (magic, kind, length) and a body: a small JSON object, a document of bytes
(layouts and manifests), or for ``DATA`` an offset, a length and a CRC-32, followed by the payload.
Nothing is ever unpickled.

The proof is HMAC-SHA256 over both sides' nonces, each side with its own label. It neither encrypts
nor protects what follows from changes on the way: use TLS on shared networks.
"""

import contextlib
import hashlib
import hmac
import json
import secrets
import select
import socket
import ssl
import struct
import time
from enum import IntEnum
from typing import NamedTuple

from deepvm.checkpoint.format.checksums import UpTo, crc32
from deepvm.checkpoint.format.layout import CHUNK_BYTES
from deepvm.core.json_types import JsonObject
from deepvm.errors import CheckpointError
from deepvm.io.failpoints import point
from deepvm.records import dataclass

Body = JsonObject

MOST_BODY = 64 * 2**10  # bytes of a JSON body
MOST_DOCUMENT = 64 * 2**20  # bytes of a layout or a manifest
_MOST_STRANGER = 512  # bytes of a body before the proof
PROOF_S = 10.0  # for the whole proof of both sides
FRAME_S = 30.0  # for a frame that has started: to arrive, or to be accepted by the other side
_DRAIN_S = 0.5

_MAGIC = b"DVM1"
_HEADER = struct.Struct("!4sBI")
_DATA = struct.Struct("!QII")
_NONCE = 32


class Kind(IntEnum):
    """Kinds of frames; a reply follows its request."""

    CHALLENGE = 1
    PROOF = 2
    PROVED = 3
    HELLO = 10
    WELCOME = 11
    LAYOUT = 12
    RESERVE = 20
    CREDIT = 21
    RETRY_AFTER = 22
    DATA = 30
    COMMIT = 31
    ACK = 32
    WAIT = 33
    STATE = 34
    PING = 35
    PONG = 36
    READ = 37
    LIST = 40
    VERSIONS = 41
    MANIFEST = 42
    GET = 43
    END = 44
    ASIDE = 45
    STATUS = 50
    METRICS = 51
    ERROR = 60


class RequestRefused(CheckpointError):
    """The other side refused, for good."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code  # token, full, session, stale, layout, request, gone, stopping, internal
        super().__init__(message)


class BrokenError(ConnectionError):
    """The connection ended, was too slow, or broke the protocol."""


@dataclass(frozen=True)
class Frame:
    """A frame without payload."""

    kind: Kind
    raw: bytes

    @property
    def body(self) -> Body:
        try:
            found = json.loads(self.raw) if self.raw else {}
        except (ValueError, RecursionError):
            raise BrokenError(f"{self.kind.name} without JSON") from None
        if not isinstance(found, dict):
            raise BrokenError(f"{self.kind.name} without a JSON object")
        return found


class DataHeader(NamedTuple):
    """Where the payload of ``DATA`` belongs, in bytes, and its CRC-32."""

    offset: int
    length: int
    crc: int


class Channel:
    """Frames over one connected socket; for one thread, but ``abort`` may be called by any."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._plain = not isinstance(sock, ssl.SSLSocket)
        self.within_machine = within_machine(sock)

    def send(self, kind: Kind, body: Body | bytes = b"", *, limit_s: float = FRAME_S) -> None:
        raw = body
        if not isinstance(raw, bytes):
            raw = json.dumps(raw, separators=(",", ":")).encode()
        self._socket.settimeout(max(limit_s, 0.001))
        self._socket.sendall(_HEADER.pack(_MAGIC, kind, len(raw)) + raw)

    def send_data(
        self, offset: int, payload: memoryview, *, label: str, limit_s: float = FRAME_S
    ) -> None:
        """Send bytes of the file without copying them; ``label`` names a failpoint."""
        size = len(payload)
        head = _HEADER.pack(_MAGIC, Kind.DATA, _DATA.size + size) + _DATA.pack(
            offset, size, crc32(payload)
        )
        self._socket.settimeout(max(limit_s, 0.001))
        self._socket.sendall(head, socket.MSG_MORE if self._plain else 0)  # TLS knows no flags
        point(label)
        self._socket.sendall(payload)

    def send_range(
        self, offset: int, payload: memoryview, *, label: str, limit_s: float = FRAME_S
    ) -> None:
        head = _DATA.pack(offset, len(payload), crc32(payload))
        point(label)
        self.send(Kind.READ, head, limit_s=limit_s)

    def direct(self, seen: object) -> bool:
        """Whether it is one machine without a proxy; ``seen``: this end as the other sees it."""
        with contextlib.suppress(OSError, ValueError):  # a stream over MPI has no port
            host, port, *_ = self._socket.getsockname()
            return self._plain and self.within_machine and seen == f"{host}:{port}"
        return False

    def header(self, *, idle_s: float, frame_s: float = FRAME_S) -> tuple[Kind, int]:
        """The next frame's kind and length, for the caller to check and read. Raises OSError.

        Waits ``idle_s`` for it, then ``frame_s`` for the rest of its header.
        """
        view = memoryview(bytearray(_HEADER.size))
        self._socket.settimeout(max(idle_s, 0.001))
        count = self._socket.recv_into(view)
        if not count:
            raise BrokenError("the other side closed the connection")
        if count < len(view):
            self.read_into(view[count:], limit_s=frame_s)
        magic, kind, length = _HEADER.unpack(view)
        if magic != _MAGIC:
            raise BrokenError("the other side does not speak this protocol")
        try:
            return Kind(kind), length
        except ValueError:
            raise BrokenError(f"a frame of unknown kind {kind}") from None

    def rest(
        self, kind: Kind, length: int, *, most: int = MOST_BODY, limit_s: float = FRAME_S
    ) -> Frame:
        """Read the body after a header. Raises OSError: more than ``most`` bytes, or too slow."""
        if length > most:
            raise BrokenError(f"{kind.name} of {length} bytes; at most {most} are allowed here")
        raw = bytearray(length)
        self.read_into(memoryview(raw), limit_s=limit_s)
        return Frame(kind, bytes(raw))

    def receive(self, *, idle_s: float, most: int = MOST_BODY) -> Frame:
        return self.rest(*self.header(idle_s=idle_s), most=most)

    def data_header(self, length: int, *, payload: bool = True) -> DataHeader:
        """The binary part of a frame that ``payload`` follows: ``DATA``, else ``READ``."""
        view = memoryview(bytearray(_DATA.size))
        if length < _DATA.size:
            raise BrokenError(f"DATA of {length} bytes")
        self.read_into(view, limit_s=FRAME_S)
        header = DataHeader(*_DATA.unpack(view))
        following = header.length if payload else 0
        if following != length - _DATA.size or not 0 < header.length <= CHUNK_BYTES:
            raise BrokenError(
                f"DATA of {length} bytes that says it has {header.length}, of at most {CHUNK_BYTES}"
            )
        return header

    def read_into(self, view: memoryview, *, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        self._socket.settimeout(max(limit_s, 0.001))
        done = 0
        while done < len(view):
            count = self._socket.recv_into(view[done:])
            if not count:
                raise BrokenError("the other side closed the connection in mid-frame")
            done += count
            # One byte now and then is not progress
            if time.monotonic() > deadline and done < len(view):
                raise BrokenError("the other side is too slow")

    def reader(self, view: memoryview, step: int, *, limit_s: float) -> UpTo:
        """A function that fills ``view`` in steps until so many bytes of it are there."""
        done = 0
        deadline = time.monotonic() + limit_s

        def read(end: int) -> None:
            nonlocal done
            while done < end:
                stop = min(done + step, len(view))
                self.read_into(view[done:stop], limit_s=deadline - time.monotonic())
                done = stop

        return read

    def idle(self) -> bool:
        """Whether the connection can be reused: it is open, and nothing has come unasked."""
        try:
            self._socket.settimeout(0.0)
            # TLS cannot peek; any byte is unasked for
            self._socket.recv(1, socket.MSG_PEEK if self._plain else 0)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return False

    def gone(self) -> bool:
        """Whether the peer has closed; reads nothing, as another thread may be using it."""
        poll = select.poll()
        try:
            poll.register(self._socket.fileno(), select.POLLRDHUP)
            return bool(poll.poll(0))
        except (OSError, ValueError):
            return True

    def close_gracefully(self) -> None:
        """Close without a reset: drain unread bytes so that the peer still gets what was sent."""
        deadline = time.monotonic() + _DRAIN_S
        with contextlib.suppress(OSError, ValueError):
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.settimeout(_DRAIN_S)
            sink = bytearray(2**16)
            while time.monotonic() < deadline and self._socket.recv_into(sink):
                pass
        self.close()

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()


def tune(sock: socket.socket) -> None:
    """Send small frames without delay, and detect vanished peers."""
    if sock.family == socket.AF_UNIX:  # the near end of a stream over MPI
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    if hasattr(socket, "TCP_CONGESTION") and within_machine(sock):
        # No network is congested there; where BBR is the default, its pacing would halve the speed.
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def within_machine(sock: socket.socket) -> bool:
    """Whether both ends of a connection have the same address; False if the other one is gone."""
    try:
        return sock.family == socket.AF_UNIX or bool(sock.getsockname()[0] == sock.getpeername()[0])
    except OSError:
        return False


def job_key(token: bytes, job: str) -> bytes:
    """The secret of a job, derived from the node's token."""
    return hmac.new(token, b"deepvm job\0" + job.encode(), hashlib.sha256).digest()


def admit(channel: Channel, token: bytes) -> str:
    """The node's half of the proof; returns the job whose secret the other side knows, or "".

    Raises RequestRefused: it knows none. OSError: it is silent, or speaks another protocol.
    """
    deadline = time.monotonic() + PROOF_S
    nonce = secrets.token_bytes(_NONCE)
    channel.send(Kind.CHALLENGE, {"nonce": nonce.hex()}, limit_s=PROOF_S)
    theirs, mac, job = _proof(channel, Kind.PROOF, deadline)
    secret = job_key(token, job) if job else token
    if not hmac.compare_digest(mac, _mac(secret, b"trainer", nonce, theirs)):
        right = "one the node was started with"
        if job:
            right = f"token of job {job!r}"
        raise RequestRefused("token", f"the token is wrong: it must be the {right}")
    channel.send(Kind.PROVED, {"mac": _mac(secret, b"node", theirs, nonce).hex()}, limit_s=PROOF_S)
    return job


def introduce(channel: Channel, token: bytes, *, job: str = "", limit_s: float = PROOF_S) -> None:
    """The trainer's half; ``job``: whose secret ``token`` is. Raises RequestRefused, OSError."""
    deadline = time.monotonic() + limit_s
    theirs, _, _ = _proof(channel, Kind.CHALLENGE, deadline)
    nonce = secrets.token_bytes(_NONCE)
    proof = {"nonce": nonce.hex(), "mac": _mac(token, b"trainer", theirs, nonce).hex()}
    channel.send(Kind.PROOF, {**proof, "job": job} if job else proof)
    _, mac, _ = _proof(channel, Kind.PROVED, deadline)
    if not hmac.compare_digest(mac, _mac(token, b"node", nonce, theirs)):
        raise RequestRefused(
            "token", "it does not know the token itself: it may not be the node that you mean"
        )


def _proof(channel: Channel, kind: Kind, deadline: float) -> tuple[bytes, bytes, str]:
    left_s = deadline - time.monotonic()
    found, length = channel.header(idle_s=left_s, frame_s=left_s)
    frame = channel.rest(found, length, most=_MOST_STRANGER, limit_s=deadline - time.monotonic())
    if found is not kind:
        raise unexpected(frame)
    try:
        nonce, mac = (bytes.fromhex(str(frame.body.get(name, ""))) for name in ("nonce", "mac"))
    except ValueError:
        raise BrokenError(f"{kind.name} that is not hexadecimal") from None
    if kind is not Kind.PROVED and len(nonce) != _NONCE:
        raise BrokenError(f"a nonce of {len(nonce)} bytes")
    return nonce, mac, str(frame.body.get("job", ""))


def unexpected(frame: Frame) -> RequestRefused | BrokenError:
    """The error for a frame instead of the expected one; an ``ERROR`` says it itself."""
    if frame.kind is not Kind.ERROR:
        return BrokenError(f"an unexpected {frame.kind.name}")
    body = frame.body
    return RequestRefused(str(body.get("code", "")), str(body.get("message", "it gave no reason")))


def _mac(token: bytes, who: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.new(
        token, b"deepvm memory node 1\0" + who + b"\0" + first + second, hashlib.sha256
    ).digest()
