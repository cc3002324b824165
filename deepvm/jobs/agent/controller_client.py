"""The agent's connection to the controller: the agent asks; nothing connects to an agent."""

import http.client
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.io.failpoints import point
from deepvm.io.threads import start_thread
from deepvm.jobs.loggers import agent_log as log
from deepvm.jobs.wire import HEADER, LARGEST, Sender, WireError
from deepvm.records import dataclass, field, fields

RETRY_S = 0.2
_MOST_RETRY_S = 5.0
# Timeout for a lost head: agents must find the next one before it calls them silent (15 s)
CONNECT_S = 3.0
LINE = "line"  # The event of a line that a trainer has printed
LEFT = "left"  # That of a machine that may be released: its outputs are kept, and it ends
_DRAIN_S = 0.05
# Events that may wait for the controller; the oldest lines beyond it are dropped and counted
_MOST_WAITING = 10_000
# Longest text, most events per message, and their bytes: trainers may print huge lines
_LONGEST, _MOST_TOGETHER, _MOST_BYTES = 2_000, 100, LARGEST // 2


class ControllerUnreachable(ConnectionError):
    """The controller does not answer."""


class MessageTooLarge(ControllerUnreachable):
    """The controller takes no message of this size."""


@dataclass
class DesiredState:
    """The newest orders, as the controller sent them; 0 or None: unknown, or never."""

    digest: str = ""
    shutdown: bool = False
    generation: int = 0
    ranks: list[JsonDict] = field(default_factory=list)
    tiers: list[str] = field(default_factory=list)
    port: int = 0
    save: JsonDict | None = None
    schedule: JsonDict | None = None
    mttp_s: float | None = None  # Mean time until a machine of the generation is preempted
    missed_rate: float = 0.0  # How often that comes without a notice
    save_s: float = 0.0  # These two: what the newest checkpoint has cost, see SaveFacts
    took_s: float = 0.0

    @classmethod
    def of(cls, answer: JsonObject) -> "DesiredState":
        return cls(**{one.name: answer[one.name] for one in fields(cls) if one.name in answer})


class ControllerClient:
    """Messages of one kind; each thread has its own client."""

    def __init__(self, where: Callable[[], str], machine: str, secret: bytes) -> None:
        """``where``: the controller's URL now; another one after it was started elsewhere."""
        self._where = where
        self._sender = Sender(machine, secret)
        self._connection: http.client.HTTPConnection | None = None
        self._url = ""

    def ask(self, path: str, message: JsonObject, limit_s: float = 30.0) -> JsonDict:
        """Raises ControllerUnreachable; WireError: an answer that is not the controller's."""
        # A controller that was started again has another nonce, and an old connection is closed
        for _ in range(2):
            try:
                if self._connection is None or self._url != self._where():
                    self._connect(limit_s)
                assert self._connection is not None
                if self._connection.sock is not None:
                    self._connection.sock.settimeout(limit_s)
                body, signature = self._sender.sealed(message)
                # A refusal would come in the middle of it, as a connection that breaks
                if len(body) > LARGEST:
                    raise MessageTooLarge(f"{path}: {len(body)} bytes")
                self._connection.request(
                    "POST", path, body, {HEADER: signature, "Content-Type": "application/json"}
                )
                answer = self._connection.getresponse()
                found = answer.read(LARGEST + 1)
                if answer.status == 200:
                    return self._sender.opened(found, answer.getheader(HEADER, ""))
                self.close()
                if answer.status != 401:
                    raise ControllerUnreachable(f"{answer.status} {answer.reason}")
            except MessageTooLarge:
                raise
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.close()
                last: Exception = error
            else:
                last = ControllerUnreachable("401 Unauthorized")
        raise ControllerUnreachable(str(last) or type(last).__name__)

    def shown(self, sealed: str) -> str:
        return self._sender.shown(sealed)

    def fetch(self, path: str, target: Path, limit_s: float = 600.0) -> None:
        """Save a file of the controller's. Raises ControllerUnreachable, OSError."""
        size = int(self.ask(path, {}, limit_s)["bytes"])
        offset = 0
        with target.open("wb") as file:
            while offset < size:
                piece = bytes.fromhex(self.ask(path, {"offset": offset}, limit_s)["data"])
                if not piece:
                    raise ControllerUnreachable(f"{path} is shorter than {size} bytes")
                file.write(piece)
                offset += len(piece)

    def _connect(self, limit_s: float) -> None:
        self.close()
        self._url = self._where()
        parts = urlsplit(self._url)
        self._connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port, timeout=min(limit_s, CONNECT_S)
        )
        self._connection.connect()
        self._connection.sock.settimeout(limit_s)
        self._connection.request("GET", "/nonce")
        answer = self._connection.getresponse()
        self._sender.nonce = answer.read(100).decode("ascii", "replace")
        if answer.status != 200:
            raise ControllerUnreachable(f"{answer.status} {answer.reason}")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Reporter:
    """Sends what has happened, in order, until the controller has received it."""

    def __init__(self, client: ControllerClient, lost: threading.Event) -> None:
        self._client = client
        self._lost = lost  # set when reports have no receiver any more
        self._events: list[JsonDict] = []
        self._change = threading.Condition()
        self._number = time.time_ns()  # an agent that is started again continues to count
        self._thread = start_thread(self._run, name="report")

    def add(self, kind: str, **facts: Any) -> int:
        """Report something; returns its number. Long texts are cut."""
        facts = {key: _cut(key, value) for key, value in facts.items()}
        with self._change:
            self._number += 1
            self._events.append({"event": kind, "of": self._number, "at": time.time(), **facts})
            # Only lines may go missing: each other report changes what the controller does.
            if len(self._events) > _MOST_WAITING and kind == LINE:
                self._drop_line()
            self._change.notify()
            return self._number

    def _drop_line(self) -> None:
        lines = (
            n for n in range(_MOST_TOGETHER, len(self._events)) if self._events[n]["event"] == LINE
        )
        first = next(lines, None)
        second = next(lines, None)
        if first is None or second is None:
            return
        dropped = self._events.pop(first).get("dropped", 1) + 1
        self._events[second - 1] |= {
            "text": f"[{dropped} lines are missing here: they came faster than they could be sent]",
            "dropped": dropped,
        }

    def forget(self, generation: int) -> None:
        with self._change:
            self._events = [
                event
                for event in self._events
                if event["event"] == LINE or event.get("generation", generation) >= generation
            ]

    def drain(self, limit_s: float) -> None:
        """Wait until the controller has received all of it."""
        until_s = time.monotonic() + limit_s
        while self.waiting and time.monotonic() < until_s:
            time.sleep(_DRAIN_S)

    def is_heard(self, number: int) -> bool:
        with self._change:
            return all(event["of"] != number for event in self._events)

    @property
    def waiting(self) -> int:
        return len(self._events)

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        pause_s = RETRY_S
        together = _MOST_TOGETHER
        while not self._lost.is_set():
            with self._change:
                self._change.wait_for(lambda: self._events, 1.0)
                some = _first(self._events, together)
            if not some:
                continue
            try:
                point("agent.before-report")
                self._client.ask("/report", {"events": some})
                point("agent.after-report")
            except MessageTooLarge:
                # One of them is too large: they go one by one, so that only that one is dropped.
                if len(some) > 1:
                    together = 1
                    continue
                log.warning("a report is too large, and is dropped: %s", some[0]["event"])
            except (ControllerUnreachable, WireError) as error:
                log.debug("the controller does not answer: %s", error)
                self._lost.wait(pause_s)
                pause_s = min(2 * pause_s, _MOST_RETRY_S)
                continue
            pause_s = RETRY_S
            together = _MOST_TOGETHER
            with self._change:
                # By number, as forget() may have dropped some of them while they were sent.
                self._events = [e for e in self._events if e["of"] > some[-1]["of"]]


def _cut(key: str, value: Any) -> Any:
    """The end of what was printed, the beginning of other texts."""
    if isinstance(value, str):
        cut = len(value) - _LONGEST
        if key == "text" or cut <= 0:
            return _end_of(value)
        return f"{value[:_LONGEST]} [{cut} characters cut]"
    if not isinstance(value, list):
        return value
    found = []
    size = 0
    for line in map(_end_of, reversed(value)):
        size += len(json.dumps(line)) + 2
        if size > _MOST_BYTES:
            break
        found.append(line)
    return found[::-1]


def _end_of(text: str) -> str:
    cut = len(text) - _LONGEST
    if cut <= 0:
        return text
    return f"[{cut} characters cut] {text[cut:]}"


def _first(events: list[JsonDict], limit: int) -> list[JsonDict]:
    size = 0
    for number, event in enumerate(events[:limit]):
        size += len(json.dumps(event)) + 2
        if number and size > _MOST_BYTES:
            return events[:number]
    return events[:limit]
