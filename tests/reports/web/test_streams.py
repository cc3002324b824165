"""Streams of pages: only what is new, from where a browser was, to many.

Slow ones hold nobody up.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from support.jobs import worlds
from support.jobs.site import Site, serving

from deepvm.jobs.history.history import PLACE, EventRow, History


class Live:
    """A job that goes on, and a server that shows it."""

    def __init__(self, data: Path, site: Site) -> None:
        self.data, self.site = data, site
        self.stream_of = "/jobs/resnet-7/events"

    def happens(self, text: str) -> None:
        with History.open({PLACE: str(self.data / "history.db")}) as history:
            world = history.world("resnet-7")
            now = replace(world, now_s=world.now_s + 1)
            history.commit(
                "resnet-7", world, now, [EventRow(now.now_s, "stop", "running", {"why": text})]
            )


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    job = worlds.one_machine(over=False)
    with History.open({PLACE: str(tmp_path / "history.db")}) as history:
        worlds.store(
            history, replace(job, world=replace(job.world, job=worlds.Job.RUNNING)), tmp_path
        )
    with serving(tmp_path) as site:
        yield Live(tmp_path, site)


def states(stream: HTTPResponse, wanted: int = 1) -> list[tuple[int, dict[str, Any]]]:
    """The next states that a stream tells, with their ids."""
    found: list[tuple[int, dict[str, Any]]] = []
    number, kind = 0, ""
    while len(found) < wanted:
        line = stream.readline().decode()
        assert line, "the stream has ended"
        if line.startswith("id: "):
            number = int(line[4:])
        elif line.startswith("event: "):
            kind = line[7:].strip()
        elif line.startswith("data: ") and kind == "state":
            found.append((number, json.loads(line[6:])))
    return found


def with_rows(stream: HTTPResponse) -> tuple[int, str]:
    """The next rows; a stream without any for a minute has lost them."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < 60:
        ((number, said),) = states(stream)
        if said["rows"]:
            return number, said["rows"]
    raise TimeoutError


def test_first_all_then_what_is_new(live: Live) -> None:
    stream = live.site.open(live.stream_of, Cookie=live.site.cookie)
    ((number, said),) = states(stream)
    assert number == 5 and set(said["parts"]) >= {"head", "machines", "steps", "money", "file"}
    assert said["rows"].count("<tr") == 5
    live.happens("something new")
    ((number, said),) = states(stream)
    while not said["rows"]:
        ((number, said),) = states(stream)
    assert number == 6 and said["rows"].count("<tr") == 1 and "something new" in said["rows"]
    assert "file" not in said["parts"]  # what is the same is not sent again
    stream.close()


@pytest.mark.parametrize("way", ["query", "both"])
def test_a_browser_that_comes_back_gets_what_it_missed(live: Live, way: str) -> None:
    for text in ("one", "two", "three"):
        live.happens(text)
    headers = {"Cookie": live.site.cookie} | ({"Last-Event-ID": "6"} if way != "query" else {})
    query = "?after=6" if way == "query" else "?after=2"
    number, rows = with_rows(live.site.open(live.stream_of + query, **headers))
    assert number == 8 and [t in rows for t in ("one", "two", "three")] == [False, True, True]
    assert rows.index("three") < rows.index("two")  # the newest first


@pytest.mark.parametrize("after", ["-1", "9" * 30, "%00"])
def test_a_place_that_is_none(live: Live, after: str) -> None:
    stream = live.site.open(f"{live.stream_of}?after={after}", Cookie=live.site.cookie)
    ((_, said),) = states(stream)
    assert stream.status == 200 and "head" in said["parts"]


def test_signs_of_life(live: Live) -> None:
    """The page of all jobs changes each second while one runs; of none it has only beats."""
    with serving(live.data / "empty") as site:
        stream, lines = site.open("/events", Cookie=site.cookie), list[str]()
        while "event: beat" not in lines:
            lines.append(stream.readline().decode().strip())
        assert sum(line.startswith('data: {"parts"') for line in lines) == 1


def test_many_browsers_and_one_that_reads_nothing(live: Live) -> None:
    with socket.create_connection(("127.0.0.1", live.site.port)) as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.sendall(
            f"GET {live.stream_of} HTTP/1.1\r\n"
            f"Host: localhost\r\nCookie: {live.site.cookie}\r\n\r\n".encode()
        )
        streams = [live.site.open(live.stream_of, Cookie=live.site.cookie) for _ in range(30)]
        for stream in streams:
            with_rows(stream)
        live.happens("for all")
        for stream in streams:
            assert "for all" in with_rows(stream)[1]
        assert live.site.get("/", Cookie=live.site.cookie)[1].status == 200
