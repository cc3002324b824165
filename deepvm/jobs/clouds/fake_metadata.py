"""The metadata service of a local machine: IMDSv2 as EC2 has it, as far as an agent asks."""

from __future__ import annotations

import http.server
import json
import secrets
import threading
from typing import Any

from deepvm.core.units import utc_text

_TTL = "X-aws-ec2-metadata-token-ttl-seconds"
_TOKEN = "X-aws-ec2-metadata-token"


class FakeMetadata:
    """Serves the facts of one machine; a notice appears when the cloud takes it back."""

    def __init__(self, facts: dict[str, str], address: str = "127.0.0.1", port: int = 0) -> None:
        self.facts = facts
        self._tokens = set[str]()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

            def do_PUT(self) -> None:
                if self.path != "/latest/api/token" or not self.headers.get(_TTL, "").isdigit():
                    return self._answer(400)
                token = secrets.token_urlsafe(24)
                outer._tokens.add(token)
                return self._answer(200, token)

            def do_GET(self) -> None:
                if self.headers.get(_TOKEN) not in outer._tokens:
                    return self._answer(401)
                found = outer.facts.get(self.path.removeprefix("/latest/meta-data/"))
                if found is None:
                    return self._answer(404)
                return self._answer(200, found)

            def _answer(self, code: int, body: str = "") -> None:
                data = body.encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = http.server.ThreadingHTTPServer((address, port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://{address}:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()

    def notice(self, taken_s: float) -> None:
        row = {"action": "terminate", "time": utc_text(taken_s, "microseconds")}
        self.facts = {**self.facts, "spot/instance-action": json.dumps(row)}

    def recommend(self, now_s: float) -> None:
        row = {"noticeTime": utc_text(now_s, "microseconds")}
        self.facts = {**self.facts, "events/recommendations/rebalance": json.dumps(row)}
