"""The Spot Advisor file over real HTTP: bands, and every way in which a download goes wrong."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import threading
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from support.aws_account import NOW, REGION
from support.pace import soon
from support.spot_advisor import FILE, say, serving

from deepvm.catalog.clouds.aws import providers as spot_advisor
from deepvm.catalog.clouds.aws.providers import ADVISOR_URL, AdvisorProvider
from deepvm.catalog.public import download
from deepvm.errors import CloudError, RequestError


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv(spot_advisor.URL_VARIABLE, raising=False)


def advisor(url, **limits):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(spot_advisor.URL_VARIABLE, url)
        provider = AdvisorProvider()
    provider.file = replace(provider.file, **limits)
    return provider


def failure(url, region=REGION, **limits):
    with pytest.raises(CloudError) as caught:
        advisor(url, **limits).fetch(region, NOW)
    assert "\n" not in str(caught.value)
    assert caught.value.advice
    return caught.value


def test_the_bands():
    with serving(say()) as url:
        signal = advisor(f"{url}/data.json").fetch(REGION, NOW)
    assert signal.data == {"c5.xlarge": 0, "g4dn.xlarge": 4, "g5.xlarge": 3}
    assert signal.refused == {"unknown band": 3}
    assert (signal.kind, signal.region, signal.observed_at) == ("advisor", REGION, NOW)


def test_an_answer_in_pieces():
    def answer(handler):
        handler.send_response(200)
        handler.end_headers()
        for i in range(0, len(FILE), 100):
            handler.wfile.write(FILE[i : i + 100])
            handler.wfile.flush()

    with serving(answer) as url:
        assert advisor(url).fetch("eu-central-1", NOW).data == {"g4dn.xlarge": 2}


class TestSeveralRegions:
    @pytest.mark.parametrize(("status", "answers"), [(200, 2), (500, 0)])
    def test_at_one_time_cause_one_download(self, status, answers):
        count = [0]

        def answer(handler):
            count[0] += 1
            say(status=status)(handler)

        with serving(answer) as url:
            provider = advisor(url)
            found, errors = [], []

            def ask(region):
                try:
                    found.append(provider.fetch(region, NOW).data)
                except CloudError as error:
                    errors.append(error)

            threads = [
                threading.Thread(target=ask, args=(r,))
                for r in (REGION, "eu-central-1", "us-east-9")
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert (count[0], len(found), len(errors)) == (1, answers, 3 - answers)
            with contextlib.suppress(CloudError):
                provider.fetch(REGION, NOW + timedelta(seconds=1))
            assert count[0] == 2


class TestWhere:
    def test_the_environment_overrides(self, monkeypatch):
        assert AdvisorProvider().file.url == ADVISOR_URL
        monkeypatch.setenv(spot_advisor.URL_VARIABLE, "http://copy/a.json")
        assert AdvisorProvider().file.url == "http://copy/a.json"

    @pytest.mark.parametrize(
        "url",
        [
            *(
                "file:///etc/passwd",
                "ftp://host/x",
                "data.json",
                "https://",
                "http://[::1",
                "http://host:port/",
            ),
            *("http://joe:s3cr3t@host/x", "http://host/a b", "http://host/\r\nx: y"),
        ],
    )
    def test_other_places_are_refused(self, monkeypatch, url):
        monkeypatch.setenv(spot_advisor.URL_VARIABLE, url)
        with pytest.raises(RequestError, match=f"for {spot_advisor.URL_VARIABLE}: ") as caught:
            AdvisorProvider()
        assert "s3cr3t" not in str(caught.value)

    def test_a_signature_in_the_address_is_not_shown(self):
        with serving(say(status=403)) as url:
            assert "s3cr3t" not in repr(vars(failure(f"{url}/a.json?X-Amz-Signature=s3cr3t")))


class TestRedirects:
    def test_within_the_web(self):
        with (
            serving(say()) as there,
            serving(say(b"", 302, Location=f"{there}/moved.json")) as here,
        ):
            assert advisor(here).fetch(REGION, NOW).data

    @pytest.mark.parametrize(
        "place", ["file:///etc/passwd", "ftp://host/x", "http://joe:s3cr3t@host/"]
    )
    def test_elsewhere(self, place):
        with serving(say(b"", 302, Location=place)) as url:
            found = failure(url)
        assert found.why in ("network", "reply")
        assert "says 302" in found.detail or "not allowed" in found.detail
        assert "s3cr3t" not in repr(vars(found))

    def test_from_https_to_http(self):
        from urllib.request import Request

        redirects = download._SafeRedirects()
        request = Request("https://a/")
        assert not redirects.redirect_request(request, io.BytesIO(), 302, "", {}, "http://a/")
        assert redirects.redirect_request(request, io.BytesIO(), 302, "", {}, "https://b/")

    def test_in_circles(self):
        with serving(lambda handler: say(b"", 302, Location=handler.path)(handler)) as url:
            assert failure(f"{url}/again").why == "reply"


class TestFaults:
    @pytest.mark.parametrize(
        ("status", "why"), [(403, "reply"), (404, "reply"), (500, "reply"), (503, "throttled")]
    )
    def test_refusals(self, status, why):
        with serving(say(b"<Error/>", status)) as url:
            found = failure(url)
        assert found.why == why
        assert str(status) in found.detail

    def test_a_file_that_breaks_off(self):
        with serving(say(FILE[:500], promised=len(FILE))) as url:
            found = failure(url)
        assert found.why == "network"
        assert "broke off after 500 of" in found.detail

    def test_a_chunked_file_that_breaks_off(self):
        def answer(handler):
            handler.protocol_version = "HTTP/1.1"
            handler.send_response(200)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            handler.wfile.write(b"%x\r\n" % len(FILE) + FILE[:100])

        with serving(answer) as url:
            assert failure(url).why in ("network", "reply")

    def test_nobody_listens(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        assert failure(f"http://127.0.0.1:{port}/").why == "network"

    def test_a_server_that_is_not_speaking_http(self):
        with socket.create_server(("127.0.0.1", 0)) as server:

            def talk():
                connection, _ = server.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

            threading.Thread(target=talk, daemon=True).start()
            assert failure(f"http://127.0.0.1:{server.getsockname()[1]}/").why == "network"

    def test_a_stall(self):
        with socket.create_server(("127.0.0.1", 0)) as silent, soon(5):
            found = failure(f"http://127.0.0.1:{silent.getsockname()[1]}/", total_s=0.2)
        assert found.why == "timeout"

    def test_a_stall_in_the_middle(self):
        def answer(handler):
            handler.send_response(200)
            handler.end_headers()
            handler.wfile.write(FILE[:100])
            time.sleep(2)

        with serving(answer) as url:
            assert failure(url, total_s=0.2).why == "timeout"

    def test_a_server_that_drips(self):
        def answer(handler):
            handler.send_response(200)
            handler.end_headers()
            for i in range(100):
                handler.wfile.write(FILE[i : i + 1])
                time.sleep(0.05)

        with serving(answer) as url, soon(3):
            found = failure(url, total_s=0.3)
        assert found.why == "timeout"

    def test_a_file_that_does_not_end(self):
        def answer(handler):
            handler.send_response(200)
            handler.end_headers()
            for _ in range(100):
                handler.wfile.write(b" " * 2**16)

        with serving(answer) as url:
            assert "larger than 1 MiB" in failure(url, max_bytes=2**20).detail


class TestContent:
    @pytest.mark.parametrize(
        ("body", "said"),
        [
            (b"", "no table spot_advisor"),
            (FILE[:300], "no table spot_advisor"),
            (b"\xff\xfe\x00", "no table spot_advisor"),
            (b"[" * 100_000, "no table spot_advisor"),
            (b"[]", "no table spot_advisor"),
            (b'{"spot_advisor": []}', "no table spot_advisor"),
            (b'{"spot_advisor": {"us-east-1": []}}', "no table for Linux"),
            (b'{"spot_advisor": {"us-east-1": {"Windows": {}}}}', "no table for Linux"),
            (b'{"spot_advisor": {"us-east-1": {"Linux": {}}}}', "none of 0 types"),
            (
                b'{"spot_advisor": {"us-east-1": {"Linux": {"a": 3, "b": {"r": 5}}}}}',
                "none of 2 types",
            ),
        ],
    )
    def test_other_forms(self, body, said):
        with serving(say(body)) as url:
            found = failure(url)
        assert found.why == "reply"
        assert said in found.detail

    def test_an_unknown_region(self):
        with serving(say()) as url:
            found = failure(url, "us-east-9")
        assert "us-east-9" in found.detail

    @pytest.mark.parametrize("band", [-1, 5, 1.0, "1", True, None, [1]])
    def test_other_bands_are_counted_and_left_out(self, band):
        body = {"spot_advisor": {REGION: {"Linux": {"a": {"r": band}, "b": {"r": 0, "s": 70}}}}}
        with serving(say(json.dumps(body).encode())) as url:
            signal = advisor(url).fetch(REGION, NOW)
        assert signal.data == {"b": 0}
        assert signal.refused == {"unknown band": 1}
