"""The metadata services of AWS, GCP and Azure as their documentation has them, as far as an agent
can notice.
"""

from __future__ import annotations

import http.server
import json
import secrets
import threading
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.http_server import QuietServer


class Service:
    """A server on this machine; :meth:`answer` says what it answers: status, body, headers."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None: ...

            def any(self) -> None:
                service.asked.append(f"{self.command} {self.path}")
                code, body, headers = service.answer(self.command, self.path, self.headers)
                self.send_response(code)
                for name, value in {"Content-Length": str(len(body.encode())), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body.encode())

            do_GET = do_PUT = do_POST = any

        self._server = QuietServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, method: str, path: str, headers: Any) -> tuple[int, str, dict[str, str]]:
        raise NotImplementedError

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


NOT_FOUND = (
    '<?xml version="1.0" encoding="iso-8859-1"?>\n<html><head><title>404 - Not'
    " Found</title></head></html>\n"
)


class Imds(Service):
    """IMDSv2: a token first, of 1 s to 6 h; 401 for none, or one that has expired.

    404 for what is not so.

    ``hop_limit``: 1 for what a container sees that is a hop away: the connection stands, the token
    never arrives.
    """

    def __init__(self, hop_limit: int = 2) -> None:
        self.facts: dict[str, str] = {}
        self.tokens: dict[str, float] = {}
        self._hop_limit = hop_limit
        super().__init__()

    def answer(self, method: str, path: str, headers: Any) -> tuple[int, str, dict[str, str]]:
        if path == "/latest/api/token":
            ttl = headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            if method != "PUT":
                return 405, "", {"Allow": "OPTIONS, PUT"}
            if not ttl.isdigit() or not 1 <= int(ttl) <= 21_600:
                return 400, "", {}
            if headers.get("X-Forwarded-For"):
                return 403, "", {}
            if self._hop_limit < 2:
                time.sleep(30)
            token = secrets.token_urlsafe(40)
            self.tokens[token] = time.monotonic() + int(ttl)
            return 200, token, {"X-aws-ec2-metadata-token-ttl-seconds": ttl}
        if self.tokens.get(headers.get("X-aws-ec2-metadata-token", ""), 0.0) < time.monotonic():
            return 401, "", {}
        found = self.facts.get(path.removeprefix("/latest/meta-data/"))
        return (404, NOT_FOUND, {}) if found is None else (200, found, {})

    def notice(self, taken_s: float, action: str = "terminate") -> None:
        row = {"action": action, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(taken_s))}
        self.facts["spot/instance-action"] = json.dumps(row)

    def recommend_rebalance(self) -> None:
        row = {"noticeTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        self.facts["events/recommendations/rebalance"] = json.dumps(row)


class GcpMetadata(Service):
    """The metadata server of Compute Engine: ``Metadata-Flavor: Google`` both ways, and
    ``wait_for_change``.
    """

    def __init__(self) -> None:
        self.preempted, self.maintenance = False, "NONE"
        super().__init__()

    def answer(self, method: str, path: str, headers: Any) -> tuple[int, str, dict[str, str]]:
        own = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM", "ETag": "5b1c"}
        if headers.get("Metadata-Flavor") != "Google" or headers.get("X-Forwarded-For"):
            return 403, "Your client does not have permission to get URL from this server.", own
        parts = urlsplit(path)
        if parts.path == "/computeMetadata/v1/instance/preempted":
            until_s = time.monotonic() + float(parse_qs(parts.query).get("timeout_sec", ["60"])[0])
            while (
                "wait_for_change=true" in parts.query
                and not self.preempted
                and time.monotonic() < until_s
            ):
                time.sleep(0.02)
            return 200, "TRUE" if self.preempted else "FALSE", own
        if parts.path == "/computeMetadata/v1/instance/maintenance-event":
            return 200, self.maintenance, own
        return 404, "", own


class AzureMetadata(Service):
    """Scheduled events of a VM.

    The first question is answered late, as the service starts with it.
    """

    def __init__(self, name: str = "train-0", first_s: float = 0.0) -> None:
        self.name, self.events, self.incarnation = name, list[dict[str, Any]](), 1
        self._first_s = first_s
        super().__init__()

    def answer(self, method: str, path: str, headers: Any) -> tuple[int, str, dict[str, str]]:
        parts = urlsplit(path)
        if headers.get("Metadata") != "true":
            return 400, '{ "error": "Bad request. Required metadata header not specified" }', {}
        version = parse_qs(parts.query).get("api-version", [""])[0]
        if not version:
            return 400, '{ "error": "Bad request. api-version was not specified" }', {}
        if parts.path == "/metadata/instance/compute/name" and "format=text" in parts.query:
            return 200, self.name, {}
        if parts.path != "/metadata/scheduledevents":
            return 404, "", {}
        late_s, self._first_s = self._first_s, 0.0
        time.sleep(late_s)
        return 200, json.dumps({"DocumentIncarnation": self.incarnation, "Events": self.events}), {}

    def add(
        self, kind: str, not_before: str = "", *, of: str = "", status: str = "Scheduled"
    ) -> None:
        self.incarnation += 1
        self.events.append(
            {
                "EventId": secrets.token_hex(8).upper(),
                "EventStatus": status,
                "EventType": kind,
                "ResourceType": "VirtualMachine",
                "Resources": [of or self.name],
                "NotBefore": not_before,
                "Description": "",
                "EventSource": "Platform",
                "DurationInSeconds": -1,
            }
        )
