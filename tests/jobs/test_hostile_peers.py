"""A real controller among peers that lie, stammer, and never finish a sentence: nothing changes,
nothing breaks.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.http_server import QuietServer
from support.jobs.controllers import BEAT, Controlled, Peer, running, shape
from support.jobs.runs import until

from deepvm.jobs.agent.controller_client import ControllerClient, ControllerUnreachable, Reporter
from deepvm.jobs.controller.api import MOST_STRANGERS
from deepvm.jobs.controller.messages import can_know, event_of
from deepvm.jobs.decisions.states import Machine
from deepvm.jobs.decisions.world import JobLimits, JobState, MachineRecord, Pool
from deepvm.jobs.wire import HEADER, LARGEST, USER, WireError, new_secret, secret_of


@pytest.fixture(scope="module")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    with running(tmp_path_factory.mktemp("controlled")) as found:
        yield found


@pytest.fixture
def unchanged(controlled: Controlled) -> Iterator[Controlled]:
    before = shape(controlled.world())
    yield controlled
    assert shape(controlled.world()) == before
    assert controlled.process.poll() is None
    assert Peer(controlled, "m1").send("/beat", {**BEAT, "generation": 1})[0] == 200


NOTICE = {"events": [{"event": "notice", "of": 2**62, "taken_s": 9e9, "action": "terminate"}]}


def test_what_is_not_signed_is_refused(unchanged: Controlled) -> None:
    peer = Peer(unchanged, "m1")
    body, signature = peer.sender.sealed(NOTICE)
    for wrong in ("", "0" * 64, signature[:-1], signature.upper(), "\u00e9" * 64, signature + " x"):
        assert peer.post("/report", body, wrong)[0] == 401
    assert peer.post("/report", body.replace(b"9000000000", b"9000000001"), signature)[0] == 401


def test_another_jobs_secret_and_another_machines_name(unchanged: Controlled) -> None:
    assert Peer(unchanged, "m1", new_secret()).send("/report", NOTICE)[0] == 401
    thief = Peer(unchanged, "m2")
    thief.sender.machine = "m1"
    assert thief.send("/report", NOTICE)[0] == 401
    for name in ("\ud800", "", "m1\n", "../../m1"):
        thief.sender.machine = name
        assert thief.send("/beat", BEAT)[0] == 401


def test_what_was_recorded_cannot_be_sent_again(unchanged: Controlled) -> None:
    peer = Peer(unchanged, "m1")
    recorded = peer.sender.sealed({**BEAT, "generation": 1})
    assert peer.post("/beat", *recorded)[0] == 200
    assert peer.post("/beat", *recorded)[0] == 401
    assert Peer(unchanged, "m1").post("/beat", *recorded)[0] == 401
    assert peer.post("/report", *recorded)[0] in (400, 401)


def test_what_was_recorded_is_no_use_to_the_next_controller(tmp_path: Path) -> None:
    with running(tmp_path, 1) as found:
        recorded = Peer(found, "m1").sender.sealed(NOTICE)
        found.kill()
        found.start()
        assert Peer(found, "m1").post("/report", *recorded)[0] == 401


def test_a_machine_is_not_the_user(unchanged: Controlled) -> None:
    assert "error" in Peer(unchanged, "m1").ask("/command", {"command": "stop"})


def test_the_user_is_no_machine(unchanged: Controlled) -> None:
    assert Peer(unchanged, USER).ask("/beat", BEAT)["shutdown"]
    assert Peer(unchanged, USER).send("/report", NOTICE)[0] == 200


def raw(where: Controlled, data: bytes) -> bytes:
    """What a connection gets for some bytes, until it is closed or nothing more comes."""
    parts, got = urlsplit(where.url), b""
    with socket.create_connection((parts.hostname or "", parts.port or 0), 10) as connection:
        connection.settimeout(3)
        try:
            connection.sendall(data)
            while piece := connection.recv(65_536):
                got += piece
        except OSError:
            pass
    return got


def test_what_is_too_large(unchanged: Controlled) -> None:
    large = b"x" * (LARGEST + 100_000)
    assert b" 413 " in raw(
        unchanged,
        b"POST /beat HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(large) + large,
    )
    chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    head = b"POST /beat HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert b" 413 " in raw(unchanged, head + chunk * 20)
    assert b"HTTP/1.1 4" in raw(
        unchanged, b"GET /nonce HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 1_000_000 + b"\r\n\r\n"
    )


def test_two_lengths_are_no_second_message(unchanged: Controlled) -> None:
    inner = b"GET /nonce HTTP/1.1\r\nHost: x\r\n\r\n"
    for lengths in (
        b"Content-Length: 4\r\nContent-Length: 5",
        b"Content-Length: %d\r\nContent-Length: 0" % len(inner),
        b"Content-Length: -1",
        b"Transfer-Encoding: chunked, identity",
    ):
        found = raw(
            unchanged,
            b"POST /beat HTTP/1.1\r\nHost: x\r\n" + lengths + b"\r\n\r\n0\r\n\r\n" + inner,
        )
        assert found.count(b"HTTP/1.1 ") == 1 and b" 200 " not in found, (lengths, found)


def test_half_open_connections_do_not_keep_agents_out(unchanged: Controlled) -> None:
    parts = urlsplit(unchanged.url)
    held = []
    try:
        for number in range(MOST_STRANGERS + 100):
            connection = socket.create_connection((parts.hostname or "", parts.port or 0), 10)
            connection.sendall(
                b"POST /beat HTTP/1.1\r\nHost: x\r\n"
                if number % 2
                else b"GET /nonce HTTP/1.1\r\nHost: x\r\n\r\n"
            )
            held.append(connection)
        began = time.monotonic()
        peer = Peer(unchanged, "m1")
        for _ in range(20):
            assert peer.send("/beat", {**BEAT, "generation": 1})[0] == 200
        assert time.monotonic() - began < 3.0
        held[0].settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            while held[0].recv(65_536):  # the oldest is closed
                pass
    finally:
        for connection in held:
            connection.close()


WRONG: list[Any] = [
    None,
    -1,
    2**70,
    1e999,
    -0.5,
    "7",
    True,
    [],
    {},
    "x" * 5000,
    "\ud800",
    [[1]],
    -(2**63),
]


def rightly(key: str, value: Any) -> bool:
    """Some of the wrong values are right in some fields."""
    if key in ("seen", "action", "why", "text"):
        return isinstance(value, str)
    if key == "warm":
        return isinstance(value, bool)
    if key == "lines":
        return value == []
    return (key == "version" and value is None) or (key == "address" and value == "7")


def test_a_heartbeat_with_a_wrong_field(unchanged: Controlled) -> None:
    for key in list(BEAT):
        peer = Peer(unchanged, "m1")
        for wrong in WRONG:
            if not rightly(key, wrong):
                assert peer.send("/beat", {**BEAT, "generation": 1, key: wrong})[0] in (400, 401), (
                    wrong
                )
        without = {k: v for k, v in BEAT.items() if k != key}
        assert peer.send("/beat", without)[0] == (200 if key == "step_s" else 400)


REPORTS: list[dict[str, Any]] = [
    {"event": "notice", "taken_s": 1.0, "action": "terminate"},
    {"event": "started", "generation": 1, "version": 3},
    {"event": "ended", "generation": 1, "code": 0, "step": 3, "lines": []},
    {"event": "saved", "generation": 1, "version": 3, "reason": 1, "stall_s": 0.1, "took_s": 0.1},
    {"event": "unsaved", "generation": 1, "reason": 2, "why": "full"},
    {"event": "setup-failed", "code": 1, "lines": []},
    {"event": "line", "local_rank": 0, "text": "hello", "generation": 1},
]


def test_a_report_with_a_wrong_field(unchanged: Controlled) -> None:
    for report in REPORTS:
        peer = Peer(unchanged, "m1")
        for key in report:
            if key in ("event", "local_rank") or (report["event"], key) == ("line", "generation"):
                continue
            for wrong in WRONG:
                if not rightly(key, wrong):
                    event = {**report, key: wrong, "of": time.time_ns()}
                    assert peer.send("/report", {"events": [event]})[0] in (400, 401), event
        for number in (None, -1, 2**63, "1", 1.5):
            assert peer.send("/report", {"events": [{**report, "of": number}]})[0] == 400
        for events in (None, 1, "x", [1], [None], {"a": 1}):
            assert peer.send("/report", {"events": events})[0] == 400


def test_a_schedule_that_is_none(unchanged: Controlled) -> None:
    for wrong in [None, [], [1, 2], [1, 2, 3, 4], ["x", 1, 1], [99, 1, 1], [1, -1, 1], 7]:
        assert (
            Peer(unchanged, "m1").send("/schedule", {"generation": 1, "step": 9, "save": wrong})[0]
            == 400
        )


def test_bytes_that_are_no_message(unchanged: Controlled) -> None:
    peer = Peer(unchanged, "m1")
    for body in (
        b"",
        b"[" * 500_000,
        b'{"a":' * 100_000,
        b'{"machine": NaN}',
        b"\xff\xfe",
        b"null",
    ):
        assert peer.post("/beat", body, "0" * 64)[0] == 401
    for path in ("/", "/../secret", "/beat/..%2f..%2fsecret", "/%00"):
        assert peer.post(path, b"{}", "")[0] == 404


@pytest.mark.slow
def test_what_agents_of_the_controller_before_had_marked_is_no_answer(tmp_path: Path) -> None:
    """All ranks must have a save's step before rank 0 goes on, whatever number the last controller
    gave.
    """
    with running(tmp_path, 2) as found:
        answers: list[Any] = []
        first = Peer(found, "m1")
        asking = threading.Thread(
            target=lambda: answers.append(
                first.ask("/schedule", {"generation": 1, "step": 9, "save": [1, 0, 1]})
            )
        )
        for machine in ("m1", "m2"):
            Peer(found, machine).ask("/beat", {**BEAT, "generation": 1, "scheduled": 5})
        asking.start()
        asking.join(1.0)
        assert asking.is_alive() and not answers
        asking.join(15)
        assert answers == [{"error": "not all machines have it"}]
        suspected = [
            e.facts["id"] for e in found.events() if e.facts.get("state") == Machine.SUSPECT.value
        ]
        assert sorted(suspected) == ["m1", "m2"], (
            "they must not go on, each with another step saved"
        )
        until(lambda: found.world().formed and found.world().generation > 1)


def test_a_report_that_comes_twice_counts_once(tmp_path: Path) -> None:
    """An agent repeats what it was not answered, though it may have been heard."""
    with running(tmp_path, 1) as found:
        peer, number = Peer(found, "m1"), time.time_ns()
        saved = next(report for report in REPORTS if report["event"] == "saved")
        for more in (0, 0, 1):
            assert peer.send("/report", {"events": [{**saved, "of": number + more}]})[0] == 200
            assert found.kinds().count("safe") == sum(found.world().saves.values()) == 1 + more


def test_only_the_first_member_says_what_is_safe(tmp_path: Path) -> None:
    """A machine that another has taken over must not have a version called safe that is nowhere."""
    with running(tmp_path, 2) as found:
        first, other = found.world().members
        saved = next(report for report in REPORTS if report["event"] == "saved")
        lasts = {"event": "lasts", "generation": 1, "version": 7, "took_s": 0.1}
        failed = next(report for report in REPORTS if report["event"] == "unsaved")

        def said(machine: str, *events: dict[str, Any]) -> list[str]:
            told, before = (
                [{**event, "of": time.time_ns() + n} for n, event in enumerate(events)],
                found.kinds(),
            )
            assert Peer(found, machine).send("/report", {"events": told})[0] == 200
            return [
                kind
                for kind in found.kinds()[len(before) :]
                if kind in ("safe", "lasts", "unsaved")
            ]

        assert said(other, saved, lasts) == [] and said("m9", saved, lasts, failed) == []
        assert found.world().version == found.world().lasts == 0
        assert said(other, failed) == ["unsaved"], "any rank may fail"
        assert said(first, saved, lasts) == ["safe", "lasts"] and found.world().lasts == 7


def test_what_a_machine_may_say_that_is_over() -> None:
    """Nothing of the training; perhaps why it has ended."""
    for report in [r for r in REPORTS if r["event"] != "line"]:
        found = event_of("m1", report)
        assert found is not None
        record = MachineRecord("m1", Pool("a", "z", "spot", 1.0), 0.0)
        world = JobState(JobLimits(1, 1), 0.0, generation=1, members=("m1",)).with_machine(record)
        assert can_know(world, "m1", found)
        over = world.with_machine(replace(record, state=Machine.ENDED))
        assert can_know(over, "m1", found) == (report["event"] == "setup-failed")


# --- a controller that is none --------------------------------------------------------------------


class _Liar(http.server.BaseHTTPRequestHandler):
    answers: list[tuple[int, bytes, str]]

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._say(200, b"nonce", "")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._say(*self.answers[0])

    def _say(self, code: int, body: bytes, signature: str) -> None:
        self.send_response(code)
        self.send_header(HEADER, signature)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


SHUTDOWN = json.dumps({"shutdown": True, "generation": 99}).encode()


@pytest.mark.parametrize(
    "answer",
    [
        (200, SHUTDOWN, ""),
        (200, SHUTDOWN, "0" * 64),
        (200, SHUTDOWN, "\u00e9"),
        (200, b"[" * 100_000, "0" * 64),
        (200, b"x" * (LARGEST + 10), "0" * 64),
        (401, SHUTDOWN, ""),
        (500, b"Traceback", ""),
        (302, b"", ""),
    ],
)
def test_an_agent_believes_no_other_controller(answer: tuple[int, bytes, str]) -> None:
    server = QuietServer(("127.0.0.1", 0), type("Liar", (_Liar,), {"answers": [answer]}))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    over = threading.Event()
    try:
        secret = secret_of(new_secret(), "m1")
        client = ControllerClient(lambda: f"http://127.0.0.1:{server.server_port}", "m1", secret)
        with pytest.raises((WireError, ControllerUnreachable)):
            client.ask("/beat", BEAT, 5.0)
        reporter = Reporter(
            ControllerClient(lambda: f"http://127.0.0.1:{server.server_port}", "m1", secret), over
        )
        reporter.add("notice", taken_s=1.0, action="terminate")
        time.sleep(0.5)
        assert reporter.waiting == 1  # nobody whom it trusts has heard it
    finally:
        over.set()
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    "answer",
    [
        b"\0\xff garbage\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx",
    ],
)
def test_what_is_no_http_is_no_answer(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for _ in range(2):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        client = ControllerClient(
            lambda: f"http://127.0.0.1:{listening.getsockname()[1]}", "m1", b"x" * 32
        )
        with pytest.raises((WireError, ControllerUnreachable)):
            client.ask("/beat", BEAT, 2.0)
