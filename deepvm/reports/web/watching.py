"""What browsers look at, read again and again, once for all of them.

And the stream that tells each what is new.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

BEAT_S, LOOK_S, SEND_S = 5.0, 1.0, 30.0
"""Between signs of life; between looks at the history.

How long a browser may take for what it was sent.
"""
MOST_STREAMS = 200
_SHARE = 4.0
"""Looks take at most one part in so many, and one, of the time."""


class PageSnapshot(Protocol):
    """A page as it is now: parts by name, and rows that only become more."""

    @property
    def parts(self) -> Mapping[str, str]:
        """Each whole."""

    @property
    def last(self) -> int:
        """The number of the last row."""

    def rows(self, after: int) -> str:
        """The rows with larger numbers."""


@dataclass
class _Topic:
    shown: PageSnapshot | None = None
    watchers: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, shown: PageSnapshot) -> None:
        same = (
            self.shown is not None
            and shown.last == self.shown.last
            and shown.parts == self.shown.parts
        )
        self.shown = shown
        if not same:
            self.changed.set()
            self.changed = asyncio.Event()


class LiveUpdates:
    """Reads each page that somebody looks at, and wakes those who do; ``look`` reads one, in a thread."""

    def __init__(self, look: Callable[[str], PageSnapshot], look_s: float = LOOK_S) -> None:
        """Look at nothing yet."""
        self._look, self._look_s = look, look_s
        self._topics: dict[str, _Topic] = {}
        self._first = asyncio.Event()
        self.closing = asyncio.Event()

    @property
    def streams(self) -> int:
        """How many browsers look."""
        return sum(topic.watchers for topic in self._topics.values())

    async def run(self) -> None:
        """Look, until this task is cancelled."""
        while True:
            self._first.clear()
            began_s = time.monotonic()
            for name, topic in list(self._topics.items()):
                # A history that cannot be read now may be later; meanwhile pages say what they
                # have, and how old it is.
                with contextlib.suppress(Exception):
                    topic.put(await asyncio.to_thread(self._look, name))
            pause_s = max(self._look_s, _SHARE * (time.monotonic() - began_s))
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._first.wait(), pause_s if self._topics else None)

    @contextlib.asynccontextmanager
    async def topic(self, name: str) -> AsyncIterator[_Topic]:
        """A page while somebody looks at it."""
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _Topic()
            self._first.set()
        topic.watchers += 1
        try:
            yield topic
        finally:
            topic.watchers -= 1
            if not topic.watchers:
                self._topics.pop(name, None)


class EventStream(Response):
    """Server-sent events of one page: the parts that have changed, the rows after what the browser has.

    Nothing is queued: a browser that is slow gets fewer, newer states, and keeps nobody waiting.
    """

    def __init__(self, watching: LiveUpdates, name: str, after: int) -> None:
        """``after``: the number of the last row that the browser has."""
        self._watching, self._name, self._after = watching, name, after
        super().__init__(headers={"content-type": "text/event-stream", "x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the browser is gone, or the server ends."""

        async def gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        async with self._watching.topic(self._name) as topic:
            ends: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(gone()),
                asyncio.ensure_future(self._watching.closing.wait()),
            ]
            try:
                await send(
                    {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                )
                await self._tell(topic, ends, send)
                await send({"type": "http.response.body", "body": b""})
            except (OSError, asyncio.TimeoutError):
                return  # it left in the middle of a message, or takes none
            finally:
                for end in ends:
                    end.cancel()

    async def _tell(self, topic: _Topic, ends: list[asyncio.Future[Any]], send: Send) -> None:
        sent: dict[str, str] = {}
        after, told = self._after, None
        await _send(send, "retry: 2000\n\n")
        while not any(end.done() for end in ends):
            changed = asyncio.ensure_future(topic.changed.wait())
            shown = topic.shown
            if shown is not None and shown is not told:
                parts = {name: text for name, text in shown.parts.items() if sent.get(name) != text}
                rows = shown.rows(after)
                if parts or rows:
                    data = json.dumps({"parts": parts, "rows": rows})
                    await _send(send, f"id: {shown.last}\nevent: state\ndata: {data}\n\n")
                sent |= parts
                after, told = shown.last, shown
            done, _ = await asyncio.wait(
                [changed, *ends], timeout=BEAT_S, return_when=asyncio.FIRST_COMPLETED
            )
            changed.cancel()
            if not done:
                await _send(send, "event: beat\ndata: {}\n\n")


async def _send(send: Send, text: str) -> None:
    message = {"type": "http.response.body", "body": text.encode(), "more_body": True}
    await asyncio.wait_for(send(message), SEND_S)
