"""What Prometheus reads of a node: the format, that the numbers are the node's, and that a stranger
can do no harm.
"""

from __future__ import annotations

import http.client
import re
import socket
import threading
import time
import urllib.request
from datetime import datetime, timezone
from pathlib import Path

import pytest
from support.checkpoint.memory_nodes import (
    HERE,
    MIB,
    Process,
    make_image,
    make_layout,
    put,
    running,
    tier,
    until,
)

from deepvm.checkpoint.format.manifest import Level
from deepvm.checkpoint.network.endpoint import Address
from deepvm.checkpoint.node import server
from deepvm.checkpoint.node.server import CONTENT_TYPE, Node, NodeSettings, metrics_text
from deepvm.errors import CheckpointError

LINE = re.compile(
    r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+)\})? (-?[0-9.e+-]+)'
)
GUIDE = Path(__file__).parents[3] / "docs" / "internals" / "guide" / "memory-node.md"


def parse(text: str) -> dict[tuple[str, str], float]:
    """Samples by name and labels.

    Every line must be one, or the HELP and TYPE of those that follow.
    """
    found: dict[tuple[str, str], float] = {}
    described: list[str] = []
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            described.append(line.split()[2])
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert (
                name == described[-1]
                and kind in ("gauge", "counter")
                and name.endswith("_total") == (kind == "counter")
            )
        else:
            match = LINE.fullmatch(line)
            assert match is not None, line
            assert match[1] == described[-1], "samples follow their description"
            key = match[1].removeprefix("deepvm_node_"), match[2] or ""
            assert key not in found
            found[key] = float(match[3])
    assert len(described) == len(set(described))
    return found


def read(address: Address) -> dict[tuple[str, str], float]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
        assert reply.headers["Content-Type"] == CONTENT_TYPE
        return parse(reply.read().decode())


def address_of(node: Node) -> Address:
    assert node.metrics_server is not None
    return node.metrics_server.address


def test_the_numbers_are_the_nodes(tmp_path: Path) -> None:
    layout = make_layout(2 * MIB)
    with running(persist=tmp_path / "p", metrics=HERE) as node:
        before = read(address_of(node))
        assert (
            before["versions_complete_total", ""] == 0
            and before["memory_limit_bytes", ""] == 64 * MIB
        )
        sender = tier(node)
        for version in (3, 7):
            assert put(sender, version, layout, make_image(layout, version), job="resnet-7").wait(
                Level.DURABLE
            )
        after = read(address_of(node))
        sender.close()
    assert after["newest_complete_version", 'job="resnet-7"'] == 7
    assert after["newest_durable_version", 'job="resnet-7"'] == 7
    age_s = (
        datetime.now(timezone.utc).timestamp()
        - after["newest_complete_timestamp_seconds", 'job="resnet-7"']
    )
    assert -1 < age_s < 60
    assert after["versions_complete_total", ""] == after["flushed_total", ""] == 2
    assert after["versions", 'job="resnet-7",state="complete"'] == 2
    assert after["received_bytes_total", ""] == 2 * layout.size
    assert after["slots", 'state="used"'] == 2 and after["flush_seconds_total", ""] > 0
    assert (
        after["connections_total", ""] >= 2
        and after["connections_refused_total", 'reason="full"'] == 0
    )


def test_a_node_without_a_disk_has_no_numbers_of_one() -> None:
    with running(metrics=HERE) as node:
        names = {name for name, _ in read(address_of(node))}
    assert "flush_waiting" in names and not {"flushed_total", "flush_failures_total"} & names


def test_a_version_that_arrives_has_no_time_yet() -> None:
    layout = make_layout(MIB, world=2)
    with running(metrics=HERE) as node:
        sender = tier(node)
        put(sender, 1, layout, make_image(layout, 1), rank=0)
        found = read(address_of(node))
        sender.close()
    assert found["versions", 'job="job",state="receiving"'] == 1
    assert ("newest_complete_version", 'job="job"') not in found


def test_labels_are_escaped() -> None:
    with running() as node:
        status = dict(node.metrics())
    row = {
        "job": 'a"b\\c\nd',
        "version": 1,
        "state": "receiving",
        "bytes": 1,
        "received_bytes": 0,
        "durable": False,
    }
    text = metrics_text({**status, "versions": [{**row, "created_at": None}]})
    assert ("versions", r'job="a\"b\\c\nd",state="receiving"') in parse(text)


def test_other_paths_and_methods() -> None:
    with running(metrics=HERE) as node:
        place = address_of(node)
        connection = http.client.HTTPConnection(place.host, place.port, timeout=10)
        for method, path, code in (
            ("GET", "/", 404),
            ("POST", "/metrics", 501),
            ("GET", "/metrics?x=1", 200),
        ):
            connection.request(method, path)
            reply = connection.getresponse()
            body = reply.read()
            assert reply.status == code
        connection.request("HEAD", "/metrics")
        reply = connection.getresponse()
        assert (
            (reply.status, reply.read()) == (200, b"")
            and int(reply.headers["Content-Length"]) > 0
            and body
        )


def test_silent_strangers_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server._Handler, "timeout", 60.0)
    layout = make_layout(MIB)
    with running(metrics=HERE) as node:
        place, before = address_of(node), threading.active_count()
        strangers = []
        for _ in range(20):
            strangers.append(socket.create_connection((place.host, place.port)))
            time.sleep(0.01)  # what comes faster than it is accepted is tried again a second later
        strangers[-1].sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        assert read(place)["versions_complete_total", ""] == 0
        assert until(lambda: threading.active_count() <= before + server._MOST + 1)
        sender = tier(node)
        put(sender, 1, layout, make_image(layout, 1))
        assert read(place)["versions_complete_total", ""] == 1
        sender.close()
        for stranger in strangers:
            stranger.close()


def test_a_stranger_is_waited_for_a_while_only() -> None:
    with running(metrics=HERE) as node:
        place = address_of(node)
        with socket.create_connection((place.host, place.port)) as stranger:
            server._Handler.timeout, usual = 0.1, server._Handler.timeout
            try:
                with socket.create_connection((place.host, place.port)) as other:
                    begin = time.monotonic()
                    other.settimeout(10)
                    assert other.recv(10) == b"" and time.monotonic() - begin < 5
            finally:
                server._Handler.timeout = usual
            stranger.close()


def test_a_port_in_use_is_said_and_nothing_stays_open(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = Address("127.0.0.1", taken.getsockname()[1])
        node = Node(NodeSettings(HERE, b"a token that is long enough", 64 * MIB, metrics=place))
        with pytest.raises(
            CheckpointError, match="cannot listen there for --metrics: Address already in use"
        ):
            node.start()
    assert node.metrics_server is None


def test_the_command(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Process(tmp_path, "--metrics", f"127.0.0.1:{port}") as node:
        assert read(Address("127.0.0.1", port))["memory_limit_bytes", ""] == 64 * MIB
        assert f"metrics are at http://127.0.0.1:{port}/metrics" in node.log.read_text()


def test_the_guide_lists_every_metric() -> None:
    listed = re.findall(r"^\| `(deepvm_node_\w+)` \|", GUIDE.read_text(), re.MULTILINE)
    with running() as node:
        text = metrics_text(node.metrics())
    assert listed == re.findall("^# TYPE ([a-z_]+) ", text, re.MULTILINE)
