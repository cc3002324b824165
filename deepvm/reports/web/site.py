"""The pages of jobs as a web application: all jobs, each job, and their streams."""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from deepvm.jobs.history.history import EventRow, History
from deepvm.jobs.standing import JobStatus, job_lines, standing_of
from deepvm.reports.jobs.jobs_page import JobsPage
from deepvm.reports.jobs.run_page import RunPage
from deepvm.reports.web.guard import TokenAuth
from deepvm.reports.web.watching import MOST_STREAMS, EventStream, LiveUpdates, PageSnapshot

ALL = ""
"""The page of all jobs, as streams call it; jobs have names."""


@dataclass(frozen=True)
class _Run:
    page: RunPage

    @property
    def parts(self) -> dict[str, str]:
        return self.page.parts

    @property
    def last(self) -> int:
        return self.page.last_event

    def rows(self, after: int) -> str:
        return self.page.event_rows(after)


@dataclass(frozen=True)
class _All:
    page: JobsPage
    last: int = 0

    @property
    def parts(self) -> dict[str, str]:
        return self.page.parts

    def rows(self, after: int) -> str:
        return ""


class UnknownJobError(Exception):
    """There is no job of that name."""


class Reader:
    """Reads jobs; one at a time, from any thread.

    What has been read of a job's events is not read again.
    """

    def __init__(self, history: History, version: str) -> None:
        """Read nothing yet."""
        self._history, self._version, self._lock = history, version, threading.Lock()
        self._events: dict[str, list[EventRow]] = {}
        self._over: dict[str, _Run] = {}

    def look(self, name: str) -> PageSnapshot:
        """A page as it is now. Raises UnknownJobError, or what reading raises."""
        with self._lock:
            return (
                self._run(name)
                if name
                else _All(JobsPage(job_lines(self._history, time.time()), self._version))
            )

    def knows(self, name: str) -> bool:
        """Whether there is a job of this name."""
        with self._lock:
            return self._history.job(name) is not None

    def page(self, name: str, nonce: str) -> str:
        """A whole page, served."""
        shown = self.look(name)
        assert isinstance(shown, _Run | _All)
        return shown.page.render(nonce=nonce)

    def _run(self, name: str) -> _Run:
        row = self._history.job(name)
        if row is None:
            raise UnknownJobError(name)
        known = self._over.get(name)
        if known is not None and row == known.page.job.row:
            return known  # nothing happens to it any more
        job: JobStatus = standing_of(self._history, row, time.time(), self._events.get(name, ()))
        self._events = (
            {name: list(job.events)}
            if len(self._events) > 50
            else {**self._events, name: list(job.events)}
        )
        found = _Run(RunPage(job, self._version))
        _ = found.parts  # made here, once for all who look
        self._over = {name: found} if job.over else {}
        return found


def application(reader: Reader, watching: LiveUpdates, token: str, names: list[str]) -> TokenAuth:
    """The web application."""

    async def page(request: Request) -> Response:
        nonce = secrets.token_urlsafe(16)
        try:
            text = await asyncio.to_thread(reader.page, request.path_params.get("name", ALL), nonce)
        except UnknownJobError:
            return Response("There is no such job.\n", 404, media_type="text/plain")
        policy = (
            f"default-src 'none'; connect-src 'self'; script-src 'nonce-{nonce}'; style-src"
            f" 'nonce-{nonce}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return HTMLResponse(text, headers={"content-security-policy": policy})

    async def stream(request: Request) -> Response:
        name = request.path_params.get("name", ALL)
        if watching.streams >= MOST_STREAMS:
            return Response("Too many pages are open.\n", 503, media_type="text/plain")
        if name and not await asyncio.to_thread(reader.knows, name):
            return Response(status_code=404)
        given = request.headers.get("last-event-id") or request.query_params.get("after", "")
        return EventStream(watching, name, int(given) if given.isascii() and given.isdigit() else 0)

    routes = [Route("/", page), Route("/events", stream)]
    routes += [Route("/jobs/{name}", page), Route("/jobs/{name}/events", stream)]
    return TokenAuth(Starlette(routes=routes), token, names)


class _Server(uvicorn.Server):
    """Ends the streams before it waits for the answers that are under way: streams have no end."""

    def __init__(self, config: uvicorn.Config, watching: LiveUpdates) -> None:
        super().__init__(config)
        self._watching = watching

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._watching.closing.set()
        super().handle_exit(sig, frame)


def serve(
    history: History, version: str, token: str, host: str, port: int, ready: Callable[[int], None]
) -> None:
    """Serve until Ctrl-C or SIGTERM; ``ready`` is told the port.

    Raises OSError: it cannot listen there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=128) as listening:

        async def run() -> None:
            reader = Reader(history, version)
            watching = LiveUpdates(reader.look)
            config = uvicorn.Config(
                application(reader, watching, token, [host]),
                log_level="error",
                access_log=False,  # addresses may have the token
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=2,
            )
            looking = asyncio.create_task(watching.run())
            ready(listening.getsockname()[1])
            try:
                await _Server(config, watching).serve([listening])
            finally:
                looking.cancel()

        asyncio.run(run())
