"""The pages of jobs as a web application, live, for clients with the token."""

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from deepvm.jobs.history.history import EventRow, History
from deepvm.jobs.standing import job_lines, standing_of
from deepvm.reports.jobs.run_page import JobsPage, RunPage

# Of every response; what a page itself may do is in its own policy
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class TokenAuth:
    """ASGI middleware: a client without the token gets a status and no content."""

    # The token comes once in the address, is exchanged for a cookie that no script can read and no
    # other site can send, and the browser continues at an address without it.

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()
        # One browser may look at several servers of this machine: cookies know no ports.
        self._cookie = f"deepvm-{hashlib.sha256(self._token).hexdigest()[:12]}"
        self._proof = hmac.new(self._token, b"cookie", hashlib.sha256).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # No page here uses one
            await WebSocketClose(1008)(scope, receive, send)
            return

        async def send_hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        answer = self._refusal(Request(scope)) or self._app
        await answer(scope, receive, send_hardened)

    def _refusal(self, request: Request) -> Response | None:
        """The response of the middleware itself; None: the application may respond."""
        tokens = request.query_params.getlist("token")
        if len(tokens) == 1 and hmac.compare_digest(tokens[0].encode(), self._token):
            response = RedirectResponse("/", 303)  # never to the address of the request
            response.set_cookie(self._cookie, self._proof, httponly=True, samesite="strict")
            return response
        # A page of another site whose name resolves to this machine has no cookie of this name.
        cookie = request.cookies.get(self._cookie, "")
        if hmac.compare_digest(cookie.encode(), self._proof.encode()):
            return None
        return Response(status_code=403)


BEAT_S, LOOK_S = 5.0, 1.0  # Between signs of life of a stream; between looks at the history
_LOOK_SHARE = 4.0  # Looking takes at most one part in so many, and one, of the time


class Reader:
    """Reads pages, one at a time, from any thread; each at most once a second for all clients."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._lock = threading.Lock()
        self._pages: dict[str, tuple[JobsPage | RunPage, float]] = {}

    def page(self, name: str) -> JobsPage | RunPage:
        with self._lock:
            page, fresh_until_s = self._pages.get(name, (None, 0.0))
            start_s = time.monotonic()
            if page is None or start_s > fresh_until_s:
                page = self._read(name, page)
                _ = page.parts  # drawn here, once for all
                end_s = time.monotonic()
                # A page that takes long to read is read less often
                fresh_until_s = end_s + max(LOOK_S / 2, _LOOK_SHARE * (end_s - start_s))
                self._pages[name] = page, fresh_until_s
            return page

    def _read(self, name: str, known: JobsPage | RunPage | None) -> JobsPage | RunPage:
        if not name:
            return JobsPage(job_lines(self._history, time.time()))
        row = self._history.job(name)
        if row is None:
            raise HTTPException(404, "There is no such job.\n")
        events: Sequence[EventRow] = ()
        if isinstance(known, RunPage):
            if known.job.over and known.job.row == row:
                return known  # nothing happens to it any more
            events = known.job.events
        return RunPage(standing_of(self._history, row, time.time(), events))


class Site:
    """The requests. ``closing``: set when the server ends, for streams have no end."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.closing = asyncio.Event()

    def application(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/", self._page),
                Route("/events", self._stream),
                Route("/jobs/{name}", self._page),
                Route("/jobs/{name}/events", self._stream),
            ]
        )

    async def _page(self, request: Request) -> Response:
        page = await asyncio.to_thread(self._reader.page, request.path_params.get("name", ""))
        text = await asyncio.to_thread(page.render, nonce=secrets.token_urlsafe(16))
        return HTMLResponse(text)

    async def _stream(self, request: Request) -> Response:
        name = request.path_params.get("name", "")
        # A job that does not exist is refused before the stream starts
        await asyncio.to_thread(self._reader.page, name)
        after = request.headers.get("last-event-id") or request.query_params.get("after", "")
        number = 0
        if after.isascii() and after.isdigit():
            number = int(after)
        return StreamingResponse(
            self._news(name, number),
            media_type="text/event-stream",
            headers={"x-accel-buffering": "no"},
        )

    async def _news(self, name: str, after: int) -> AsyncIterator[str]:
        """Server-sent events: parts of the page that have changed, rows after number ``after``."""
        sent: dict[str, str] = {}
        beat_s = time.monotonic() + BEAT_S
        yield "retry: 2000\n\n"
        while not self.closing.is_set():
            text = ""
            # A history that cannot be read now may be readable later.
            with contextlib.suppress(Exception):
                page = await asyncio.to_thread(self._reader.page, name)
                text = _changes(page, sent, after)
                after = page.last_event
            if not text and time.monotonic() >= beat_s:
                text = "event: beat\ndata: {}\n\n"
            if text:
                yield text
                beat_s = time.monotonic() + BEAT_S
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.closing.wait(), LOOK_S)


def _changes(page: JobsPage | RunPage, sent: dict[str, str], after: int) -> str:
    parts = {name: text for name, text in page.parts.items() if sent.get(name) != text}
    rows = ""
    if page.last_event > after:
        rows = page.event_rows(after)
    if not parts and not rows:
        return ""
    sent.update(parts)
    data = json.dumps({"parts": parts, "rows": rows})
    return f"id: {page.last_event}\nevent: state\ndata: {data}\n\n"


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, site: Site) -> None:
        super().__init__(config)
        self._site = site

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._site.closing.set()
        super().handle_exit(sig, frame)


def serve(history: History, token: str, host: str, port: int, ready: Callable[[int], None]) -> None:
    """Serve until Ctrl-C or SIGTERM; ``ready`` is called with the port."""
    family = socket.AF_INET
    if ":" in host:
        family = socket.AF_INET6
    with socket.create_server((host, port), family=family, backlog=128) as listening:

        async def run() -> None:
            site = Site(Reader(history))
            config = uvicorn.Config(
                TokenAuth(site.application(), token),
                log_level="error",
                access_log=False,  # addresses may have the token
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=2,
            )
            ready(listening.getsockname()[1])
            await _Server(config, site).serve([listening])

        asyncio.run(run())
