"""Notices of AWS, GCP and Azure, against servers that answer as theirs do."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deepvm.errors import RequestError
from deepvm.jobs.agent.notices import AzureNotices, Ec2Notices, GcpNotices, MetadataError, notice_source
from deepvm.jobs.clouds.fake_metadata import FakeMetadata

Answer = Callable[[str, str, Any], tuple[int, str]]


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """The URL of a server that answers each (method, path, headers)."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def any(self) -> None:
            code, body = answer(self.command, self.path, self.headers)
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_PUT = any

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_ec2() -> None:
    fake = FakeMetadata({})
    source = Ec2Notices(fake.url)
    assert source.poll() is None and not source.rebalance()
    fake.notice(1_900_000_000.5)
    fake.facts["events/recommendations/rebalance"] = '{"noticeTime": "2026-11-26T09:00:00Z"}'
    found = source.poll()
    assert found is not None and found.action == "terminate" and found.taken_s == pytest.approx(1_900_000_000.5)
    assert source.rebalance()


def test_ec2_token_that_has_expired_is_renewed() -> None:
    fake = FakeMetadata({})
    source = Ec2Notices(fake.url)
    source.poll()
    fake._tokens.clear()
    assert source.poll() is None


def test_ec2_without_a_token_fails_loudly() -> None:
    refusing = serving(lambda method, *_: (200, "t") if method == "PUT" else (401, ""))
    with refusing as url, pytest.raises(MetadataError, match="hop limit"):
        Ec2Notices(url).poll()
    with serving(lambda method, *_: (403, "")) as url, pytest.raises(MetadataError, match="gives no token: 403"):
        Ec2Notices(url).poll()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"action": "stop"}', '{"action": "stop", "time": "soon"}'])
def test_an_ec2_notice_that_cannot_be_read_is_a_notice(text: str) -> None:
    fake = FakeMetadata({"spot/instance-action": text})
    found = Ec2Notices(fake.url).poll()
    assert found is not None and 110 < found.taken_s - time.time() <= 120


def test_ec2_endpoint_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeMetadata({"spot/instance-action": json.dumps({"action": "stop", "time": "2030-01-01T00:00:00Z"})})
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", fake.url)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # no proxy knows this machine
    found = notice_source("aws").poll()
    assert found is not None and found.taken_s == 1893456000.0


def test_gcp() -> None:
    preempted = ["FALSE"]

    def answer(method: str, path: str, headers: Any) -> tuple[int, str]:
        if headers.get("Metadata-Flavor") != "Google":
            return 403, ""
        return (200, preempted[0]) if path == "/computeMetadata/v1/instance/preempted" else (404, "")

    with serving(answer) as url:
        source = GcpNotices(url)
        assert source.poll() is None
        preempted[0] = "TRUE"
        found = source.poll()
        assert found is not None and 25 < found.taken_s - time.time() <= 30
        assert source.poll() == found  # 30 s from the first time it was said


def test_azure() -> None:
    events: list[dict[str, Any]] = [{"EventType": "Freeze", "NotBefore": ""}]

    def answer(method: str, path: str, headers: Any) -> tuple[int, str]:
        if headers.get("Metadata") != "true" or not path.startswith("/metadata/scheduledevents?api-version="):
            return 400, ""
        return 200, json.dumps({"DocumentIncarnation": 1, "Events": events})

    with serving(answer) as url:
        source = AzureNotices(url)
        assert source.poll() is None
        events.append({"EventType": "Preempt", "NotBefore": "Mon, 19 Sep 2030 18:29:47 GMT"})
        found = source.poll()
        assert found is not None and found.action == "preempt" and found.taken_s == 1916072987.0


def test_an_unknown_source() -> None:
    with pytest.raises(RequestError, match="metadata"):
        notice_source("oracle")
