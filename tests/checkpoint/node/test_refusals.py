"""What the node's log says of peers that it refuses."""

from __future__ import annotations

import itertools
import logging
import socket

import pytest
from support.checkpoint.memory_nodes import make_layout, raw_sender, running, until

from deepvm.checkpoint.network.client import Link
from deepvm.checkpoint.network.protocol import Kind, RequestRefused
from deepvm.checkpoint.node.connection import Refusals
from deepvm.errors import CheckpointError


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_strangers_do_not_fill_it(caplog: pytest.LogCaptureFixture) -> None:
    with running() as node:
        for number in range(300):
            if number % 3:
                with pytest.raises(CheckpointError):
                    Link(node.address, b"another one, just as long")  # type: ignore[attr-defined]
            else:
                sock = socket.create_connection((node.address.host, node.address.port))  # type: ignore[attr-defined]
                sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
                sock.close()
        assert until(lambda: node.metrics()["refused"] == {"unproven": 300})
        assert len(lines(caplog)) == 1 and "refused" in lines(caplog)[0]
        link = raw_sender(node, make_layout(1000))  # one with the token is told of all the same
        with pytest.raises(RequestRefused):
            link.call(Kind.COMMIT, {"version": 1}, Kind.PONG)
        link.close()
        assert (
            until(lambda: len(lines(caplog)) == 2) and "is not being received" in lines(caplog)[1]
        )
    assert len(lines(caplog)) == 3 and "299 more were refused" in lines(caplog)[2]


def test_each_minute_has_its_line(caplog: pytest.LogCaptureFixture) -> None:
    now = itertools.count(step=1)  # a second for each time that it is asked
    refusals = Refusals(60.0, lambda: float(next(now)))
    for number in range(10_000):
        refusals.tell("unproven", f"peer {number}", "why")
    refusals.sum_up()
    found = lines(caplog)
    counted = [int(line.split()[0]) for line in found if "more were refused" in line]
    told = [line for line in found if line.startswith("peer")]
    assert sum(counted) + len(told) == 10_000, "none is forgotten"
    assert len(found) <= 2 * (10_000 * 3 // 60 + 2)
    assert told[0] == "peer 0: refused: why"


def test_kinds_do_not_hide_each_other(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals()
    for _ in range(3):
        refusals.tell("unproven", "a stranger", "why")
        refusals.tell("session", "a trainer", "its name is taken")
    assert lines(caplog) == ["a stranger: refused: why", "a trainer: refused: its name is taken"]
    refusals.sum_up()
    assert len(lines(caplog)) == 4
