"""Who may see the pages of jobs: clients with the token, by a name that only this server has."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Collection

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

    def __init__(self, app: ASGIApp, token: str, names: Collection[str] = ()) -> None:
        """``names``: by which the server may be called, besides localhost and numeric addresses."""
        self._app = app
        self._token = token.encode()
        self._names = {"localhost", *(name.lower() for name in names)}
        # One browser may look at several servers of this machine: cookies know no ports.
        self._cookie = f"deepvm-{hashlib.sha256(self._token).hexdigest()[:12]}"
        self._proof = hmac.new(self._token, b"cookie", hashlib.sha256).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
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
        hosts = request.headers.getlist("host")
        tokens = request.query_params.getlist("token")
        linked = len(tokens) == 1 and hmac.compare_digest(tokens[0].encode(), self._token)
        cookie = request.cookies.get(self._cookie, "")
        known = hmac.compare_digest(cookie.encode(), self._proof.encode())
        if len(hosts) != 1 or not self._is_own(hosts[0]) or not (linked or known):
            return Response(status_code=403)
        if not linked:
            return None
        response = RedirectResponse("/", 303)  # never to the address of the request
        response.set_cookie(self._cookie, self._proof, httponly=True, samesite="strict")
        return response

    def _is_own(self, host: str) -> bool:
        """Whether a Host header names this server.

        A page of another site can have its own name resolve to this machine, and read the response
        (DNS rebinding): so only names count that no other site can own. Ports may be forwarded.
        """
        name = host.lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        else:
            name = name.partition(":")[0]
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return True
