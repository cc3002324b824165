"""Nothing without the token: not a page, not a stream, not the name of a job.

And nothing but reading with it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs import worlds
from support.jobs.site import Site, serving
from support.web_pages import read_page

from deepvm.jobs.history.history import PLACE, History


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    data = tmp_path_factory.mktemp("data")
    with History.open({PLACE: str(data / "history.db")}) as history:
        worlds.store(history, worlds.many(20), data)
    with serving(data) as found:
        yield found


def is_refused(found: tuple[bytes, object], status: int = 403) -> bool:
    body, answer = found
    return (body, answer.status) == (b"", status) and answer.getheader("content-type") is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["/", "/jobs/resnet-7", "/jobs/none", "/events"])
def test_nothing_without_the_token(site: Site, path: str) -> None:
    assert is_refused(site.get(path))
    assert is_refused(site.get(path, "POST"))
    assert is_refused(site.get(f"{path}?token="))
    assert is_refused(site.get(f"{path}?token={site.token[:-1]}"))
    assert is_refused(site.get(f"{path}?token={site.token}&token={site.token}"))
    assert is_refused(site.get(path, Cookie=f"{site.cookie[:-1]}"))
    assert is_refused(site.get(path, Cookie=f"token={site.token}"))
    assert is_refused(site.get(path, Authorization=f"Bearer {site.token}"))


@pytest.mark.parametrize("path", ["/jobs/resnet-7", "//evil.example/"])
def test_the_token_becomes_a_cookie_and_leaves_the_address(site: Site, path: str) -> None:
    body, answer = site.get(f"{path}?token={site.token}")
    assert (body, answer.status, answer.getheader("location")) == (b"", 303, "/")
    name, *attributes = str(answer.getheader("set-cookie")).split("; ")
    assert site.token not in name and {a.lower() for a in attributes} == {
        "httponly",
        "path=/",
        "samesite=strict",
    }
    assert (
        answer.getheader("referrer-policy") == "no-referrer"
        and answer.getheader("cache-control") == "no-store"
    )


def test_with_the_cookie_there_is_everything(site: Site) -> None:
    body, answer = site.get("/", Cookie=site.cookie)
    assert answer.status == 200 and b"/jobs/resnet-7" in body and site.token.encode() not in body
    body, answer = site.get("/jobs/resnet-7", Cookie=f"other=1; {site.cookie}")
    assert answer.status == 200 and b"resnet-7" in body and site.token.encode() not in body
    assert site.get("/jobs/none", Cookie=site.cookie)[1].status == 404
    assert site.get("/jobs/none/events", Cookie=site.cookie)[1].status == 404
    assert site.get("/favicon.ico", Cookie=site.cookie)[1].status == 404


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_pages_are_only_read(site: Site, method: str) -> None:
    assert site.get("/jobs/resnet-7", method, Cookie=site.cookie)[1].status == 405


@pytest.mark.parametrize("path", ["/", "/jobs/resnet-7"])
def test_what_a_page_may_do(site: Site, path: str) -> None:
    body, answer = site.get(path, Cookie=site.cookie)
    assert answer.getheader("content-security-policy") == "frame-ancestors 'none'"
    (meta,) = [m for m in read_page(body.decode()).all("meta") if "http-equiv" in m.attributes]
    rules = dict(rule.split(" ", 1) for rule in meta.attributes["content"].split("; "))
    nonce = rules["script-src"].removeprefix("'nonce-").removesuffix("'")
    assert rules == {
        "default-src": "'none'",
        "connect-src": "'self'",
        "script-src": f"'nonce-{nonce}'",
        "style-src": f"'nonce-{nonce}'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert len(nonce) >= 20 and body.count(f'nonce="{nonce}"'.encode()) == 2
    assert nonce.encode() not in site.get(path, Cookie=site.cookie)[0]  # each answer has its own
    assert (
        answer.getheader("x-frame-options") == "DENY"
        and answer.getheader("x-content-type-options") == "nosniff"
    )
    assert answer.getheader("cross-origin-resource-policy") == "same-origin"
    assert (
        answer.getheader("access-control-allow-origin") is None
        and answer.getheader("server") is None
    )
    cross = site.get(path, Cookie=site.cookie, Origin="https://evil.example")[1]
    assert cross.getheader("access-control-allow-origin") is None


def test_it_listens_here_only_and_ends_at_once_with_streams_open(tmp_path: Path) -> None:
    with serving(tmp_path) as site:
        assert site.link.startswith("http://127.0.0.1:")
        body, answer = site.get("/", Cookie=site.cookie)
        assert b"No jobs yet" in body
        streams = [site.open("/events", Cookie=site.cookie) for _ in range(3)]
        assert all(stream.readline() == b"retry: 2000\n" for stream in streams)
        began_s = time.monotonic()
        site.process.send_signal(signal.SIGINT)
        out, err = site.process.communicate(timeout=20)
        assert time.monotonic() - began_s < 2 and site.process.returncode == 130
        assert "Traceback" not in err and "token" not in err and site.token not in out + err


@pytest.mark.parametrize(
    ("words", "said"), [(["--port", "70000"], "port"), (["--host", "203.0.113.7"], "cannot listen")]
)
def test_where_it_cannot_listen(tmp_path: Path, words: list[str], said: str) -> None:
    import os
    import subprocess
    import sys

    env = {**os.environ, "DEEPVM_DATA_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "deepvm.cli.main", "jobs", "serve", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode in (2, 4) and said in done.stderr and "Traceback" not in done.stderr
