"""The first process of a local machine: its metadata service (IMDSv2), its agent, and its end."""

import http.server
import json
import math
import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from deepvm.core.units import utc_text
from deepvm.io.atomic_write import write_json
from deepvm.io.failpoints import point
from deepvm.io.processes import become_subreaper, end_descendants
from deepvm.io.threads import start_thread
from deepvm.jobs.agent.notices import ENDPOINT
from deepvm.jobs.clouds.reaper import KEPT
from deepvm.jobs.steady_clock import clock_of

_LOOK_S = 0.02
_TTL = "X-aws-ec2-metadata-token-ttl-seconds"
_TOKEN = "X-aws-ec2-metadata-token"


class FakeMetadata(http.server.ThreadingHTTPServer):
    """Serves the facts of one machine; a notice appears when the cloud preempts it."""

    daemon_threads = True

    def __init__(self, facts: dict[str, str], address: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__((address, port), _Handler)
        self.facts = facts
        self.tokens = set[str]()
        self.url = f"http://{address}:{self.server_port}"
        start_thread(self.serve_forever, 0.1)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """An agent that was killed while it asked is no event."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def notice(self, taken_s: float) -> None:
        row = {"action": "terminate", "time": utc_text(taken_s, "microseconds")}
        self.facts = {**self.facts, "spot/instance-action": json.dumps(row)}

    def recommend(self, now_s: float) -> None:
        row = {"noticeTime": utc_text(now_s, "microseconds")}
        self.facts = {**self.facts, "events/recommendations/rebalance": json.dumps(row)}


class _Handler(http.server.BaseHTTPRequestHandler):
    server: FakeMetadata
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def do_PUT(self) -> None:
        if self.path != "/latest/api/token" or not self.headers.get(_TTL, "").isdigit():
            return self._answer(400)
        token = secrets.token_urlsafe(24)
        self.server.tokens.add(token)
        return self._answer(200, token)

    def do_GET(self) -> None:
        if self.headers.get(_TOKEN) not in self.server.tokens:
            return self._answer(401)
        found = self.server.facts.get(self.path.removeprefix("/latest/meta-data/"))
        if found is None:
            return self._answer(404)
        return self._answer(200, found)

    def _answer(self, code: int, body: str = "") -> None:
        data = body.encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    """Run one machine until its agent ends it, or its cloud preempts it."""
    place = Path(sys.argv[1])
    if KEPT in sys.argv[2:]:
        become_subreaper()
        signal.signal(signal.SIGTERM, lambda *_: _end(place, "lost"))  # the keeper is gone
    file = place / "settings.json"
    settings = json.loads(file.read_bytes())
    facts = {"instance-type": settings["type"], "placement/availability-zone": settings["zone"]}
    metadata = FakeMetadata(facts, settings["metadata_host"], settings["metadata_port"])
    point("machine.before-agent")
    agent = subprocess.Popen(
        [sys.executable, "-m", "deepvm.jobs.agent.main", str(file), metadata.url],
        env={**os.environ, **({ENDPOINT: metadata.url} if settings["metadata_named"] else {})},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    taken_s = math.inf
    while agent.poll() is None:
        time.sleep(_LOOK_S)
        _reap(agent.pid)
        if (place / "order.json").exists():
            order = json.loads((place / "order.json").read_bytes())
            if "end" in order:
                _end(place, order["end"])
            if "recommended_s" in order:
                metadata.recommend(order["recommended_s"])
            if taken_s == math.inf and "taken_s" in order:
                point("machine.before-notice")
                taken_s = time.monotonic() + float(order["taken_s"]) - time.time()
                metadata.notice(float(order["taken_s"]))
        if time.monotonic() >= taken_s:
            _end(place, "preempted")
    # An instance that shuts itself down is gone.
    _end(place, "shut down")


def _reap(spared: int) -> None:
    """As the first process of its kind it is the parent of all that have lost theirs."""
    with suppress(ChildProcessError):
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None or found.si_pid == spared:
                return
            os.waitpid(found.si_pid, os.WNOHANG)


def _end(place: Path, reason: str) -> None:
    point("machine.before-end")
    ended_s = clock_of(place.parents[1]).now_s()
    write_json(place / "ended.json", {"ended_s": ended_s, "why": reason})
    if os.getpid() != 1:  # else all processes with numbers of its own kind end with it
        end_descendants()
    os._exit(0)


if __name__ == "__main__":
    main()
