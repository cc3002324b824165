"""Who may see the pages of jobs: whoever has the token, from a page of this server, and nobody through another name."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Collection
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ALWAYS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def new_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_urlsafe(32)


class TokenAuth:
    """Stands before an application: what it does not let through gets a status and no content.

    The token comes once in the address, is exchanged for a cookie that no script can read and no
    other site can send, and the browser goes on to an address without it.
    """

    def __init__(self, app: ASGIApp, token: str, names: Collection[str] = ()) -> None:
        """``names``: by which the server may be called, beside localhost and numeric addresses."""
        self._app, self._token = app, token.encode()
        self._names = {"localhost", *(name.lower() for name in names)}
        # One browser may look at several servers of this machine: cookies know no ports.
        self._cookie = f"deepvm-{hashlib.sha256(self._token).hexdigest()[:12]}"
        self._proof = hmac.new(self._token, b"cookie", hashlib.sha256).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let through."""
        if scope["type"] != "http":
            await _refuse_other(scope, receive, send)
            return
        answer = self._answer(scope)
        if answer is not None:
            await answer(scope, receive, _hardened(send))
        else:
            await self._app(scope, receive, _hardened(send))

    def _answer(self, scope: Scope) -> Response | None:
        """What is said instead of the application; None: it may answer."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        linked = len(given) == 1 and hmac.compare_digest(given[0].encode(), self._token)
        cookie = cookie_parser(headers.get("cookie", "")).get(self._cookie, "")
        known = hmac.compare_digest(cookie.encode(), self._proof.encode())
        if len(hosts) != 1 or not self._is_own(hosts[0]) or not (linked or known):
            return Response(status_code=403)
        if scope["method"] != "GET":
            return Response(status_code=405, headers={"allow": "GET"})
        if not linked:
            return None
        found = Response(
            status_code=303, headers={"location": "/"}
        )  # never to where the address says: it may be foreign
        found.set_cookie(self._cookie, self._proof, httponly=True, samesite="strict")
        return found

    def _is_own(self, host: str) -> bool:
        """Whether a Host header names this server.

        A page of another site can have its own name resolve to this machine, and read what it gets
        (DNS rebinding): so only names count that nobody else can own. Ports do not matter, and may
        be forwarded.
        """
        name = host.lower()
        name = (
            name[1:].partition("]")[0] if name.startswith("[") else name.rpartition(":")[0] or name
        )
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return True


def _hardened(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _ALWAYS.items():
                headers.setdefault(name, value)
        await send(message)

    return sent


async def _refuse_other(scope: Scope, receive: Receive, send: Send) -> None:
    """A WebSocket is no page."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
