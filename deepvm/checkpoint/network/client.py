"""A trainer's connection to a memory node: its token, its requests, and acknowledgments.

A job's token, the HMAC-SHA256 of its name under the node's token, is good for that job alone.
Only a new token for the node revokes it.
"""

import contextlib
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from deepvm.checkpoint.files.file_names import check_job
from deepvm.checkpoint.format.manifest import Acknowledge, Level
from deepvm.checkpoint.network.endpoint import Endpoint
from deepvm.checkpoint.network.protocol import (
    FRAME_S,
    MOST_BODY,
    MOST_DOCUMENT,
    Body,
    BrokenError,
    Channel,
    Frame,
    Kind,
    RequestRefused,
    introduce,
    job_key,
    unexpected,
)
from deepvm.errors import CheckpointError, MemoryOnlyError, RequestError, VersionGoneError
from deepvm.io.threads import start_thread
from deepvm.records import dataclass, field

TOKEN_VARIABLE = "DEEPVM_TOKEN_FILE"
WEAK_VARIABLE = "DEEPVM_ALLOW_WEAK_TOKEN"
_TOKEN_ADVICE = (
    "set it to the name of a file with the memory node's token, that of its --token-file"
)
_LEAST_BYTES = 16  # a shorter one may be guessed
_MOST_BYTES = 4096
_OF_JOB = re.compile(rb"deepvm-job-token ([!-~]{1,64}) ([0-9a-f]{64})")


@dataclass(frozen=True)
class Token:
    """A secret, valid for one ``job`` or, if that is empty, for all."""

    secret: bytes = field(repr=False)
    job: str = ""

    def of_job(self, job: str) -> "Token":
        if self.job:
            raise RequestError("token_file", f"the token of job {self.job}", "the node's own token")
        return Token(job_key(self.secret, check_job(job)), job)

    def to_text(self) -> str:
        return f"deepvm-job-token {self.job} {self.secret.hex()}"


def read_token(
    path: Path | str, *, weak: bool | None = None, allowing: str = f"{WEAK_VARIABLE}=1"
) -> Token:
    """The token in a file. Raises RequestError. ``weak``: as :func:`weak_allowed`."""
    try:
        with open(path, "rb") as stream:
            token = stream.read(_MOST_BYTES + 1).strip()
            status = os.fstat(stream.fileno())
        open_to = ""
        if not weak_allowed(weak):
            open_to = _open_to(status, Path(path))
    except OSError as error:
        raise RequestError(
            "token_file", str(path), f"a file with the token ({error.strerror or error})"
        ) from None
    found = _OF_JOB.fullmatch(token)
    allowed = ""
    if not token or len(token) > _MOST_BYTES:
        allowed = (
            f"a file with a token of {_LEAST_BYTES} to {_MOST_BYTES} bytes; openssl rand -hex 32"
        )
    elif open_to:
        allowed = f"a file that {open_to} cannot read or change (chmod 600 {path}), or {allowing}"
    elif found is None and len(token) < _LEAST_BYTES and not weak_allowed(weak):
        guessed = f"and not {len(token)}, which may be guessed (openssl rand -hex 32)"
        allowed = f"a file with a token of at least {_LEAST_BYTES} bytes, {guessed}, or {allowing}"
    if allowed:
        raise RequestError("token_file", str(path), allowed)
    if found is None:
        return Token(token)
    return Token(bytes.fromhex(found[2].decode()), found[1].decode())


def weak_allowed(weak: bool | None = None) -> bool:
    """Whether weak tokens are accepted, by ``weak`` or else by the environment."""
    if weak is None:
        return os.environ.get(WEAK_VARIABLE) == "1"
    return weak


def token_from_environment() -> Token:
    """The token in the file that ``DEEPVM_TOKEN_FILE`` names. Raises RequestError."""
    path = os.environ.get(TOKEN_VARIABLE, "")
    if not path:
        raise TokenMissingError(TOKEN_VARIABLE, path, _TOKEN_ADVICE)
    try:
        return read_token(path)
    except RequestError as error:
        raise RequestError(TOKEN_VARIABLE, path, f"{error.allowed}; {_TOKEN_ADVICE}") from None


class TokenMissingError(RequestError):
    """No file was named: there is no value that could be shown."""

    def __str__(self) -> str:
        return self.about(self.option)


def _open_to(status: os.stat_result, path: Path) -> str:
    """Who else can read or change a file; root's group may read: Kubernetes relies on it."""
    others = stat.S_IROTH | stat.S_IWOTH
    group = stat.S_IRGRP | stat.S_IWGRP
    if status.st_uid == 0:
        group = stat.S_IWGRP
    found = status.st_mode & (group | others)
    if not stat.S_ISREG(status.st_mode) or not found:
        return ""
    for above in path.resolve().parents:
        # Which only its owner may enter
        if not above.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH):
            return ""
    if found & others:
        return "others"
    return "its group"


_CONNECT_S = 5.0
_STATUS_S = 10.0


class UnreachableError(CheckpointError):
    """A node does not answer as it should: it is away, or the network is."""


class Link:
    """An authenticated connection, for one thread at a time."""

    def __init__(
        self, address: Endpoint, token: Token | bytes, *, limit_s: float = _CONNECT_S
    ) -> None:
        """Connect and prove the token, each within ``limit_s``; bytes are the node's own token.

        Raises CheckpointError: refused, or not trusted. OSError: it cannot be reached.
        """
        self._greeting: Body = {}  # a pooled link is not introduced twice
        self.welcome: Body = {}  # the node's last answer
        self.reads_memory = False  # the node reads this process's memory
        known = token if isinstance(token, Token) else Token(token)
        try:
            sock = address.open(limit_s)
            try:
                self.channel = Channel(sock)
                introduce(self.channel, known.secret, job=known.job, limit_s=limit_s)
            except BaseException as error:
                sock.close()
                # Each waits for the other
                if isinstance(error, TimeoutError) and address.url.startswith("tcp:"):
                    secure = address.url.replace("tcp:", "tcps:", 1)
                    raise TimeoutError(
                        f"it says nothing; if it speaks TLS, it is {secure}"
                    ) from None
                raise
        except CheckpointError as error:
            raise CheckpointError(f"{address.url}: {error}") from error

    def call(
        self,
        kind: Kind,
        body: Body | bytes = b"",
        expect: Kind | None = None,
        *,
        limit_s: float = FRAME_S,
        most: int = MOST_BODY,
    ) -> Frame:
        """Send a request, wait for its answer. Raises RequestRefused, OSError: it broke."""
        self.channel.send(kind, body, limit_s=limit_s)
        return self.answer(expect, limit_s=limit_s, most=most)

    def answer(
        self, expect: Kind | None = None, *, limit_s: float = FRAME_S, most: int = MOST_BODY
    ) -> Frame:
        frame = self.channel.receive(idle_s=limit_s, most=most)
        if frame.kind is Kind.ERROR or expect not in (None, frame.kind):
            raise unexpected(frame)
        return frame

    def explain(self, error: BaseException) -> BaseException:
        """The node's reason for closing the connection where ``error`` occurred, or the error."""
        if not isinstance(error, OSError) or isinstance(error, TimeoutError):
            return error
        try:
            frame = self.channel.receive(idle_s=1.0)
        except (OSError, ValueError):
            return error
        if frame.kind is Kind.ERROR:
            return unexpected(frame)
        return error

    def hello(self, body: Body, *, limit_s: float = FRAME_S) -> Body:
        """Introduce this side, unless that was done; returns the node's answer."""
        if self._greeting != body:
            self._greeting = {}
            self.welcome = self.call(Kind.HELLO, body, Kind.WELCOME, limit_s=limit_s).body
            self._greeting = dict(body)
        return self.welcome

    def close(self) -> None:
        self.channel.abort()
        self.channel.close()


def node_status(address: Endpoint, token: Token | bytes) -> Body:
    """Status of a node. Raises CheckpointError: it cannot be reached, or refuses."""
    try:
        with contextlib.closing(Link(address, token, limit_s=_STATUS_S)) as link:
            link.hello({"role": "status"}, limit_s=_STATUS_S)
            return link.call(
                Kind.STATUS, b"", Kind.METRICS, limit_s=_STATUS_S, most=MOST_DOCUMENT
            ).body
    except OSError as error:
        raise unreachable(address, error) from error


def unreachable(address: Endpoint, error: OSError) -> UnreachableError:
    """The error for a node that does not answer as it should."""
    return UnreachableError(
        f"{address.url}: {error.strerror or error or type(error).__name__}; {address.advice}"
    )


_LOG = logging.getLogger(__name__)
_POLL_S = 5.0
_AGAIN_S = 0.5
_SLOWEST_S = 10.0


@dataclass(eq=False)
class PendingVersion:
    """A checkpoint whose acknowledgments are awaited, once the node has reserved space for it."""

    version: int
    acknowledged: Acknowledge
    lost: Callable[[CheckpointError], None]  # once: no more acknowledgements will come
    lacks: str  # why it will never be durable
    moving_s: float  # time for its bytes, added to the limit
    sent: bool = False  # this rank's part is verified
    wanted: list[Level] = field(default_factory=lambda: [Level.REMOTE, Level.DURABLE])
    since: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if self.lacks:
            self.wanted.remove(Level.DURABLE)

    def reached(self, level: Level) -> bool:
        """Acknowledge a level and those below it once; returns whether nothing more is awaited."""
        with self.lock:
            while self.wanted and (self.wanted[0] is level or level is Level.DURABLE):
                self.acknowledged(self.wanted.pop(0))
                if not self.wanted and self.lacks:
                    self.lost(
                        MemoryOnlyError(
                            f"version {self.version} is in the node's memory only: {self.lacks}"
                        )
                    )
            return not self.wanted


class _States(NamedTuple):
    sequence: int
    receiving: set[int]
    complete: set[int]
    durable: set[int]
    stuck: dict[int, str]

    @classmethod
    def of(cls, body: Body) -> "_States":
        try:
            receiving, complete, durable = (
                {*map(int, body[k])} for k in ("receiving", "complete", "durable")
            )
            stuck = {int(number): str(why) for number, why in body.get("stuck", ())}
            return cls(int(body["sequence"]), receiving, complete, durable, stuck)
        except (KeyError, TypeError, ValueError):
            raise BrokenError("malformed states") from None


@dataclass(eq=False, repr=False)
class AckPoller:
    """A polling thread and its connection, for one job of a tier."""

    _url: str
    _connect: Callable[[], Link]
    _greeting: Body
    _limit_s: float

    def __post_init__(self) -> None:
        self._pending: set[PendingVersion] = set()
        self._link: Link | None = None
        self._closed = threading.Event()
        self._changed = threading.Condition()
        self._thread = start_thread(self._run, name="deepvm-tcp-poller")

    def add(self, pending: PendingVersion) -> None:
        with self._changed:
            self._pending.add(pending)

    def discard(self, pending: PendingVersion) -> None:
        with self._changed:
            self._pending.discard(pending)
            self._changed.notify_all()

    def settle(self, limit_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending, limit_s)

    def close(self) -> None:
        self._closed.set()
        if (link := self._link) is not None:
            link.channel.abort()
        if threading.current_thread() is not self._thread:
            self._thread.join(_POLL_S)

    def _run(self) -> None:
        sequence = -1
        pause_s = _AGAIN_S
        disconnected = False
        while not self._closed.is_set():
            try:
                if self._link is None:
                    self._link = self._connect()
                    self._link.hello(self._greeting)
                    if disconnected:
                        _LOG.warning("%s: acknowledgements are received again", self._url)
                    sequence = -1
                    disconnected = False
                # The answer is about those that the node knew when it was asked
                with self._changed:
                    asked = {p: p.sent for p in self._pending}
                question = {"sequence": sequence, "limit_ms": int(_POLL_S * 1000)}
                answer = self._link.call(
                    Kind.WAIT, question, Kind.STATE, limit_s=_POLL_S + _SLOWEST_S
                )
                states = _States.of(answer.body)
                sequence = states.sequence
                pause_s = _AGAIN_S
                if self._acknowledge(asked, states):
                    # The answer may be about a checkpoint that came meanwhile: ask again
                    sequence = -1
            except Exception as error:
                # Of any kind: no answer of the node may cost the trainer its poller
                self._disconnect(error, logged=disconnected)
                disconnected = True
                if self._closed.wait(pause_s):
                    break
                pause_s = min(2 * pause_s, _SLOWEST_S)
            self._expire()
        self._disconnect(None)

    def _disconnect(self, error: Exception | None, logged: bool = False) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None
        if error is None or self._closed.is_set():
            return
        expected = isinstance(error, (OSError, CheckpointError))
        if not logged or not expected:
            text = "%s: acknowledgements cannot be received for now: %s"
            _LOG.warning(text, self._url, error, exc_info=not expected)
        if isinstance(error, RequestRefused) and error.code == "stale":
            for pending in self._awaited():
                self._give_up(pending, str(error))

    def _awaited(self) -> list[PendingVersion]:
        with self._changed:
            return sorted(self._pending, key=lambda p: p.version)

    def _acknowledge(self, asked: Mapping[PendingVersion, bool], states: _States) -> bool:
        _, receiving, complete, durable, stuck = states
        awaited = self._awaited()
        for pending in (p for p in awaited if p in asked):
            number = pending.version
            done = False
            # A callback that fails must not cost the other checkpoints their acknowledgement
            with _logged(pending):
                if number in durable:
                    done = pending.reached(Level.DURABLE)
                elif number in complete:
                    done = pending.reached(Level.REMOTE)
                    if number in stuck and not done:
                        self._give_up(pending, f"the node's disk does not take it: {stuck[number]}")
                elif asked[pending] and number not in receiving:
                    self._give_up(pending, "the memory node gave it up", VersionGoneError)
            if done:
                self.discard(pending)
        return any(p.version in complete | durable for p in awaited if p not in asked)

    def _expire(self) -> None:
        for pending in self._awaited():
            limit_s = self._limit_s + pending.moving_s
            if time.monotonic() - pending.since > limit_s:
                levels = " and ".join(level.value for level in pending.wanted)
                self._give_up(pending, f"it was not {levels} in {limit_s:.0f} s")

    def _give_up(
        self, pending: PendingVersion, reason: str, kind: type[CheckpointError] = CheckpointError
    ) -> None:
        _LOG.warning("version %d: %s", pending.version, reason)
        with _logged(pending):
            pending.lost(kind(f"version {pending.version}: {reason}"))
        self.discard(pending)


@contextlib.contextmanager
def _logged(pending: PendingVersion) -> Iterator[None]:
    try:
        yield
    except Exception:
        _LOG.exception("version %d: a callback failed", pending.version)
