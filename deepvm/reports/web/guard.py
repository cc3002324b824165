"""Who may see the pages of jobs: clients with the token."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Of every response; what a page itself may do is in its own policy."""


def new_token() -> str:
    """A token that cannot be guessed."""
    return secrets.token_urlsafe(32)


class TokenAuth:
    """ASGI middleware: a client without the token gets a status and no content.

    The token comes once in the address, is exchanged for a cookie that no script can read and no
    other site can send, and the browser continues at an address without it.
    """

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
        known = hmac.compare_digest(cookie.encode(), self._proof.encode())
        if known:
            return None
        return Response(status_code=403)
