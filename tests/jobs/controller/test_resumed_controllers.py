"""Generations that a controller finds half told, and machines that it must not suspect."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.jobs.controllers import BEAT, Controlled, Peer, running, shape
from support.jobs.runs import until

from deepvm.jobs.cloud import RefusedError
from deepvm.jobs.controller.api import listening

MACHINES = {
    "m1": {"address": "10.0.0.1", "port": 1111},
    "m2": {"address": "10.0.0.2", "port": 2222},
}


def beat(
    found: Controlled, machine: str, port: int = 0, wait_s: float = 0.0, seen: str = ""
) -> dict[str, Any]:
    """The orders for a machine."""
    facts = {**MACHINES[machine], "wait_s": wait_s, "seen": seen}
    return Peer(found, machine).ask("/beat", {**BEAT, **facts, "port": port or facts["port"]})


def places(orders: dict[str, Any]) -> tuple[Any, ...]:
    """Where trainers meet."""
    return orders["generation"], orders["port"], [rank["address"] for rank in orders["ranks"]]


@pytest.fixture(params=[True, False], ids=["half told", "not told"])
def taken_over(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """A controller that has formed generation 1 and was killed; another is there.

    With the orders that m1 had.
    """
    found, seen = Controlled(tmp_path), ""
    try:
        beat(found, "m1")
        beat(found, "m2")
        until(lambda: found.world().generation == 1, 10)
        if request.param:
            told = until(lambda: (orders := beat(found, "m1")).get("generation") and orders, 10)
            assert places(told) == (1, 1111, ["10.0.0.1", "10.0.0.2"])
            seen = told["digest"]
        found.kill()
        found.start()
        yield found, seen
    finally:
        found.kill()
        for peer in found.peers:
            assert peer.connection is not None
            peer.connection.close()


def test_all_are_told_the_same_place(taken_over: tuple[Controlled, str]) -> None:
    """If one has been told another, by a controller that has written it down nowhere, a new
    generation begins.
    """
    found, seen = taken_over
    # M1 has not been heard: nobody knows where it is
    assert beat(found, "m2", 2223).get("generation", 0) == 0
    generation = 2 if seen else 1
    for machine, port in (("m1", 1112), ("m2", 2224)):  # the ports that are free change
        answer = beat(found, machine, port, 2.0, seen if machine == "m1" else "")
        assert places(answer) == (generation, 1112, ["10.0.0.1", "10.0.0.2"])


def test_who_waits_is_told_as_soon_as_all_are_known(taken_over: tuple[Controlled, str]) -> None:
    (found, seen), answers = taken_over, list[dict[str, Any]]()

    def wait() -> None:
        while not answers or not answers[-1]["generation"]:
            answers.append(beat(found, "m2", wait_s=14.0))

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.3)
    began = time.monotonic()
    beat(found, "m1", seen=seen)
    thread.join()
    assert places(answers[-1]) == (2 if seen else 1, 1111, ["10.0.0.1", "10.0.0.2"])
    assert time.monotonic() - began < 5


def test_a_generation_that_all_run_goes_on(tmp_path: Path) -> None:
    """Although their word that they have started was never heard."""
    found = Controlled(tmp_path)
    try:
        beat(found, "m1")
        beat(found, "m2")
        until(lambda: found.world().generation == 1, 10)
        found.kill()
        found.start()
        for machine in MACHINES:
            Peer(found, machine).ask(
                "/beat", {**BEAT, **MACHINES[machine], "generation": 1, "seen": "x 0 1 0.0 0"}
            )
        time.sleep(1)
        assert found.world().generation == 1 and found.world().formed
    finally:
        found.kill()
        for peer in found.peers:
            assert peer.connection is not None
            peer.connection.close()


def test_a_generation_that_runs_goes_on(tmp_path: Path) -> None:
    with running(tmp_path) as found:
        report = {"event": "started", "generation": 1}
        for machine in MACHINES:
            Peer(found, machine).ask("/report", {"events": [{**report, "of": time.time_ns()}]})
        before = shape(found.world())
        found.kill()
        found.start()
        time.sleep(2)
        assert shape(found.world()) == before


def test_who_gives_up_waiting_for_another_answer_is_not_suspected(tmp_path: Path) -> None:
    with running(tmp_path) as found:
        peer = Peer(found, "m1")
        assert peer.connection is not None
        peer.connection.timeout = 0.5
        peer.connection.sock.settimeout(0.5)
        with pytest.raises(TimeoutError):
            peer.send("/schedule", {"generation": 1, "step": 9, "save": [1, 0, 0], "peers": True})
        peer.connection.close()
        time.sleep(1.0)  # longer than a broken connection may last
        assert found.world().generation == 1 and not {"silent", "machine"} & {*found.kinds()}


@pytest.mark.slow
@pytest.mark.parametrize("peers", [False, True])
def test_a_step_that_not_all_have_marked(tmp_path: Path, peers: bool) -> None:
    """Where nobody else can have it marked, some would save it and the others not."""
    with running(tmp_path) as found:
        order = {"generation": 1, "step": 9, "save": [1, 0, 0], "peers": peers}
        assert "error" in Peer(found, "m1").ask("/schedule", order)
        time.sleep(2)
        assert (found.world().generation > 1) != peers


def test_small_answers_do_not_wait_for_acknowledgements() -> None:
    """asyncio sets TCP_NODELAY where a socket says that it is TCP."""
    with listening("127.0.0.1", 0) as bound:
        assert bound.proto == socket.IPPROTO_TCP


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            RefusedError, match=f"cannot listen at 127.0.0.1:{port}: Address already in use"
        ):
            listening("127.0.0.1", port)
    with pytest.raises(RefusedError, match="cannot listen at 192.0.2.1"):
        listening("192.0.2.1", 0)
