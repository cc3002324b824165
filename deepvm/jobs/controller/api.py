"""What agents ask the controller, over HTTP; every message is signed (:mod:`deepvm.jobs.wire`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from deepvm.core.json_types import JsonObject
from deepvm.errors import DeepVMError
from deepvm.jobs.wire import HEADER, LARGEST, Receiver, WireError

_BODY_S = 30.0


class BusyError(DeepVMError):
    """The message is not recorded; it must be sent again."""


MESSAGES = ("job", "code", "beat", "report", "schedule", "command")
"""What may be asked: the job's specification and code, a heartbeat, events, and commands."""


def application(
    controller: Any, receiver: Receiver, known: Callable[[Any], None] = lambda peer: None
) -> Starlette:
    """The controller's web application; ``known`` gets the address of each verified sender.

    ``controller`` has a method for each of :data:`MESSAGES`, which gets the machine and the message
    and returns the answer, and ``gone`` for a machine whose heartbeat lost its connection.
    """

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
            known(tuple(request.client))
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

    routes = [Route("/nonce", nonce), Route("/{kind}", signed, methods=["POST"])]
    return Starlette(routes=routes)


async def _body(request: Request) -> bytes:
    """The body, or its beginning if it is too large."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LARGEST:
            break
    return body


async def _unless_gone(request: Request, answer: Awaitable[JsonObject]) -> JsonObject | None:
    """The answer, or None if the connection breaks first."""

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
