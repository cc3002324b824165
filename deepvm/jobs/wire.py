"""Authentication of agents and controller: signed HTTP messages, each accepted once.

Each machine has a secret of its own, the HMAC of its name under the job's secret. A message is JSON
with the machine's name, the nonce of the controller, a session of the sender, and a number that
grows; its HMAC is a header. An answer is signed with the nonce, session and number of its question.
"""

import hashlib
import hmac
import json
import secrets
import time
from typing import Any

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.errors import DeepVMError
from deepvm.records import dataclass, field

HEADER = "X-DeepVM-Signature"
LARGEST = 1_000_000  # Bytes of a message
USER = "user"  # The name under which the user's own commands are signed; no machine has it
# Longest time between heartbeats of near machines (:class:`~.cloud.Cloud`) and others
NEAR_BEAT_S, FAR_BEAT_S = 1.0, 5.0
_SESSIONS = 64  # of a machine, that are remembered


class WireError(DeepVMError):
    """A message that is not to be trusted, or says nothing."""


def new_secret() -> str:
    """The secret of a job."""
    return secrets.token_hex(32)


def secret_of(job_secret: str, machine: str) -> bytes:
    """The secret of one of a job's machines."""
    about = f"deepvm machine {machine}".encode()
    return hmac.new(bytes.fromhex(job_secret), about, hashlib.sha256).digest()


def _signature(secret: bytes, kind: str, number: int, body: bytes) -> str:
    return hmac.new(secret, f"{kind} {number} ".encode() + body, hashlib.sha256).hexdigest()


def _answer_to(nonce: str, session: str) -> str:
    return f"answer {nonce} {session}"


def _is_same(one: str, other: str) -> bool:
    # As bytes: texts with other than ASCII cannot be compared, and a header may have any.
    return hmac.compare_digest(one.encode(), other.encode("utf-8", "replace"))


def token_of(job_secret: str) -> str:
    """The token of a job's memory node."""
    return hmac.new(bytes.fromhex(job_secret), b"deepvm memory node", hashlib.sha256).hexdigest()


def _covered(secret: bytes, key: bytes, session: str, number: int) -> bytes:
    """With a pad that no other message has: 32 bytes covered, or uncovered again."""
    pad = hmac.new(key, f"secret {session} {number}".encode(), hashlib.sha256).digest()
    return bytes(a ^ b for a, b in zip(secret, pad, strict=True))


@dataclass
class Sender:
    """What an agent signs with, for messages of one kind; for one thread."""

    machine: str
    secret: bytes = field(repr=False)
    nonce: str = ""
    session: str = field(default_factory=lambda: f"{time.time_ns():016x}{secrets.token_hex(8)}")
    number: int = 0

    def sealed(self, message: JsonObject) -> tuple[bytes, str]:
        self.number += 1
        who = {"machine": self.machine, "nonce": self.nonce, "session": self.session}
        body = json.dumps({**message, **who, "number": self.number}).encode()
        return body, _signature(self.secret, "message", self.number, body)

    def shown(self, sealed: str) -> str:
        return _covered(bytes.fromhex(sealed), self.secret, self.session, self.number).hex()

    def opened(self, body: bytes, signature: str) -> JsonDict:
        """Raises WireError: it is not the controller's answer to the last message."""
        kind = _answer_to(self.nonce, self.session)
        if not _is_same(_signature(self.secret, kind, self.number, body), signature):
            raise WireError("an answer that the controller has not signed")
        return _object(body)


class Receiver:
    """What the controller reads messages with."""

    def __init__(self, job_secret: str) -> None:
        self.nonce = secrets.token_hex(16)
        self._secret = job_secret
        self._seen: dict[str, dict[str, int]] = {}
        # By machine: sessions up to this one are rejected; their names start with the time
        self._over: dict[str, str] = {}

    def opened(self, body: bytes, signature: str) -> JsonDict:
        """Raises WireError: not signed by the machine that it names, or seen before."""
        message = _object(body)
        machine = message.get("machine")
        session = message.get("session")
        number = message.get("number")
        if not isinstance(machine, str) or not isinstance(session, str) or type(number) is not int:
            raise WireError("a message without machine, session or number")
        try:
            secret = secret_of(self._secret, machine)
        except UnicodeEncodeError:
            raise WireError("a machine's name that is not text") from None
        if not _is_same(_signature(secret, "message", number, body), signature):
            raise WireError("a message with a wrong signature")
        if message.get("nonce") != self.nonce:
            raise WireError("a message for another controller")
        seen = self._seen.setdefault(machine, {})
        # Numbers grow within a session; a session that was forgotten is older than all kept
        if number <= seen.get(session, 0) or session <= self._over.get(machine, ""):
            raise WireError("a message that was seen before")
        seen[session] = number
        # An agent that restarts again and again must not fill the controller's memory.
        if len(seen) > _SESSIONS:
            oldest = self._over[machine] = min(seen)
            del seen[oldest]
        return message

    def hidden(self, secret: str, message: JsonObject) -> str:
        """A secret of 64 hex digits, encrypted so that only the message's sender can read it."""
        key = secret_of(self._secret, message["machine"])
        return _covered(bytes.fromhex(secret), key, message["session"], message["number"]).hex()

    def sealed(self, answer: JsonObject, message: JsonObject) -> tuple[bytes, str]:
        body = json.dumps(answer).encode()
        kind = _answer_to(self.nonce, message["session"])
        key = secret_of(self._secret, message["machine"])
        return body, _signature(key, kind, message["number"], body)


def _no_number(name: str) -> Any:
    # Python's JSON takes NaN and infinities, with which comparisons of times go wrong
    raise ValueError(f"{name} is not JSON")


def _object(body: bytes) -> JsonDict:
    if len(body) > LARGEST:
        raise WireError("a message that is too large")
    try:
        found = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise WireError("a message that is not JSON") from None
    if not isinstance(found, dict):
        raise WireError("a message that is not an object")
    return found
