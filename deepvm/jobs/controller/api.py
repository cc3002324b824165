"""The controller's web server: what agents ask, which silent connections cannot block."""

import asyncio
import resource
import socket
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from deepvm.core.json_types import JsonObject
from deepvm.errors import DeepVMError
from deepvm.jobs.cloud import RefusedError
from deepvm.jobs.wire import HEADER, LARGEST, Receiver, WireError

_BODY_S = 30.0
# Connections that have not yet sent a signed message; of more, the oldest is closed
MOST_STRANGERS = 512
_BACKLOG = 2048
_KEPT_S = 75  # else idle connections close at the very period of the heartbeats
# What may be asked: the job's specification and code, a heartbeat, events, and commands
MESSAGES = ("job", "code", "beat", "report", "schedule", "command")


class BusyError(DeepVMError):
    """The message is not recorded; it must be sent again."""


def application(
    controller: Any, receiver: Receiver, waiting: dict[Any, asyncio.BaseTransport]
) -> Starlette:
    """The controller's web application; ``waiting``: connections of senders not verified yet."""

    async def nonce(_: Request) -> Response:
        return PlainTextResponse(receiver.nonce)

    async def signed(request: Request) -> Response:
        kind = request.path_params["kind"]
        if kind not in MESSAGES:
            return PlainTextResponse("", 404)
        try:
            body = await asyncio.wait_for(_body(request), _BODY_S)
            if len(body) > LARGEST:
                return PlainTextResponse("too large", 413, {"Connection": "close"})
            message = receiver.opened(body, request.headers.get(HEADER, ""))
        except (ClientDisconnect, asyncio.TimeoutError, asyncio.CancelledError):
            # Or the controller leaves
            return PlainTextResponse("", 400, {"Connection": "close"})
        except WireError as error:
            return PlainTextResponse(str(error), 401)
        machine = str(message["machine"])
        if request.client is not None:
            waiting.pop(tuple(request.client), None)
        try:
            found = await _unless_gone(request, getattr(controller, kind)(machine, message))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return PlainTextResponse(f"{type(error).__name__}: {error}", 400)
        except (BusyError, asyncio.CancelledError) as error:
            return PlainTextResponse(str(error), 503)
        if found is None:
            if kind == "beat":  # who waits for another answer may have given it up
                controller.gone(machine)
            return PlainTextResponse("", 400)
        sealed, signature = receiver.sealed(found, message)
        return Response(sealed, media_type="application/json", headers={HEADER: signature})

    return Starlette(routes=[Route("/nonce", nonce), Route("/{kind}", signed, methods=["POST"])])


async def _body(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LARGEST:
            break
    return body


async def _unless_gone(request: Request, answer: Awaitable[JsonObject]) -> JsonObject | None:
    async def broken() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(answer),
        asyncio.ensure_future(broken()),
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        for task in tasks:
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


class Server(uvicorn.Server):
    """Leaves signals to the controller."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listening(host: str, port: int) -> socket.socket:
    """A socket at an address and a port, 0 for any that is free. Raises RefusedError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        # With its protocol, else asyncio delays small answers by 40 ms
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(_BACKLOG)
        except OSError:
            bound.close()
            raise
        return bound
    except OSError as error:
        where = f"{host}:{port}" if port else host
        raise RefusedError(
            f"the controller cannot listen at {where}: {error.strerror or error}"
        ) from None


def server_of(controller: Any, receiver: Receiver) -> Server:
    """A server of :func:`application`, not started yet."""
    waiting = dict[Any, asyncio.BaseTransport]()

    class Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            waiting[transport.get_extra_info("peername")] = transport
            if len(waiting) > MOST_STRANGERS:
                waiting.pop(next(iter(waiting))).close()

        def connection_lost(self, exc: Exception | None) -> None:
            waiting.pop(self.transport.get_extra_info("peername"), None)
            super().connection_lost(exc)

    # Three connections of each agent: by default a process may have 1024 open files.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    config = uvicorn.Config(
        application(controller, receiver, waiting),
        http=Protocol,
        log_level="error",
        timeout_keep_alive=_KEPT_S,
        lifespan="off",
    )
    return Server(config)


class ChangeSignal:
    """Wakes all waiters of one event loop."""

    # Not an asyncio.Condition: a cancelled waiter may keep its lock (before Python 3.12)
    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, limit_s: float) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._next.wait(), limit_s)
